"""A read that lasts so long that its place could be reused before it ends."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.members.base import SECTOR_BYTES, WriteBuffer

CHUNK = 4  # one that moves


class HeldRead:
    """Holds the next read of *disk* up until `go_on`."""

    def __init__(self, disk: SectorDisk) -> None:
        self.began = trio.Event()
        self._may_go_on = trio.Event()
        self._readv = disk.readv
        disk.readv = self._read  # type: ignore[method-assign]

    async def _read(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        if not self.began.is_set():
            self.began.set()
            await self._may_go_on.wait()
        await self._readv(offset_bytes, buffers)

    def go_on(self) -> None:
        """Let the read reach the disk."""
        self._may_go_on.set()


def test_its_place_is_given_back_when_it_has_ended() -> None:
    """A growth moves the chunks and punches holes where they were."""
    found: dict[int, bytes] = {}

    async def script(player: Player) -> None:
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.array.context.journal.drain()
        array, chunk = player.array, CHUNK
        array.context.use_cache(0)
        await array.set("io.timeout_s", "3600")  # the read hangs, but is not given up
        role, _ = array.context.layout.place(*array.context.layout.locate(chunk))

        async def read() -> None:
            found[chunk] = bytes(await array.read(chunk * CHUNK_BYTES, CHUNK_BYTES))

        async with trio.open_nursery() as nursery:
            disk = player.new_disk()
            player.roles.holders.append((player.event, player.width, disk))
            job = (await array.grow([player.disks[disk]]))["job"]
            array.jobs.pause(job)
            held = HeldRead(player.disks[role])
            nursery.start_soon(read)
            await held.began.wait()
            (growth,) = array.jobs.running()
            array.jobs.resume(job)
            await trio.sleep(60)
            assert array.context.layout.place(*array.context.layout.locate(chunk))[0] != role
            assert not growth.finished.is_set()
            held.go_on()
            assert (await array.jobs.wait(job))["state"] == "done"
        per_chunk = CHUNK_BYTES // SECTOR_BYTES
        sectors = range(chunk * per_chunk, (chunk + 1) * per_chunk)
        assert found[chunk] == b"".join(map(player.history.newest, sectors))

    shape = Shape(3, stripes=8, pace="queued")
    record_workload(Cell("raid0", "partial"), 0, script, shape)
    assert found
