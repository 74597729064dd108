"""A rig that grows: small members, windows of some stripes, and writes beside it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from raidx_fuse.growth import LIVE, SURROGATE
from raidx_fuse.jobs.grow import Grow
from raidx_fuse.members.faulty import FaultMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.testing.arrays import Rig
from raidx_fuse.testing.spy import SpyRig
from raidx_fuse.testing.virtual import run

CHUNK = 4096


class SmallRig(Rig):
    """A rig with some seventy chunks on a member."""

    def __init__(self, layout: str = "raid4", width: int = 4, **options: Any) -> None:
        super().__init__(layout, width, chunk_bytes=CHUNK, **options)
        self.member_bytes = 640 << 10


def small_spies() -> SpyRig:
    """Return a rig that logs what its members do."""
    rig = SpyRig("raid4", 4, chunk_bytes=CHUNK)
    rig.member_bytes = 640 << 10
    return rig


def ram_of(member: FaultMember) -> RamMember:
    """Return the memory under a member of a rig that is not slow."""
    assert isinstance(member.inner, RamMember)
    return member.inner


def job_of(rig: Rig) -> Grow:
    """Return the growth that runs."""
    assert rig.array is not None
    (job,) = (job for job in rig.array.jobs.running() if isinstance(job, Grow))
    return job


async def grow(rig: Rig, added: int, *, windows: int = 4, parity: str = LIVE) -> Grow:
    """Begin a growth by *added* members, and perhaps a surrogate, whose windows are small."""
    assert rig.array is not None
    surrogate = rig.new_member() if parity == SURROGATE else None
    members = [rig.new_member() for _ in range(added)]
    if surrogate is not None:
        await rig.array.grow(members, surrogate=surrogate)
        members.append(surrogate)
    else:
        await rig.array.grow(members, parity)
    rig.members += members
    rig.width += added
    job = job_of(rig)
    job._batch = windows
    return job


def enlarge(rig: Rig) -> None:
    """Let the model follow the image."""
    assert rig.array is not None
    rig.model.extend(bytes(rig.array.size_bytes - len(rig.model)))


async def fill(rig: Rig, seed: int = 1, share: float = 1.0) -> None:
    """Write a *share* of the image, chunk by chunk; all of it in large writes."""
    assert rig.array is not None
    rng = random.Random(seed)
    size = len(rig.model) if share == 1.0 else CHUNK
    for at in range(0, len(rig.model), size):
        if share == 1.0 or rng.random() < share:
            data = rng.randbytes(min(size, len(rig.model) - at))
            await rig.array.write(at, data)
            rig.model[at : at + len(data)] = data


async def scribble(rig: Rig, task: int, tasks: int, over: trio.Event, pause_s: float) -> None:
    """Write and read all sizes, in every *tasks*-th twelve chunks; check every read."""
    assert rig.array is not None
    rng = random.Random(task)
    unit = 12 * CHUNK
    while not over.is_set():
        low = rng.randrange(task, max(task + 1, len(rig.model) // unit), tasks) * unit
        start = low + rng.randrange(unit)
        length = rng.choice((1, 100, 512, CHUNK, CHUNK + 7, 3 * CHUNK, unit))
        if length == unit:
            start = low
        length = min(length, low + unit - start, len(rig.model) - start)
        if rng.random() < 0.6:
            data = rng.randbytes(length)
            await rig.array.write(start, data)
            rig.model[start : start + length] = data
        else:
            got = bytes(await rig.array.read(start, length))
            assert got == rig.model[start : start + length], f"read of {length} at {start}"
        if rng.random() < 0.1:
            await rig.array.flush()
        await trio.sleep(pause_s)


async def scrubbed(rig: Rig) -> None:
    """Assert that all parity is right."""
    assert rig.array is not None
    result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
    assert result["state"] == "done", result
    assert result["mismatches"] == 0, result["findings"]
    assert result["unchecked_stripes"] == 0 or rig.layout == "raid0"


def play(rig: Rig, body: Callable[[Rig], Awaitable[None]], seed: int = 0) -> None:
    """Run *body* on the rig, made and open."""

    async def whole() -> None:
        await rig.create()
        try:
            await body(rig)
        finally:
            await rig.close()

    run(whole, seed=seed)


@asynccontextmanager
async def under_load(rig: Rig, tasks: int = 3, pause_s: float = 0.001) -> AsyncIterator[None]:
    """Write and read beside the block."""
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(scribble, rig, number, tasks, over, pause_s)
        yield
        over.set()
