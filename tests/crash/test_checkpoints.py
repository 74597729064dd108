"""Power cuts at every boundary while parity follows at the checkpoint (journal/unsettled.py).

Each moment of a story is crashed with members lost (as in test_streams.py), and so is the recovery
from it. Two laws are broken, to see that it is noticed; the others are among the planted bugs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from raidx_fuse.journal.recovery import ParityReplay
from raidx_fuse.journal.unsettled import Unsettled
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.workload import record_workload
from tests.support.cuts import (
    Step,
    crashed_moments,
    crashed_recoveries,
    fail_to_place,
    flush,
    piece,
    place,
    write,
)

WIDTH = 4  # three data cells
CELL = Cell("raid5", "partial", theme="checkpoints")
AT = 3 * CHUNK_BYTES  # of stripe 1, which has the chunks 3 to 5


def beside_a_checkpoint(*steps: Step) -> Step:
    """Return *steps* done when the checkpoint has frozen its layer, before it settles it."""

    async def step(player: Player) -> None:
        journal = player.array.context.journal
        freeze = journal._freeze

        async def frozen() -> None:
            await freeze()
            patched.undo()
            for beside in steps:
                await beside(player)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal, "_freeze", frozen)
            await journal.place()

    return step


def before_places(*steps: Step) -> Step:
    """Return *steps* done when the checkpoint has settled its layer, before it writes places."""

    async def step(player: Player) -> None:
        journal = player.array.context.journal
        write_frozen = journal.cells.write_frozen

        async def late() -> None:
            patched.undo()
            for beside in steps:
                await beside(player)
            await write_frozen()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journal.cells, "write_frozen", late)
            await journal.place()

    return step


async def settle(player: Player) -> None:
    """Settle stripe 1 as a degraded read would."""
    context = player.array.context
    await context.locks.acquire(1)
    await context.journal.settle((1,))
    context.locks.release(1)


async def lose(player: Player) -> None:
    """Fail the member of the first cell of stripe 1, and read what it had."""
    await player.array.fail_disk(player.layout.roles(1)[0])
    await player.compare()


SMALL, BESIDE = piece(AT, 512), piece(AT + CHUNK_BYTES + 256, 512)
STORIES: dict[str, tuple[Step, ...]] = {
    "placed": (SMALL, flush, place),
    "twice in a stripe": (SMALL, BESIDE, SMALL, piece(AT + 100, 5000), flush, place),
    "while it is settled": (SMALL, beside_a_checkpoint(SMALL, BESIDE, flush), flush, place),
    "while it is placed": (SMALL, BESIDE, before_places(SMALL, BESIDE, flush), flush, place),
    "after a checkpoint failed": (SMALL, fail_to_place, SMALL, BESIDE, flush, place),
    "settled, then again": (SMALL, settle, BESIDE, flush, place),
    "settled beside": (SMALL, beside_a_checkpoint(SMALL, settle, SMALL, flush), flush, place),
    "whole over it": (SMALL, write(3, 3), flush, SMALL, flush, place),
    "filled over it": (SMALL, write(3, 2), flush, write(5, 1), flush, place),
    "two stripes": (SMALL, piece(2 * AT - 700, 1400), flush, place, piece(AT, 700), flush, place),
}


def record(story: Sequence[Step], seed: int) -> tuple[Recording, int]:
    """Return the record of a story, and the event with which it begins."""
    begin = 0

    async def script(player: Player) -> None:
        nonlocal begin
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        await place(player)
        await player.flush()
        begin = player.event
        for step in story:
            await step(player)
            await player.compare()

    shape = Shape(WIDTH, stripes=3, pace=("inline", "uneven")[seed % 2])
    return record_workload(CELL, seed, script, shape), begin


def crashed(story: str, seed: int = 0, each: int = 1) -> Iterator[str | None]:
    """Crash each moment of a story, with and without a loss; yield what broke, None if nothing."""
    return crashed_moments(*record(STORIES[story], seed), WIDTH, seed, each)


@pytest.mark.parametrize("story", STORIES)
def test_every_moment_is_crashed_with_and_without_a_loss(story: str) -> None:
    found = list(crashed(story, seed=sorted(STORIES).index(story) % 2))
    assert [what for what in found if what is not None] == []
    assert len(found) > 50


def test_a_recovery_that_is_cut_in_its_turn() -> None:
    found = list(crashed_recoveries(*record(STORIES["while it is placed"], 0), WIDTH, 0, each=7))
    assert [what for what in found if what is not None] == []
    assert len(found) > 50


def test_a_member_lost_between_data_and_parity_costs_nothing() -> None:
    async def script(player: Player) -> None:
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        for step in (SMALL, BESIDE, beside_a_checkpoint(SMALL, lose, BESIDE)):
            await step(player)
        assert not player.array.context.journal.unsettled
        await player.compare()

    record_workload(CELL, 0, script, Shape(WIDTH, stripes=3, pace="inline"))


# -- laws, broken --------------------------------------------------------------------------------


def noticed(*stories: str) -> bool:
    """Return whether any crash of *stories* breaks a promise, or the story itself fails."""
    try:
        return any(any(crashed(story)) for story in stories)
    except Exception:
        return True


def test_data_without_parity_over_data_with_parity_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law 2."""
    monkeypatch.setattr(Unsettled, "admits", lambda *_: True)
    assert noticed("settled, then again")


def test_a_recovery_that_computes_what_was_settled_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its base may be half written by then."""
    monkeypatch.setattr(ParityReplay, "_release", lambda *_: None)
    assert noticed("placed", "while it is placed")


def test_a_recovery_that_logs_no_parity_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParityReplay, "settled", lambda *_: iter(()))
    assert any(crashed_recoveries(*record(STORIES["placed"], 0), WIDTH, 0, each=1))
