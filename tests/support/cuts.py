"""Power cuts at each moment of a recorded workload that is written down step by step."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from raidx_fuse.errors import MemberError
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cut, State, ViolationError
from raidx_fuse.members.simulated.powercut import CutRecord, DiskState, Image
from raidx_fuse.members.simulated.virtual_time import run

DECISIONS = ("d", "k", "s1", "s2")
ALL_LOSSES = int(os.environ.get("RAIDX_CRASH_STATES", "5000")) > 5000
Step = Callable[[Player], Awaitable[None]]


def write(first: int, chunks: int) -> Step:
    """Return the step that writes *chunks* chunks from *first* on."""
    return lambda player: player.write(first * CHUNK_BYTES, chunks * CHUNK_BYTES)


def piece(offset: int, length: int) -> Step:
    """Return the step that writes some bytes."""
    return lambda player: player.write(offset, length)


async def flush(player: Player) -> None:
    """Make all that was written durable."""
    await player.flush()


async def unmark(player: Player) -> None:
    """Clear the dirty bitmap, as after a rest."""
    await player.array.context.dirty_bitmap.clean_quiet(all_regions=True)


async def place(player: Player) -> None:
    """Bring all that was committed to its place."""
    await player.array.context.journal.place()


async def fail_to_place(player: Player) -> None:
    """Begin to bring what was committed to its place, and log the parities for it."""
    journal = player.array.context.journal

    async def fail() -> None:
        raise MemberError("disk1", "write", 0, errno.EIO)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal.cells, "write_frozen", fail)
        with pytest.raises(MemberError):
            await journal.place()


def judge(left: Left, generator: random.Random, record: CutRecord | None = None) -> frozenset[int]:
    """Check what a cut *left*; return the sectors for which nothing is promised: `Left.judge`."""
    run(left.judge, generator, record)
    return left.exempt


def left_by(disks: Sequence[DiskState], state: State, numbers: Iterable[int]) -> dict[int, Image]:
    """Return the images that a cut leaves, by number."""
    cuts = zip(numbers, disks, state.cut.decisions(disks), strict=True)
    images = {n: disk.crash(cut) for n, disk, cut in cuts if n not in state.cut.lost}
    return {n: image for n, image in images.items() if is_member(image)}


def crashed_moments(
    recording: Recording, begin: int, width: int, seed: int = 0, each: int = 1
) -> Iterator[str | None]:
    """Crash every *each*-th moment from event *begin* on; yield what broke, None if nothing.

    Without a loss, and with each of the first *width* disks lost; with every second of them, unless
    RAIDX_CRASH_STATES is more than its default.
    """
    verdicts = Verdicts()
    for index, disks, _event in recording.record.moments():
        if index < begin or index % each:
            continue
        for turn, lost in enumerate([(), *((role,) for role in range(width))]):
            if lost and not ALL_LOSSES and (index // each + turn) % 2:
                continue
            state = State(recording.cell, seed, Cut(index, DECISIONS[(index + turn) % 4], lost))
            images = left_by(list(disks), state, range(len(disks)))
            left = Left(recording, index, images, frozenset(lost))
            yield verdicts.what_breaks(left, state)


def crashed_recoveries(
    recording: Recording, begin: int, width: int, seed: int, each: int
) -> Iterator[str | None]:
    """Crash the recovery from every *each*-th moment on; lose one of *width* disks then.

    Yields what broke, None if nothing, for each moment of each recovery.
    """
    verdicts = Verdicts()
    for index, disks, _event in recording.record.moments():
        if index < begin or index % each:
            continue
        state = State(recording.cell, seed, Cut(index, DECISIONS[index // each % 4]))
        left = Left(recording, index, left_by(list(disks), state, range(width)))
        recovery = CutRecord()
        left.exempt = judge(left, state.generator("recovery"), recovery)
        for number, again, _event in recovery.moments():
            lost = (index + number) % width
            cut = State(state.cell, seed, Cut(number, DECISIONS[number % 4], (lost,)))
            images = left_by(list(again), cut, sorted(left.images))
            second = replace(left, images=images, lost=frozenset({lost}))
            yield verdicts.what_breaks(second, cut)


class Verdicts:
    """Judges each state that cuts leave once: most cuts leave what another one has left, too.

    Of the cuts at all moments of a recovery and of what follows, three in four leave disks, losses
    and promises as an earlier one did, and the same array would recover in the same way.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, str | None] = {}

    def what_breaks(self, left: Left, state: State) -> str | None:
        """Return the promise that is broken, or None."""
        return self.of(left, state.generator("look"))

    def of(self, left: Left, generator: random.Random) -> str | None:
        """Return the promise that is broken, or None; *generator* draws the additional checks."""
        key = _key(left)
        if key not in self._known:
            try:
                judge(left, generator)
            except ViolationError as error:
                self._known[key] = str(error)
            else:
                self._known[key] = None
        return self._known[key]


def _key(left: Left) -> Hashable:
    """Return what the verdict on *left* depends on: content, losses and promises, no moment."""
    assert not left.recording.has_poison, "what cannot be read is told by the moment"
    images = tuple((number, _content(image)) for number, image in sorted(left.images.items()))
    away = tuple(roles.away(left.lost, left.moment) for roles in left.recording.arrays)
    promises = tuple(
        (one.sizes, one.allowed, one.in_flight, one.full_in_flight, one.loose, one.given_up)
        for one in (history.at(left.moment) for history in left.recording.volumes)
    )
    roles = tuple(
        (
            *(array.tolerance(left.moment), array.is_damaged(left.moment)),
            tuple((role, array.holder(role, left.moment)) for role in array.present(left.moment)),
        )
        for array in left.recording.arrays
    )
    return images, left.lost, left.unread, left.exempt, away, promises, roles


def _content(image: Image) -> Hashable:
    if isinstance(image, bytearray):
        return hash(bytes(image))
    written = image.extents(0, len(image))
    return hash(tuple((at, image[at : at + length]) for at, length in written))
