"""A rig of members of different sizes under a raidx layout; members join and leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.format.create import create_array, shape
from raidx_fuse.format.table_page import chunks_that_fit
from raidx_fuse.lab.crash.sums import check_calm, check_whole
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.planning.allocate import maximum
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.model import model_member
from tests.support.arrays import UNLIKE_OVERHEAD_BYTES, Rig
from tests.support.closing import close_at_end

CHUNK = 4096


class UnlikeRig(Rig):
    """A rig of unlike members whose image leaves *room*, a share of the chunks, free.

    With *sums* it has checksums, which `check` looks at. It is closed when the test ends.
    """

    def __init__(
        self,
        name: str,
        length: int,
        chunks: tuple[int, ...],
        *,
        room: float = 0.0,
        sums: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            name, len(chunks), member_chunks=chunks, params={"length": length}, **options
        )
        self.room = room
        self.sums = sums
        close_at_end(self.close)

    async def create(self, filled: float = 0.0) -> Any:
        """Make members and array, *filled* to a share."""
        self.members = [self.new_member(role) for role in range(self.width)]
        sizes = [member.size_bytes for member in self.members]
        _, made = shape(self.layout, sizes, CHUNK, self.params, sums=self.sums)
        image = int(made.size_bytes * (1 - self.room)) // CHUNK * CHUNK if self.room else None
        await create_array(
            self.members,
            self.layout,
            chunk_bytes=CHUNK,
            name="rig",
            now_s=0,
            overwrite_signature=not self.reads_zero,
            params=self.params,
            size_bytes=image,
            sums=self.sums,
        )
        array = await self.open()
        self.model = bytearray(array.size_bytes)
        if filled:
            await self.fill(filled)
        return array

    async def open(self) -> Any:
        """Start the array; who leaves is no member any more."""
        array = await super().open()
        array.on_release.append(self._forget)
        return array

    def _forget(self, member: Any) -> None:
        self.members = [kept for kept in self.members if kept is not member]

    @property
    def bundles(self) -> BundleLayout:
        """The table."""
        return bundles_of(self.array)

    def disk(self, chunks: int) -> FaultMember:
        """Return a new disk with space for about *chunks* chunks."""
        return self.member_of(UNLIKE_OVERHEAD_BYTES + chunks * CHUNK)

    def member_of(self, size_bytes: int) -> FaultMember:
        """Return a new disk of *size_bytes*."""
        ram = RamMember(size_bytes, name=f"new{self._made}")
        inner = model_member(ram, "ssd", seed=self._made) if self.slow else ram
        self._made += 1
        return FaultMember(inner)

    async def settle(self) -> list[Mapping[str, Any]]:
        """Wait for every job; return what they said at the end."""
        ended: list[Mapping[str, Any]] = []
        while running := self.array.jobs.running():
            await running[0].finished.wait()
            ended.append(running[0].status())
            await trio.sleep(0.01)  # another one may follow from it
        return ended

    async def check(self) -> None:
        """Check places, content and parity; the image may have grown."""
        self.model += bytes(self.array.size_bytes - len(self.model))
        layout = self.bundles
        assert layout.problem(range(layout.cells)) is None
        await self.compare()
        await self._step_scrub()
        if self.sums:
            await check_whole(self.array)
            check_calm([self.array], "among members that join and leave", after_crash=False)

    async def remount(self) -> None:
        """Close the array cleanly and mount it again."""
        await self.close()
        await self.open()
        await self.check()


def usable(rig: UnlikeRig) -> int:
    """Return the most that the members can give, by the bound of DESIGN.md."""
    counts = [
        chunks_that_fit(queue.member.size_bytes, rig.array.member_set.data_offset, CHUNK) - 1
        for queue in rig.array.member_set.queues
        if queue is not None
    ]
    data = rig.bundles.code.data_count
    return maximum(counts, rig.bundles.length) * data * CHUNK


def bundles_of(array: Array) -> BundleLayout:
    """Return the table of an array that is open."""
    assert isinstance(array.context.layout, BundleLayout)
    return array.context.layout
