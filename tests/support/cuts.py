"""Power cuts at each moment of a recorded workload that is written down step by step."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import pytest

from raidx_fuse.errors import MemberError
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.oracle import Left, judge
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cut, State, ViolationError
from raidx_fuse.members.simulated.powercut import DiskState
from raidx_fuse.members.simulated.sparse import Image

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
        patched.setattr(journal, "_write_frozen", fail)
        with pytest.raises(MemberError):
            await journal.place()


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
    for index, disks, _event in recording.record.moments():
        if index < begin or index % each:
            continue
        for turn, lost in enumerate([(), *((role,) for role in range(width))]):
            if lost and not ALL_LOSSES and (index // each + turn) % 2:
                continue
            state = State(recording.cell, seed, Cut(index, DECISIONS[(index + turn) % 4], lost))
            images = left_by(list(disks), state, range(len(disks)))
            left = Left(recording, index, images, frozenset(lost))
            yield what_breaks(left, state)


def what_breaks(left: Left, state: State) -> str | None:
    """Return the promise that is broken, or None."""
    try:
        judge(left, state.generator("look"))
    except ViolationError as error:
        return str(error)
    return None
