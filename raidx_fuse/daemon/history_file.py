"""The files that carry the histories of a pool from one mount to the next.

One for each array, beside the sockets and logs (paths.py), named by the array's UUID, with what was
seen of the array and of its volumes. So the history of an array follows it to another mount point
or into another pool on this machine. It is a hint, not data: nothing of it is on the members, no
request waits for it, and a history that is missing or cannot be read begins anew.

It is written at the end of a mount and every `SAVE_S`, as a whole, and replaces the old one by a
rename. Files of arrays that were not mounted for long are removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from raidx_fuse.errors import FormatError, RaidxError
from raidx_fuse.pool.monitor import Monitor
from raidx_fuse.pool.volume_table import ArrayVolumes

log = logging.getLogger(__name__)

SAVE_S = 300.0
FILES_KEPT = 64
BYTES_MAX = 64 << 20


class HistoryFiles:
    """The files of the arrays of *pool* in *directory*; now is *now_s* of the pool's clock."""

    def __init__(self, directory: Path, pool: Sequence[ArrayVolumes], now_s: float) -> None:
        self._directory = directory
        self._pool = pool
        self._saved_s = now_s

    def load(self) -> Monitor:
        """Return the histories of the last mount, as far as there are any."""
        monitor = Monitor()
        for part in self._pool:
            path = self._path(part.array.uuid)
            try:
                if path.stat().st_size > BYTES_MAX:
                    raise FormatError("the pool's history is too long")
                kept = Monitor.from_bytes(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, RaidxError) as error:
                log.warning("the history of array %s begins anew: %s", part.array.name, error)
                continue
            kept.resume_at(self._saved_s)
            known = (volume.uuid for volume in part.volumes)
            monitor.take_over(kept.part(part.array.uuid, known))
        return monitor

    def save_now_and_then(self, monitor: Monitor, now_s: float) -> None:
        """Save if `SAVE_S` have passed since the last time."""
        if now_s - self._saved_s >= SAVE_S:
            self._saved_s = now_s
            self.save(monitor)

    def save(self, monitor: Monitor) -> None:
        """Write the histories; what cannot be written is reported in the log only."""
        for part in self._pool:
            path = self._path(part.array.uuid)
            if part.array.uuid not in monitor.arrays:
                continue
            new = path.with_suffix(f".new{os.getpid()}")
            content = monitor.part(part.array.uuid, (v.uuid for v in part.volumes)).to_bytes()
            try:
                new.write_bytes(content)
                new.replace(path)
            except OSError as error:
                log.warning("the history of array %s is not kept: %s", part.array.name, error)
                with suppress(OSError):
                    new.unlink()
        self._sweep(self._path(part.array.uuid) for part in self._pool)

    def _path(self, uuid: str) -> Path:
        return self._directory / f"{uuid}.history"

    def _sweep(self, own: Iterable[Path]) -> None:
        kept, others = set(own), []
        for path in self._directory.glob("*.history"):
            if path not in kept:
                with suppress(OSError):
                    others.append((path.stat().st_mtime, path))
        for _, path in sorted(others, reverse=True)[FILES_KEPT:]:
            with suppress(OSError):
                path.unlink()
