"""Power cuts at every boundary while sequential requests end inside stripes.

Only the data of such a stripe is logged, and its last part may go past the log
(engine/write/full_stripe.py). Each moment is crashed with every second member lost, or with each
one if RAIDX_CRASH_STATES is more than its default, and so is the recovery from it. One rule that
makes this safe is broken, to see that it is noticed; the others are among the planted bugs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.full_stripe import StripeEnd
from raidx_fuse.engine.write.pending import PendingWrite, complete_locked
from raidx_fuse.journal.recovery import ParityReplay
from raidx_fuse.journal.ring import HEAD_BYTES, Tail
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cell, Cut, State
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.cuts import (
    Step,
    Verdicts,
    crashed_moments,
    crashed_recoveries,
    fail_to_place,
    flush,
    left_by,
    piece,
    place,
    unmark,
    write,
)

WIDTH = 4  # three data cells


def overtaken(first: int, chunks: int) -> Step:
    """Return a write that waits for the log when what it goes on from is placed."""

    async def step(player: Player) -> None:
        journal = player.array.context.journal
        commit = journal.commit_data
        overtakes = 0

        async def late(*changes: Any) -> bool:
            nonlocal overtakes
            if not overtakes:
                overtakes += 1
                await journal.place()
            return await commit(*changes)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal, "commit_data", late)
            patched.setattr(StripeEnd, "write", lambda *_: None)  # which would not use the log
            await write(first, chunks)(player)
        assert overtakes

    return step


def finished_beside(first: int, chunks: int) -> Step:
    """Return a write that begins while a placement logs the parity of what it goes on from."""

    async def step(player: Player) -> None:
        journal = player.array.context.journal
        append = journal.append

        async def late(*record: Any) -> tuple[int, bytes]:
            nursery.start_soon(write(first, chunks), player)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            patched.undo()
            return await append(*record)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal, "append", late)
            async with trio.open_nursery() as nursery:
                await journal.place()

    return step


def closed_in_part(first: int, chunks: int, between: Step | None = None) -> Step:
    """Return the last part of stripe 1, which all but the last member take at once.

    *between* comes before the last one takes it too.
    """

    async def step(player: Player) -> None:
        disk = player.disks[player.layout.roles(1)[-1]]
        player.array.context.policies.use("rmw")  # which reads what some have no more
        at_once = disk.try_writev
        late = 0

        def try_writev(offset: int, buffers: Sequence[Any]) -> bool:
            nonlocal late
            late += offset >= player.regions.data.offset
            return offset < player.regions.data.offset and at_once(offset, buffers)

        async def late_finish(context: ArrayContext, begun: PendingWrite) -> None:
            patched.undo()
            if between is not None:
                await between(player)
            await complete_locked(context, begun)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(disk, "try_writev", try_writev)
            patched.setattr("raidx_fuse.engine.write.write.complete_locked", late_finish)
            await write(first, chunks)(player)
        assert late == 1 or player.shape.pace == "uneven"  # then another may be late before it

    return step


def place_with_a_late_tail(*between: Step) -> Step:
    """Return a placement; *between* come when all is in its place and the log has it still."""

    async def step(player: Player) -> None:
        journal = player.array.context.journal
        move_tail = journal.ring.move_tail

        async def late(tail: Tail) -> None:
            for part in between:
                await part(player)
            await move_tail(tail)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal.ring, "move_tail", late)
            await journal.place()

    return step


# Stripe 1 is begun, and perhaps completed; what happens to it meanwhile differs.
STORIES: dict[str, tuple[Step, ...]] = {
    "placed unfinished": (write(0, 4), flush, place),
    "completed": (write(0, 4), flush, write(4, 5), place),
    "completed late": (write(0, 4), place, write(4, 2), flush, place),
    "in three": (write(3, 1), write(4, 1), flush, write(5, 1), place),
    "a piece behind": (write(0, 4), piece(4 * CHUNK_BYTES + 512, 700), flush, place),
    "a piece before": (write(0, 5), piece(3 * CHUNK_BYTES, 512), flush, write(5, 1), place),
    "begun again": (write(0, 4), write(4, 2), write(0, 4), flush, place),
    "overtaken": (write(0, 4), overtaken(4, 2), flush, place),
    "finished beside": (write(0, 4), finished_beside(4, 2), flush, place),
    "closed after a placement failed": (
        *(write(0, 4), fail_to_place, flush),
        *(write(0, 4), write(4, 2), flush, write(0, 1), flush),
    ),
    "closed in part": (write(0, 5), flush, closed_in_part(5, 1), flush, place),
    "closed in part, then placed": (
        *(write(0, 5), flush, closed_in_part(5, 1, place), flush, place),
    ),
    "closed twice": (
        *(unmark, write(0, 4), write(4, 2), flush),
        *(write(0, 4), flush, write(4, 2), place),
    ),
    "closed over a piece": (piece(5 * CHUNK_BYTES, 512), write(0, 4), write(4, 2), flush, place),
    "closed over a record with its parity": (
        *(write(0, 4), write(4, 2), flush, write(4, 2)),  # most of a stripe that is not open
        *(place_with_a_late_tail(write(3, 1), write(4, 2), flush), place),
    ),
    "a piece of what is closed": (
        *(write(0, 4), write(4, 2), flush),
        *(piece(4 * CHUNK_BYTES, 512), flush, place),
    ),
    "a piece of what was closed just now": (
        *(write(0, 4), flush, write(4, 2), piece(4 * CHUNK_BYTES, 512), place),
    ),
}


def record(story: str, seed: int) -> tuple[Recording, int]:
    """Return the record of a story, and the event with which it begins."""
    begin = 0

    async def script(player: Player) -> None:
        nonlocal begin
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        await place(player)
        await player.flush()
        begin = player.event
        for step in STORIES[story]:
            await step(player)

    shape = Shape(WIDTH, stripes=3, pace=("inline", "uneven")[seed % 2])
    return record_workload(Cell("raid5", "partial"), seed, script, shape), begin


def crashed(story: str, seed: int) -> Iterator[str | None]:
    """Crash every moment of a story, with and without a loss; yield what broke, None if nothing."""
    return crashed_moments(*record(story, seed), WIDTH, seed)


def crashed_to_the_log(story: str, seed: int) -> Iterator[str | None]:
    """Crash every moment of a story so that of what is under way the records of the log stay.

    No home place has what no flush has covered; each member is lost in turn.
    """
    recording, begin = record(story, seed)
    verdicts = Verdicts()
    log = recording.roles.regions.log
    records = range(log.offset + HEAD_BYTES, log.end)
    for index, disks, _event in recording.record.moments():
        for lost in range(WIDTH) if index >= begin else ():
            state = State(recording.cell, seed, Cut(index, "d", (lost,)))
            images = {
                role: disk.crash([w.kept * (w.offset_bytes in records) for w in disk.open_writes])
                for role, disk in enumerate(disks)
                if role != lost
            }
            left = Left(recording, index, images, frozenset({lost}))
            yield verdicts.what_breaks(left, state)


# Each story at the pace at which planted bugs were found (MUTATIONS.md), and each kind of step once
# at the other one as well: pieces, all that goes on beside or inside a placement, closings.
INLINE, UNEVEN = 0, 1
PACES = [
    *(pytest.param(story, INLINE, id=f"{story}-inline") for story in STORIES),
    *(
        pytest.param(story, UNEVEN, id=f"{story}-uneven")
        for story in (
            *("a piece behind", "overtaken", "finished beside", "closed after a placement failed"),
            *("closed in part, then placed", "closed twice"),
            "closed over a record with its parity",
        )
    ),
]


@pytest.mark.parametrize(("story", "seed"), PACES)
def test_a_stripe_that_is_filled_by_several_requests(story: str, seed: int) -> None:
    found = list(crashed(story, seed))
    assert [what for what in found if what is not None] == []
    assert len(found) > 50


@pytest.mark.parametrize("story", [name for name in STORIES if "closed" in name])
def test_a_log_that_is_further_than_the_home_places(story: str) -> None:
    found = list(crashed_to_the_log(story, 0))
    assert [what for what in found if what is not None] == []
    assert len(found) > 50


@pytest.mark.parametrize("story", ["placed unfinished", "in three"])
def test_a_recovery_that_is_cut_in_its_turn(story: str) -> None:
    found = list(crashed_recoveries(*record(story, 0), WIDTH, 0, each=5))
    assert [what for what in found if what is not None] == []
    assert len(found) > 50


def test_a_recovery_that_is_cut_again_and_again_logs_the_parity_once() -> None:
    """Else the records would in the end reach round the ring."""
    recording, begin = record("placed unfinished", 0)
    grown = 0
    for index, disks, _event in recording.record.moments():
        if index < begin:
            continue
        state = State(recording.cell, 0, Cut(index, "k"))
        images = left_by(list(disks), state, range(WIDTH))
        found = []
        for _ in range(3):  # each time cut when its records are durable and nothing is placed
            again = CutRecord()
            members = [
                SectorDisk(image.copy(), random.Random(0), name=f"disk{n}", record=again)
                for n, image in sorted(images.items())
            ]
            found.append(run(_records_of, members))
            log = recording.roles.regions.log
            cuts = [
                number
                for number, event in enumerate(again.events)
                if event.operation == "write"
                and log.offset + HEAD_BYTES <= event.offset_bytes < log.end
            ]
            if not cuts:
                break
            cut = next(  # the flush behind the last record is through
                number
                for number, event in enumerate(again.events)
                if number > max(cuts) and event.operation == "write"
            )
            for number, after, _event in again.moments():
                if number == cut:
                    images = left_by(list(after), state, range(WIDTH))
        assert max(found) <= found[0] + 1
        grown += max(found) > found[0]
    assert grown, "no recovery was cut behind its record of the parity"


async def _records_of(members: list[SectorDisk]) -> int:
    async with open_array(members) as array:
        assert array.replayed is not None
        return array.replayed.records


# -- a rule, broken -------------------------------------------------------------------------------


def test_a_recovery_that_logs_no_parity_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParityReplay, "settled", lambda *_: iter(()))
    assert any(crashed_recoveries(*record("placed unfinished", 0), WIDTH, 0, each=5))


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ((write(0, 4),), (write(0, 4), write(4, 2))),
        ((write(3, 2), closed_in_part(5, 1)), (write(3, 2), write(5, 1))),
    ],
    ids=["begun", "closed in part"],
)
def test_a_stripe_that_is_closed_while_older_content_is_placed_is_not_lost(
    before: Sequence[Step], again: Sequence[Step]
) -> None:
    """What the placement brings late would lie over it."""

    async def script(player: Player) -> None:
        await player.write(0, player.stripes * player.stripe_bytes)
        for step in before:
            await step(player)
        journal = player.array.context.journal
        write_frozen = journal.cells.write_frozen

        async def late() -> None:
            for step in again:
                await step(player)
            await player.compare()
            await write_frozen()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal.cells, "write_frozen", late)
            await journal.place()
        await player.compare()

    record_workload(Cell("raid5", "partial"), 0, script, Shape(WIDTH, stripes=3, pace="inline"))
