"""Crashing one recorded workload: moments x decisions x losses; recoveries are crashed, too."""

from __future__ import annotations

import random
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import POOL
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.pairs.play import is_pair, record_pair
from raidx_fuse.lab.crash.recording import TEMPTING, Recording
from raidx_fuse.lab.crash.state import DROPPED, KEPT, Cell, Cut, State, ViolationError
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.members.simulated.powercut import CutRecord, DiskState, Image, count_cuts
from raidx_fuse.members.simulated.virtual_time import run

ENUMERATED_MAX = 4  # up to so many combinations of whole writes, all are tried
DRAWN = 3  # random decisions where there are more combinations; one of them tears all writes
LOST_SHARE = 0.55  # of the states: members are lost in the cut
AGAIN_SHARE = 0.04  # of the states: their recovery is crashed as well
AGAIN_LOST_SHARE = 0.7  # of those: members are lost in the second cut, if none was in the first one
BACK_SHARE = 0.3  # of the members that the first cut took: they are there after a later one
UNREAD_SHARE = 0.15  # of the members that a cut would take: only their log cannot be read then
AGAIN_MOMENTS, AGAIN_LATER = 8, 2  # how many moments of a recovery; of those: after the mount
LEVELS_MAX, THIRD_SHARE = 2, 0.04  # recoveries in a row that are cut
POOL_STATES_MAX = 24  # of one workload on a pool
LAST_KEPT = "l1"  # where a theme tempts: all but the last record is dropped, and recovery is cut


class Counts(Protocol):
    """What counts states."""

    def count(self, state: State, verb: str, what: str | None) -> None:
        """Count *state*; *what* is the promise that it breaks, or None."""


def crash_one(
    cell: Cell,
    seed: int,
    budget: int,
    generator: random.Random,
    counts: Counts,
    focus: str = "",
) -> None:
    """Crash workload *seed* about *budget* times; *generator* draws the states.

    With *focus*, only moments of that verb.
    """
    recorded = recorded_or_failure(cell, seed)
    if isinstance(recorded, str):
        counts.count(State(cell, seed, Cut(0, KEPT)), "running", recorded)
        return
    if cell.theme == POOL:
        budget = min(budget, POOL_STATES_MAX)
    crash_recorded(recorded, budget, generator, counts, focus)


def crash_recorded(
    recorded: Recording,
    budget: int,
    generator: random.Random,
    counts: Counts,
    focus: str = "",
) -> None:
    """Crash *recorded* about *budget* times, as `crash_one` does."""
    run(_crash_at_moments, recorded, budget, generator, counts, focus)


def replay_one(state: State) -> tuple[str, str | None]:
    """Run exactly *state* again; return its verb and the broken promise, None if there is none."""
    recorded = recorded_or_failure(state.cell, state.seed)
    if isinstance(recorded, str):
        return "running", recorded
    verb = recorded.verb_at(state.cut.moment)
    for index, disks, _event in recorded.record.moments():
        if index == state.cut.moment:
            return verb, run(_what_breaks, recorded, disks, state)
    return verb, f"the workload has no moment {state.cut.moment}: the code has changed"


def recorded_or_failure(cell: Cell, seed: int) -> Recording | str:
    """Return the workload of *seed*, or how it fails without a power cut: a violation, too."""
    try:
        return record_pair(cell, seed) if is_pair(cell) else record_workload(cell, seed)
    except Exception as error:
        return f"the workload fails while running: {error!r}\n{traceback.format_exc()}"


async def _crash_at_moments(
    recorded: Recording,
    budget: int,
    generator: random.Random,
    counts: Counts,
    focus: str,
) -> None:
    """Crash *recorded* about *budget* times and check what is left, all in one run of trio."""
    weights = recorded.weights()
    if focus:
        weights = [w * (recorded.verb_at(moment) == focus) for moment, w in enumerate(weights)]
    ahead = sum(weights)
    for index, disks, _event in recorded.record.moments():
        if budget <= 0:
            return
        # There are more moments than states: visit a random share of them.
        here = weights[index]
        visit = generator.random() * ahead * (DRAWN + 2) <= here * (budget + DRAWN + 2)
        ahead -= here
        if not visit or (focus and not here):
            continue
        decisions = _decisions(disks, generator)
        if here == TEMPTING:
            decisions = [LAST_KEPT, generator.choice(decisions)]
        for decision in decisions:
            lost: tuple[int, ...] = ()
            unread: tuple[int, ...] = ()
            if generator.random() < LOST_SHARE:
                lost = recorded.losses(index, generator)
                if not recorded.is_pool and generator.random() < UNREAD_SHARE:
                    lost, unread = (), lost
            cut = Cut(index, decision, lost, (), unread)
            state = State(recorded.cell, recorded.seed, cut)
            verb = recorded.verb_at(index)
            counts.count(state, verb, await _what_breaks(recorded, disks, state))
            budget -= 1
            if generator.random() < AGAIN_SHARE or decision == LAST_KEPT:
                left = _left(recorded, disks, state.cut)
                budget -= await _crash_recovery(recorded, disks, left, state, generator, counts)


def _decisions(disks: Sequence[DiskState], generator: random.Random) -> list[str]:
    """Return the decisions to try at one moment: all combinations if they are few."""
    count = count_cuts(disks, torn=False)
    torn = f"t{generator.getrandbits(24)}"
    if count == 1:
        return [KEPT]
    if count <= ENUMERATED_MAX:
        return [*(f"e{number}" for number in range(count)), torn]
    drawn = [f"{kind}{generator.getrandbits(24)}" for kind in "sc"[: DRAWN - 1]]
    return [generator.choice((DROPPED, KEPT)), *drawn, torn]


def _images(
    recorded: Recording, disks: Sequence[DiskState], cut: Cut, numbers: Sequence[int]
) -> dict[int, Image]:
    """Return what *cut* leaves of *disks*, by number; lost disks and non-members are left out.

    The images use the memory of the images that the last call for *recorded* returned.
    """
    images = {}
    memory = recorded.memory
    for number, disk, decisions in zip(numbers, disks, cut.decisions(disks), strict=True):
        if number not in cut.lost:
            image = memory[number] = disk.crash(decisions, into=memory.get(number))
            if is_member(image):
                images[number] = image
    return images


def _left(recorded: Recording, disks: Sequence[DiskState], cut: Cut) -> Left:
    images = _images(recorded, disks, cut, range(len(disks)))
    return Left(recorded, cut.moment, images, frozenset(cut.lost), cut.unread)


async def _what_breaks(recorded: Recording, disks: Sequence[DiskState], state: State) -> str | None:
    """Return the promise that *state* breaks, or None."""
    left = _left(recorded, disks, state.cut)
    try:
        for number, cut in enumerate(state.again):
            before = replace(state, again=state.again[:number])
            record = await _record_recovery(left, before)
            for index, again, _event in record.moments():
                if index == cut.moment:
                    left = _left_again(recorded, disks, left, again, before, cut)
                    break
            else:
                return f"the recovery has no moment {cut.moment}: the code has changed"
        await left.judge(state.generator("look"))
    except ViolationError as error:
        return str(error)
    return None


async def _record_recovery(left: Left, state: State) -> CutRecord:
    """Recover from *left*, which *state* has led to; return the record."""
    record = CutRecord()
    await left.judge(state.generator("recovery"), record)
    return record


def _left_again(
    recorded: Recording,
    disks: Sequence[DiskState],
    left: Left,
    again: Sequence[DiskState],
    before: State,
    cut: Cut,
) -> Left:
    """Return what *cut* left of *again*, the disks of *left* during the recovery from *before*.

    *disks* are those at the moment of the first cut.
    """
    images = _images(recorded, again, cut, sorted(left.images))
    decisions = before.cut.decisions(disks) if cut.back else []
    for number in cut.back:
        image = disks[number].crash(decisions[number])
        if is_member(image):
            images[number] = image
    return left.again(images, cut)


async def _crash_recovery(
    recorded: Recording,
    disks: Sequence[DiskState],
    left: Left,
    state: State,
    generator: random.Random,
    counts: Counts,
) -> int:
    """Crash the recovery from *state* at some of its boundaries; return the number of states.

    *disks* are those at the moment of the first cut. Some of the recoveries from there are crashed
    as well.
    """
    verb = recorded.verb_at(state.cut.moment)
    try:
        record = await _record_recovery(left, state)
    except ViolationError as error:
        counts.count(state, verb, f"the recovery fails: {error}")
        return 1
    chosen = _moments_of(record, generator)
    number = 0
    for index, again, _event in record.moments():
        if index not in chosen:
            continue
        cut = _draw_again(recorded, state, index, again, generator)
        crashed = replace(state, again=(*state.again, cut))
        next_left = _left_again(recorded, disks, left, again, state, cut)
        if len(crashed.again) < LEVELS_MAX and generator.random() < THIRD_SHARE:
            number += await _crash_recovery(recorded, disks, next_left, crashed, generator, counts)
            continue
        what: str | None = None
        try:
            await next_left.judge(crashed.generator("look"))
        except ViolationError as error:
            what = str(error)
        counts.count(crashed, verb, what)
        number += 1
    return number


def _moments_of(record: CutRecord, generator: random.Random) -> set[int]:
    """Draw the moments at which a recovery is cut: most of them before the array is mounted."""
    events = record.events
    mounted = next((n for n, event in enumerate(events) if event.operation == "note"), 0)
    recovering = range(mounted + 1)
    chosen = generator.sample(recovering, min(AGAIN_MOMENTS - AGAIN_LATER, len(recovering)))
    later = range(mounted + 1, len(events) + 1)
    chosen += generator.sample(later, min(AGAIN_MOMENTS - len(chosen), len(later)))
    return set(chosen)


def _draw_again(
    recorded: Recording,
    state: State,
    index: int,
    disks: Sequence[DiskState],
    generator: random.Random,
) -> Cut:
    """Draw a cut of the recovery from *state* at moment *index* of its *disks*."""
    decision = generator.choice(_decisions(disks, generator))
    gone = any(cut.lost for cut in (state.cut, *state.again))
    lost: tuple[int, ...] = ()
    if not gone and generator.random() < AGAIN_LOST_SHARE:
        lost = recorded.losses(state.cut.moment, generator)
    back: tuple[int, ...] = ()
    if not recorded.is_pool and state.cut.lost and not any(cut.back for cut in state.again):
        back = tuple(n for n in state.cut.lost if generator.random() < BACK_SHARE)
    return Cut(index, decision, lost, back)
