"""Crashing one workload on two arrays: boundaries x decisions x losses, and recoveries as well."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from raidx_fuse.lab.crash.pool.judge import PoolLeft, judge
from raidx_fuse.lab.crash.pool.player import PoolRecording, record_pool
from raidx_fuse.lab.crash.state import KEPT, Cell, Cut, State, ViolationError
from raidx_fuse.members.simulated.powercut import CutRecord, DiskState
from raidx_fuse.members.simulated.sparse import Image
from raidx_fuse.members.simulated.virtual_time import run

POOL = "pool"
"""The name of the theme."""

LOST_SHARE = 0.5  # of the states
AGAIN_SHARE = 0.04  # of the states: their recovery is crashed as well
AGAIN_MOMENTS = 5
MOVING = 4  # weight of a moment at which a volume moves; other moments have 1
PER_MOMENT = 4  # states of a moment, about
STATES_MAX = 24  # of one workload

Decide = Callable[[Sequence[DiskState], random.Random], list[str]]


class Counts(Protocol):
    """What counts states."""

    def count(self, state: State, verb: str, what: str | None) -> None:
        """Count *state*; *what* is the promise that it breaks, or None."""


def crash_pool(
    cell: Cell, seed: int, budget: int, generator: random.Random, counts: Counts, decide: Decide
) -> None:
    """Crash workload *seed* at most about *budget* times; *decide* draws decisions for a moment."""
    try:
        recording = record_pool(cell, seed)
    except Exception as error:  # a workload that fails without a power cut is a violation, too
        what = f"the workload fails while running: {error!r}\n{traceback.format_exc()}"
        counts.count(State(cell, seed, Cut(0, KEPT)), "running", what)
        return
    run(_crash_at_moments, recording, min(budget, STATES_MAX), generator, counts, decide)


def replay_pool(state: State) -> tuple[str, str | None]:
    """Run exactly *state* again; return its verb and the broken promise, None if there is none."""
    recording = record_pool(state.cell, state.seed)
    verb = recording.verb_at(state.cut.moment)
    for index, disks, _event in recording.record.moments():
        if index == state.cut.moment:
            return verb, run(_what_breaks, recording, disks, state)
    return verb, f"the workload has no moment {state.cut.moment}: the code has changed"


async def _crash_at_moments(
    recording: PoolRecording,
    budget: int,
    generator: random.Random,
    counts: Counts,
    decide: Decide,
) -> None:
    moments = range(len(recording.record.events) + 1)
    weights = [MOVING if recording.verb_at(m) in ("move", "swap") else 1 for m in moments]
    left = sum(weights)
    for index, disks, _event in recording.record.moments():
        if budget <= 0:
            return
        here = weights[index]
        visit = generator.random() * left * PER_MOMENT <= here * (budget + PER_MOMENT)
        left -= here
        if not visit:
            continue
        for decision in decide(disks, generator):
            lost = recording.losses(index, generator) if generator.random() < LOST_SHARE else ()
            state = State(recording.cell, recording.seed, Cut(index, decision, lost))
            verb = recording.verb_at(index)
            counts.count(state, verb, await _what_breaks(recording, disks, state))
            budget -= 1
            if generator.random() < AGAIN_SHARE:
                left_by = _left(recording, disks, state.cut)
                budget -= await _crash_recovery(left_by, state, verb, generator, counts, decide)


def _left(recording: PoolRecording, disks: Sequence[DiskState], cut: Cut) -> PoolLeft:
    numbers = range(len(disks))
    return PoolLeft(recording, cut.moment, _images(recording, disks, cut, numbers))


def _images(
    recording: PoolRecording, disks: Sequence[DiskState], cut: Cut, numbers: Sequence[int]
) -> dict[int, Image]:
    images = {}
    memory = recording.memory
    for number, disk, decisions in zip(numbers, disks, cut.decisions(disks), strict=True):
        if number not in cut.lost:
            image = memory[number] = disk.crash(decisions, into=memory.get(number))
            images[number] = image
    return images


async def _what_breaks(
    recording: PoolRecording, disks: Sequence[DiskState], state: State
) -> str | None:
    """Return the promise that *state* breaks, or None."""
    left = _left(recording, disks, state.cut)
    try:
        if state.again is None:
            await judge(left, state.generator("look"))
            return None
        record = await _record_recovery(left, state)
        for index, again, _event in record.moments():
            if index == state.again.moment:
                await _judge_again(left, again, state)
                return None
        return f"the recovery has no moment {state.again.moment}: the code has changed"
    except ViolationError as error:
        return str(error)


async def _record_recovery(left: PoolLeft, state: State) -> CutRecord:
    record = CutRecord()
    first = replace(state, again=None)
    await judge(left, first.generator("recovery"), record)
    return record


async def _judge_again(left: PoolLeft, disks: Sequence[DiskState], state: State) -> None:
    assert state.again is not None
    images = _images(left.recording, disks, state.again, sorted(left.images))
    await judge(replace(left, images=images), state.generator("look"))


async def _crash_recovery(
    left: PoolLeft,
    state: State,
    verb: str,
    generator: random.Random,
    counts: Counts,
    decide: Decide,
) -> int:
    """Crash the recovery of what *state* left at some boundaries; return the number of states."""
    try:
        record = await _record_recovery(left, state)
    except ViolationError as error:
        counts.count(state, verb, f"the recovery fails: {error}")
        return 1
    moments = len(record.events) + 1
    chosen = set(generator.sample(range(moments), min(AGAIN_MOMENTS, moments)))
    for index, again, _event in record.moments():
        if index not in chosen:
            continue
        lost: tuple[int, ...] = ()
        if not state.cut.lost and generator.random() < LOST_SHARE:
            lost = left.recording.losses(state.cut.moment, generator)
        crashed = replace(state, again=Cut(index, generator.choice(decide(again, generator)), lost))
        what: str | None = None
        try:
            await _judge_again(left, again, crashed)
        except ViolationError as error:
            what = str(error)
        counts.count(crashed, verb, what)
    return len(chosen)
