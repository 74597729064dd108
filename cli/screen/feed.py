"""Asks the daemon for one look after another, on one connection to its control socket.

The daemon itself waits for the interval (`stats` with `interval_s`), so the client needs no clock,
and the rates are those of exactly that time.
"""

from __future__ import annotations

from typing import Any

from raidx_fuse.cli.output import Output
from raidx_fuse.cli.screen.snapshot import Snapshot, snapshot
from raidx_fuse.daemon.control_socket import (
    Connection,
    ControlError,
    DaemonEndedError,
    wait_for_exit,
)
from raidx_fuse.fuse import mountpoint

EXIT_S = 10.0  # for a daemon that has closed its connections to end
ANSWER_BYTES_MAX = 4 << 20  # 255 members with the longest paths, and the map of their chunks


class Feed:
    """Looks at *array*, each over *interval_s* seconds."""

    def __init__(self, array: str, interval_s: float) -> None:
        self.interval_s = interval_s
        self._array = array
        self._connection: Connection | None = None
        self._pid = 0
        self._stopped = False

    def open(self) -> Connection:
        """Connect, unless that was done before; from then on the daemon counts accesses.

        Raises ControlError.
        """
        connection = self._connection
        if connection is None:
            connection = Connection(self._array, answer_bytes_max=ANSWER_BYTES_MAX)
            self._connection = connection
            self._pid = connection.daemon_pid
            connection.call("chunk-map")
        return connection

    def documents(self, parts: int) -> dict[str, dict[str, Any]]:
        """Return the answers to `stats`, `status` and `chunk-map`, as they came, by their names.

        Raises ControlError: if the connection has ended, with the reason.
        """
        for is_last in (False, True):
            try:
                return self._documents(parts)
            except DaemonEndedError:
                self.close()
                if self._stopped:
                    raise
                # A daemon closes its idlest connection for a new client: then another one serves.
                if is_last:
                    wait_for_exit(self._pid, EXIT_S)
        return self._documents(parts)  # tells what has become of the mount

    def _documents(self, parts: int) -> dict[str, dict[str, Any]]:
        connection = self.open()
        return {
            "stats": connection.call("stats", interval_s=self.interval_s),
            "status": connection.call("status"),
            "chunk_map": connection.call("chunk-map", parts=parts),
        }

    def look(self, parts: int) -> Snapshot:
        """Return the next look, its map with *parts* parts of each member. Raises ControlError."""
        found = {name: Output().fit(each) for name, each in self.documents(parts).items()}
        return snapshot(found["status"], found["stats"], found["chunk_map"])

    def stop(self) -> None:
        """End a look that is under way in another thread."""
        self._stopped = True
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def ending(array: str, error: ControlError) -> ControlError:
    """Return *error* as the reason why a screen of *array* ended."""
    mount, _ = mountpoint.split_array(array)
    if mountpoint.find(mount) is None:  # a daemon that unmounts may still answer for a moment
        return ControlError(f"watching {array} ended: it is not mounted any more")
    return ControlError(
        f"watching {array} ended: {error.message}",
        action=error.action,
        kind=error.kind,
        reason=error.reason,
    )
