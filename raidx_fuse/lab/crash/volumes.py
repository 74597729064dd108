"""The volumes of a mounted pool while a workload runs, and what is noted of each request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from raidx_fuse.errors import BusyError, NoSpaceError, RaidxError, UsageError
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.history import History, WriteSpan
from raidx_fuse.lab.crash.laws import DiskLaws, acknowledged, arrays_of, writer_of
from raidx_fuse.lab.crash.parts import read_volume
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes

Stripes = frozenset[int]
UNDONE = (BusyError, NoSpaceError, UsageError)  # what a change of a table is refused with


class VolumePlayer:
    """Sends requests to the volumes of *pool*, whose UUIDs are known by name."""

    pool: Pool
    recording: Recording
    record: CutRecord
    uuids: dict[str, str]
    most_bytes = 1 << 20  # of one read

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        return len(self.record.events)

    def volume(self, history: History) -> Volume:
        """Return the volume that *history* is about. Raises UsageError if it is not there."""
        return self.pool.find(self.uuids[history.volume])[1]

    def hold_to_laws(self, disks: Iterable[SectorDisk]) -> None:
        """Judge each write to *disks* from now on."""
        laws = DiskLaws(volumes.array for volumes in self.pool.arrays)
        for disk in disks:
            disk.obey(laws.judge)

    async def create_volume(self, history: History, volumes: ArrayVolumes, size: int) -> None:
        """Create the volume of *history*, of *size* bytes. Raises RaidxError."""
        span = history.begin_size("create", self.event, size)
        with self._changing(history, span):
            self.uuids[history.volume] = (await volumes.create(history.volume, size)).uuid

    async def resize_volume(self, history: History, size: int) -> None:
        """Give a volume another size in bytes, 0: delete it. Raises RaidxError."""
        volumes, volume = self.pool.find(self.uuids[history.volume])
        span = history.begin_size("resize" if size else "delete", self.event, size)
        with self._changing(history, span):
            if size:
                await volumes.resize(volume, size, lose_data=True)
            else:
                await volumes.delete(volume, lose_data=True)

    @contextmanager
    def _changing(self, history: History, span: WriteSpan) -> Iterator[None]:
        """Note how the change of a size ends. Raises RaidxError."""
        try:
            yield
        except UNDONE:
            history.forget(span, self.event)
            raise
        except RaidxError:
            history.refuse(span, self.event)
            raise
        history.end(span, self.event)

    def excused(self) -> bool:
        """Return whether requests may end in errors."""
        return False

    def stripes_of(self, history: History, offset: int, length: int) -> tuple[Stripes, Stripes]:
        """Return the stripes that a write touches, and those that it may tear past the log."""
        return frozenset(), frozenset()

    def refuse(self, history: History, span: WriteSpan) -> None:
        """Note that a write ended in an error."""
        history.refuse(span, self.event)

    def is_excused(self, history: History, sector: int, content: bytes | None) -> bool:
        """Return whether *sector* may read as *content*, whatever was written."""
        return False

    async def compare_volumes(self, when: str) -> None:
        """Read all volumes, and compare them with what was written; nothing may be under way."""
        shown = {one.uuid: one for volumes in self.pool.arrays for one in volumes.volumes}
        for history in self.recording.volumes:
            if history.volume not in self.uuids:
                continue  # it could not be created
            volume = shown.get(self.uuids[history.volume])
            size = volume.size_bytes if volume is not None else 0
            sizes = history.at(self.event + 1).sizes
            if size not in sizes:
                raise ViolationError(
                    f"{when}: volume {history.volume} has {size} bytes, allowed: {sizes}"
                )
            found = [] if volume is None else await read_volume(volume, self.most_bytes)
            for sector, content in enumerate(found):
                newest = history.newest(sector)
                if content != newest and not self.is_excused(history, sector, content):
                    history.check(sector, content, when)

    async def write_volume(
        self, history: History, offset: int, length: int, *, discard: bool = False
    ) -> None:
        """Write or *discard* *length* bytes at *offset* of a volume, and note that."""
        volume, before = self.volume(history), history.size
        stripes = self.stripes_of(history, offset, length)
        span = history.begin_write("discard" if discard else "write", self.event, *stripes)
        data = history.add_bytes(span, offset, length, zeros=discard)
        try:
            with acknowledged(writer_of(self.pool, volume)):
                if discard:
                    await volume.discard(offset, length)
                else:
                    await volume.write(offset, data)
        except RaidxError:
            if not self.excused() and history.size >= before:
                raise
            self.refuse(history, span)
            return
        history.end(span, self.event)

    async def flush_volume(self, history: History) -> None:
        """Flush a volume, and note it."""
        flush = history.begin_flush("flush", self.event)
        try:
            volume = self.volume(history)
            with acknowledged(arrays_of(self.pool, volume)):
                await volume.flush()
        except RaidxError:
            if not self.excused() and history.size:
                raise
            history.fail_flush(flush, self.event)
            return
        history.end(flush, self.event)
