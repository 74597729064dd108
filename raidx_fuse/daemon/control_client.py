"""The control socket of a running mount, client side: one JSON line per request and per answer.

    --> {"command": "status", "arguments": {}}
    <-- {"result": {...}}
    <-- {"error": {"kind": "...", "reason": "..." or null, "message": "...",
                   "action": "..." or null, "exit_status": 1}}

`raidx_fuse.daemon.control_server` is the server side. Any user can mount a file system that calls
itself raidx. So a client bounds the size and time of an answer, and the peer must run as the user
who mounted. Whether it is trusted is decided when it connects: the caller's own daemons and root's
are. An answer of any other one is held against its type (`check_answer`) before anybody reads it.

A command may take long, but one of a stopped daemon never ends. Therefore, if the daemon is silent
for `PATIENCE_S`, the client asks on a second connection whether it still answers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from raidx_fuse.daemon import paths
from raidx_fuse.errors import RaidxError, Reason, reason_named
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.typed import wrong_key

PATIENCE_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
ITEMS_MAX = 1000  # of a list or object of a status
TEXT_CHARS_MAX = 8192
NUMBER_MAX = 1e20
DEPTH_MAX = 50
_RECEIVE_BYTES = 65536
_UCRED = struct.Struct("3i")


class ControlError(RaidxError):
    """An error answered by the daemon, or the reason why it could not be asked."""

    def __init__(
        self,
        message: str,
        *,
        action: str | None = None,
        exit_status: int = 1,
        kind: str | None = None,
        reason: Reason | None = None,
    ) -> None:
        super().__init__(message, action=action, reason=reason)
        self.exit_status = exit_status
        self.kind = kind or type(self).kind


class DaemonGoneError(ControlError):
    """There is a mount, but its daemon has ended without unmounting."""

    reason = Reason.DAEMON_GONE


class DaemonEndedError(ControlError):
    """The connection to the daemon ended while an answer was awaited."""

    reason = Reason.DAEMON_ENDED


def peer(client: Any) -> tuple[int, int]:
    """Return (pid, uid) of the other end of a Unix socket."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid


class Connection:
    """One connection to the daemon of *mountpoint*; a context manager that closes it.

    An answer may take *timeout_s* and have *answer_bytes_max* bytes. Without a time limit, it may
    take as long as the daemon is responsive. Raises ControlError if no raidx array is mounted
    there.
    """

    def __init__(
        self,
        mountpoint: str | os.PathLike[str],
        *,
        timeout_s: float | None = None,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        mountpoint, self._array = mountpoints.split_array(os.fspath(mountpoint))
        self._where = mountpoint
        self._timeout_s = timeout_s
        self._answer_bytes_max = answer_bytes_max
        self._waiting = bytearray()
        self._path = os.fspath(paths.files_of_mount(mountpoint).socket)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # On a non-blocking socket, connect would fail while other clients wait to be accepted.
        patience = struct.pack("@ll", int(PATIENCE_S), int(PATIENCE_S % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        try:
            self._socket.connect(self._path)
            self._socket.settimeout(PATIENCE_S)
            uid = peer(self._socket)[1]
            _require_owner(mountpoint, uid)
        except BlockingIOError:
            self._socket.close()
            raise _hangs(self._where) from None
        except OSError as error:
            self._socket.close()
            raise _unreachable(mountpoint, error) from None
        except ControlError:
            self._socket.close()
            raise
        self._is_trusted = uid in (0, os.getuid())

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def interrupt(self) -> None:
        """Let a call that waits in another thread raise DaemonEndedError."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def daemon_pid(self) -> int:
        return peer(self._socket)[0]

    def call(self, command: str, **arguments: object) -> dict[str, Any]:
        """Return the result of *command*; raise ControlError with the error that was answered."""
        if self._array is not None:
            arguments["in_array"] = self._array
        request = json.dumps({"command": command, "arguments": arguments}).encode() + b"\n"
        try:
            self._socket.sendall(request)
            line = self._line()
        except TimeoutError:
            raise _hangs(self._where, self.daemon_pid) from None
        except OSError:
            raise DaemonEndedError(
                f"the daemon of {self._where} ended before it answered"
            ) from None
        result = self._result(line)
        if not self._is_trusted:
            check_answer(command, arguments, result)
        return result

    def _line(self) -> bytes:
        """Return the next line. Raises OSError, ControlError."""
        end_s = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        searched = 0
        while (end := self._waiting.find(b"\n", searched)) < 0:
            searched = len(self._waiting)
            if searched > self._answer_bytes_max:
                raise ControlError(
                    f"the daemon of {self._where} answers more than {self._answer_bytes_max} bytes"
                )
            left_s = PATIENCE_S if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                require_running(self.daemon_pid)
                raise ControlError(
                    f"the daemon of {self._where} did not answer in time",
                    reason=Reason.DAEMON_HANGS,
                )
            self._socket.settimeout(min(left_s, PATIENCE_S))
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                require_running(self.daemon_pid)
                if end_s is None and not self._is_alive():
                    raise
                continue
            if not received:
                raise ConnectionResetError
            self._waiting += received
        line = bytes(self._waiting[:end])
        del self._waiting[: end + 1]
        return line

    def _is_alive(self) -> bool:
        """Return whether the daemon answers on a new connection, be it with a refusal."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(PATIENCE_S)
            try:
                other.connect(self._path)
                other.sendall(b'{"command":"alive"}\n')
                other.recv(1)
            except OSError:
                return False
        return True

    def _result(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
            if "error" in answer:
                error = answer["error"]
                message, action = str(error["message"]), error["action"]
                raise ControlError(
                    message,
                    action=None if action is None else str(action),
                    exit_status=int(error["exit_status"]) & 0xFF or 1,
                    kind=str(error["kind"]) if "kind" in error else None,
                    reason=reason_named(error.get("reason")),
                )
            result = answer["result"]
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            result = None
        if not isinstance(result, dict):
            raise ControlError(
                f"the daemon of {self._where} sent an answer that is not valid",
                reason=Reason.BAD_ANSWER,
            )
        return result


def call(
    mountpoint: str | os.PathLike[str],
    command: str,
    *,
    timeout_s: float | None = None,
    answer_bytes_max: int = ANSWER_BYTES_MAX,
    **arguments: object,
) -> dict[str, Any]:
    """Send one command to the daemon of *mountpoint* and return its result; see `Connection`."""
    with Connection(
        mountpoint, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max
    ) as connection:
        return connection.call(command, **arguments)


def check_answer(
    command: str, arguments: Mapping[str, object], result: Mapping[str, object]
) -> None:
    """Raise ControlError unless *result* is of the type of an answer, and of reasonable size.

    Keys that are missing deeper inside are not looked at: a daemon of an earlier version has fewer.
    """
    kind = _type_of(command, arguments)
    name = None if kind is None else wrong_key(result, kind)
    why = _measure(result, ITEMS_MAX if command == "status" else ANSWER_BYTES_MAX)
    if name is not None:
        why = f"no valid {name!r}"
    if why is not None:
        raise ControlError(f"the daemon's answer to {command} has {why}", reason=Reason.BAD_ANSWER)


def _type_of(command: str, arguments: Mapping[str, object]) -> type | None:
    from raidx_fuse import answers, documents  # late: some 10 ms, and most daemons are trusted

    explained = answers.StripeState if "stripe" in arguments else answers.Explanation
    kinds: dict[str, type] = {
        "status": documents.ArrayReport,
        "stats": documents.CommandStats,
        "chunk-map": answers.ChunkMap,
        "explain": answers.VolumePlace if "member" in arguments else explained,
        "trace": answers.Trace,
        "compare": answers.Change,
    }
    return kinds.get(command)


def _measure(result: Mapping[str, object], items_max: int) -> str | None:
    """Return what in *result* is out of measure, None if nothing is."""
    left: list[tuple[object, int]] = [(result, 0)]
    while left:
        value, depth = left.pop()
        if isinstance(value, str):
            if len(value) > TEXT_CHARS_MAX:
                return "texts that are too long for raidx"
        elif isinstance(value, int | float):
            if not abs(value) < NUMBER_MAX:  # nor is a NaN
                return "numbers that are out of range"
        elif isinstance(value, list | dict):
            if len(value) > items_max or depth > DEPTH_MAX:
                return "lists that are too long for raidx"
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            left += [(each, depth + 1) for each in inner]
    return None


def _require_owner(mountpoint: str | os.PathLike[str], uid: int) -> None:
    """Raise ControlError unless the peer *uid* is the user who mounted (sockets can be faked)."""
    mount = mountpoints.find(mountpoint)
    if mount is not None and mount.owner not in {None, uid}:
        raise ControlError(
            f"{os.fspath(mountpoint)} was mounted by uid {mount.owner}, but uid {uid} answers",
            reason=Reason.FOREIGN,
        )


def _hangs(where: str, pid: int | None = None) -> ControlError:
    return ControlError(
        f"the daemon of {where} does not answer: it hangs",
        action=None if pid is None else f"write its stacks to its log: kill -USR1 {pid}",
        reason=Reason.DAEMON_HANGS,
    )


def _unreachable(mountpoint: str | os.PathLike[str], error: OSError) -> ControlError:
    mount = mountpoints.find(mountpoint)
    path = mountpoints.real_path(mountpoint)
    if mount is None:
        return ControlError(
            f"no array is mounted on {path}",
            action=f"mount it: raidx mount MEMBER... {path}",
            reason=Reason.NOT_MOUNTED,
        )
    if mount.fs_type != mountpoints.FUSE_TYPE:
        return ControlError(
            f"{path} is a mount of {mount.fs_type}, not of raidx", reason=Reason.NOT_MOUNTED
        )
    if mount.is_foreign:
        return ControlError(
            f"the mount on {path} belongs to another user (uid {mount.owner})",
            reason=Reason.FOREIGN,
        )
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return DaemonGoneError(
            f"the daemon of {path} is gone",
            action=f"clear the mount point: {mountpoints.unmount_command(path)}",
        )
    return ControlError(
        f"the daemon of {path} cannot be reached: {error.strerror}", reason=Reason.DAEMON_GONE
    )


def wait_for_exit(pid: int, timeout_s: float | None = None) -> bool:
    """Wait until process *pid* has ended: after unmounting, a daemon flushes and closes its array.

    Returns False after *timeout_s*. Raises ControlError if the process is stopped by a signal.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while (left_s := end_s - time.monotonic()) > 0:
            if poll.poll(math.ceil(min(left_s, PATIENCE_S) * 1000)):
                return True
            require_running(pid)
        return False
    finally:
        os.close(descriptor)


def require_running(pid: int) -> None:
    """Raise ControlError if process *pid*, which serves a mount, is stopped by a signal."""
    try:
        text = kernel_text(f"/proc/{pid}/stat")
    except OSError:
        return
    if text.rpartition(")")[2].split()[:1] == ["T"]:
        raise ControlError(
            f"process {pid}, which serves the mount, is stopped by a signal",
            action=f"continue it: kill -CONT {pid}",
            reason=Reason.DAEMON_HANGS,
        )
