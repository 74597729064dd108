"""Crashes at named moments: whole writes kept or dropped, torn ones, with and without a loss.

Each test plays a short script on three or four disks, finds a moment by the next or the unfinished
writes, and lets the oracle (`judge`) check every state that a cut there may leave.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest

from raidx_fuse.format.table_page import share_region
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, HUGE_PART, HUGE_PARTS, Shape
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player, Script
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Stripe
from raidx_fuse.layouts.placements.bundled import table_of
from raidx_fuse.members.simulated.powercut import (
    CutRecord,
    DiskState,
    OpenWrite,
    count_cuts,
    enumerate_cuts,
)
from tests.support.cuts import Verdicts, judge

SECTOR = 512
CUTS_MAX = 8
CUTS_TORN = 2
CUTS_DRAWN = 5
LOSS_EACH = 2  # of these cuts
Disks = list[DiskState]


class Scene:
    """A script that was played, and the moments of it."""

    def __init__(
        self, layout: str, journal: str, script: Script, *, sums: bool = False, **shape: object
    ) -> None:
        values = {"width": 3, **shape}
        self.recording: Recording = record_workload(
            Cell(layout, journal, sums=sums),
            1,
            script,
            Shape(**values),  # the test's own words
        )
        self.record: CutRecord = self.recording.record
        self.verdicts = Verdicts()
        self.regions = self.recording.roles.regions.named()

    def about(self, write: OpenWrite) -> str:
        """Name the region that a write is about."""
        at = write.offset_bytes
        inside = (n for n, r in self.regions.items() if r.offset <= at < r.end)
        return next(inside, "end")  # superblocks behind the data

    def end_of(self, verb: str) -> tuple[int, Disks]:
        """Return the moment at which the last *verb* ends."""
        ends = [span.end_event for span in self.recording.timeline.spans if span.verb == verb]
        return next((i, disks) for i, disks, _ in self.record.moments() if i == ends[-1])

    def moments(self, wanted: Callable[[Disks], bool]) -> int:
        """Crash at every moment that is *wanted*; return how many there were."""
        count = 0
        for index, disks, _event in self.record.moments():
            if wanted(disks):
                count += 1
                for number, decisions in enumerate(_cuts(disks, index)):
                    self.crash(index, disks, decisions, ())
                    if self.recording.roles.tolerance(index) and (index + number) % LOSS_EACH == 0:
                        # Each disk in its turn.
                        lost = (index + number) // LOSS_EACH % self.recording.roles.layout.width
                        self.crash(index, disks, decisions, (lost,))
        return count

    def left(
        self, index: int, disks: Disks, decisions: Sequence[Sequence[int]], lost: tuple[int, ...]
    ) -> Left:
        images = {}
        for number, (disk, decision) in enumerate(zip(disks, decisions, strict=True)):
            image = disk.crash(decision)
            if number not in lost and is_member(image):
                images[number] = image
        return Left(self.recording, index, images, frozenset(lost))

    def crash(
        self, index: int, disks: Disks, decisions: Sequence[Sequence[int]], lost: tuple[int, ...]
    ) -> None:
        if lost and self.recording.roles.out_at(index):
            return  # one is out already
        left = self.left(index, disks, decisions, lost)
        generator = random.Random(f"{index} {decisions} {lost}")
        assert self.verdicts.of(left, generator) is None


def _cuts(disks: Disks, seed: int) -> Iterator[list[list[int]]]:
    """Yield all choices of whole writes if they are few, else some; and some with torn ones."""
    count = count_cuts(disks, torn=False)
    if count <= CUTS_MAX:
        yield from enumerate_cuts(disks, torn=False)
    else:
        yield [[0] * len(disk.open_writes) for disk in disks]
        yield [[write.kept for write in disk.open_writes] for disk in disks]
    generator = random.Random(seed)
    for _ in range(0 if count == 1 else CUTS_TORN if count <= CUTS_MAX else CUTS_DRAWN):
        yield [disk.sample(generator) for disk in disks]


async def small_overwrite(player: Player) -> None:
    """Give two stripes content, durably and in place; then write one sector and half a chunk."""
    await player.write(0, 2 * player.stripe_bytes)
    await player.flush()
    await player.tidy()
    await player.write(SECTOR, SECTOR)
    await player.write(player.stripe_bytes + 1024, CHUNK_BYTES // 2)


async def first_writes(player: Player) -> None:
    """Write chunks for the first time, one after another, with flushes in between."""
    await player.write(0, CHUNK_BYTES)
    await player.flush()
    await player.write(CHUNK_BYTES + SECTOR, 2 * SECTOR)
    await player.write(3 * player.stripe_bytes, SECTOR)
    await player.flush()


async def far_writes(player: Player) -> None:
    """Write chunks for the first time in parts of a huge image, with flushes in between."""
    await player.write(0, 2 * SECTOR)
    await player.flush()
    for part in (HUGE_PARTS // 3, HUGE_PARTS // 3 + 1):
        await player.write(part * HUGE_PART * SECTOR, SECTOR)
    await player.flush()
    await player.tidy()


async def move_a_chunk(player: Player) -> None:
    """Give a stripe content, at home; then move a chunk of it twice, and have it placed."""
    await player.write(0, player.stripe_bytes)
    await player.flush()
    await player.tidy()
    rebundle = player.array.rebundle
    assert rebundle is not None
    role, _ = rebundle.layout.place(Stripe(0), CellIndex(0))
    for _ in range(2):  # the first place follows from the sizes of the members
        free = MemberChunk(int(rebundle.layout.free_chunks(role)[-1]))
        with player.doing("move"):
            assert await rebundle.mover.move([(0, role, free)])
        await player.array.context.journal.place()


def test_while_the_look_up_table_says_that_a_chunk_has_moved() -> None:
    """With checksums: its former place is free then, and has none."""
    scene = Scene("raidx-parity", "partial", move_a_chunk, sums=True)
    layout = table_of(scene.recording.roles.layout)
    assert layout is not None
    begin = scene.recording.roles.regions.data.offset
    shares = [share_region(begin, CHUNK_BYTES, count) for count in layout.counts]

    def page_open(disks: Disks) -> bool:
        return any(
            share.offset <= write.offset_bytes < share.offset + share.length
            for disk, share in zip(disks, shares, strict=True)
            for write in disk.open_writes
        )

    assert scene.moments(page_open) >= 4


@pytest.mark.parametrize("zeroed", [True, False])
def test_after_the_bit_of_a_new_chunk_before_its_data(zeroed: bool) -> None:
    """A chunk after its first write shows zeros or its data, never the content of a used disk."""
    scene = Scene("raid5", "none", first_writes, zeroed=zeroed)

    def bit_open(disks: Disks) -> bool:
        return any(scene.about(w) == "written" for disk in disks for w in disk.open_writes)

    assert scene.moments(bit_open) >= 3


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
def test_while_a_page_of_the_written_map_is_torn(mode: str) -> None:
    """Two prefixes of every open page of the map, on each member by itself and on all.

    The chunks are so far apart that their bits lie in several sectors of one page.
    """
    scene = Scene("raid5", mode, far_writes, huge=True, zeroed=False)
    count = 0
    for index, disks, _event in scene.record.moments():
        pages = [
            (number, at, write)
            for number, disk in enumerate(disks)
            for at, write in enumerate(disk.open_writes)
            if scene.about(write) == "written"
        ]
        kept = [[write.kept for write in disk.open_writes] for disk in disks]
        for sectors in (1, 4) if pages else ():
            torn = [list(decisions) for decisions in kept]
            for number, at, write in pages:
                one = [list(decisions) for decisions in kept]
                one[number][at] = torn[number][at] = (1 << sectors) - 1
                assert write.sectors == 8
                scene.crash(index, disks, one, ())
            scene.crash(index, disks, torn, ())
            count += 1
    assert count >= 4


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
@pytest.mark.parametrize("lost", [None, 0, 1, 2])
def test_during_the_recovery(mode: str, lost: int | None) -> None:
    """Cut the mount at each of its own boundaries; a member may go with the second cut.

    The first cut leaves one of four choices: two of them without a member or with the second lost,
    the other two with the others.
    """
    scene = Scene("raid5", mode, small_overwrite, pace="queued")
    index, disks = scene.end_of("write part")
    count = 0
    for cut, decisions in islice(enumerate(_cuts(disks, 1)), lost in (0, 2), 4, 2):
        first = scene.left(index, disks, decisions, ())
        record = CutRecord()
        first.exempt = judge(first, random.Random(cut), record)
        for at, again, _next in record.moments():
            for kept in (
                [[0] * len(disk.open_writes) for disk in again],
                [[write.kept for write in disk.open_writes] for disk in again],
                [disk.sample(random.Random(at)) for disk in again],
            ):
                second = scene.left(index, again, kept, () if lost is None else (lost,))
                second.exempt = first.exempt
                assert scene.verdicts.of(second, random.Random(f"{cut} {at}")) is None
                count += 1
    assert count > 20


def test_a_record_that_one_log_member_alone_kept_is_made_safe_before_its_places() -> None:
    """The cut left it on one disk; the recovery is cut as well, and that disk is lost then."""
    scene = Scene("raid5", "partial", small_overwrite, width=4)
    index, disks = scene.end_of("write part")
    ring = scene.regions["log"].offset + HEAD_BYTES
    holders = [
        number
        for number, disk in enumerate(disks)
        if any(scene.about(w) == "log" and w.offset_bytes >= ring for w in disk.open_writes)
    ]
    assert len(holders) == 2
    for holder in holders:
        decisions = [
            [write.kept if number == holder else 0 for write in disk.open_writes]
            for number, disk in enumerate(disks)
        ]
        first = scene.left(index, disks, decisions, ())
        record = CutRecord()
        judge(first, random.Random(holder), record)
        for at, again, _next in record.moments():
            for seed in range(4):
                kept = [disk.sample(random.Random(f"{at} {seed}")) for disk in again]
                second = scene.left(index, again, kept, (holder,))
                assert scene.verdicts.of(second, random.Random(seed)) is None
