"""Restripes in virtual time: what every read gives back, before, during and after; its cost."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from raidx_fuse.jobs.restripe import Restripe
from raidx_fuse.testing.arrays import Rig
from raidx_fuse.testing.virtual import run

CHUNK = 4096
PAIRS = [
    ("raid0", 2, "raid0", 4),
    ("raid0", 3, "raid5", 4),
    ("raid4", 4, "raid4", 5),
    ("raid4", 4, "raid5", 4),
    ("raid5", 4, "raid5", 5),
    ("raid5", 4, "upc", 6),
    ("raid5", 4, "rdp", 6),
    ("raid5", 4, "raid0", 4),
    ("raid1", 2, "raid5", 3),
    ("rdp", 4, "evenodd", 5),
    ("pcode", 6, "upc", 6),
    ("upc", 4, "raid5", 5),
]


class SmallRig(Rig):
    """A rig with some seventy chunks on a member, and a log for windows of several stripes."""

    def __init__(self, layout: str, width: int, **options: Any) -> None:
        super().__init__(layout, width, chunk_bytes=CHUNK, **options)
        self.member_bytes = (1 << 20) + 4 * CHUNK  # rows that every code here divides


async def restripe(rig: Rig, name: str, width: int, *, window_bytes: int = 6 * CHUNK) -> Restripe:
    """Begin a restripe to *name* on *width* members, with small windows."""
    assert rig.array is not None
    members = [rig.new_member() for _ in range(width - rig.width)]
    await rig.array.restripe(members, name, {})
    rig.members += members
    rig.width = width
    job = job_of(rig)
    job.window_bytes = window_bytes
    return job


def job_of(rig: Rig) -> Restripe:
    assert rig.array is not None
    (job,) = (job for job in rig.array.jobs.running() if isinstance(job, Restripe))
    return job


def enlarge(rig: Rig) -> None:
    """Let the model follow the image."""
    assert rig.array is not None
    rig.model.extend(bytes(rig.array.size_bytes - len(rig.model)))


async def fill(rig: Rig, share: float = 1.0, seed: int = 1) -> None:
    """Write a *share* of the chunks of the image."""
    assert rig.array is not None
    rng = random.Random(seed)
    for at in range(0, len(rig.model), CHUNK):
        if rng.random() < share:
            data = rng.randbytes(min(CHUNK, len(rig.model) - at))
            await rig.array.write(at, data)
            rig.model[at : at + len(data)] = data


async def scribble(rig: Rig, task: int, tasks: int, over: trio.Event) -> None:
    """Write and read all sizes, in every *tasks*-th twelve chunks; check every read."""
    assert rig.array is not None
    rng = random.Random(task)
    unit = 12 * CHUNK
    while not over.is_set():
        low = rng.randrange(task, max(task + 1, len(rig.model) // unit), tasks) * unit
        low = min(low, len(rig.model) - unit)
        start = low + rng.randrange(unit)
        length = rng.choice((1, 100, 512, CHUNK, CHUNK + 7, 3 * CHUNK, unit))
        if length == unit:
            start = low
        length = min(length, low + unit - start)
        if rng.random() < 0.6:
            data = rng.randbytes(length)
            await rig.array.write(start, data)
            rig.model[start : start + length] = data
        else:
            got = bytes(await rig.array.read(start, length))
            assert got == rig.model[start : start + length], f"read of {length} at {start}"
        if rng.random() < 0.1:
            await rig.array.flush()
        await trio.sleep(0.001)


@asynccontextmanager
async def under_load(rig: Rig, tasks: int = 2) -> AsyncIterator[None]:
    """Write and read beside the block."""
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(scribble, rig, number, tasks, over)
        yield
        over.set()


async def scrubbed(rig: Rig) -> None:
    assert rig.array is not None
    result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
    assert result["state"] == "done", result
    assert result["mismatches"] == 0, result["findings"]


def play(rig: Rig, body: Callable[[Rig], Awaitable[None]], seed: int = 0) -> None:
    """Run *body* on the rig, made and open."""

    async def whole() -> None:
        await rig.create()
        try:
            await body(rig)
        finally:
            await rig.close()

    run(whole, seed=seed)


async def ended(rig: Rig, job: Restripe, state: str = "done") -> None:
    """Wait for the end; everything reads as before, parity holds, a remount changes nothing."""
    await job.finished.wait()
    assert job.state == state, job.status()
    enlarge(rig)
    await rig.compare()
    await scrubbed(rig)
    await rig.close()
    await rig.open()
    await rig.compare()
    await scrubbed(rig)


@pytest.mark.parametrize(("old", "before", "new", "after"), PAIRS)
def test_a_restripe_keeps_every_byte_under_writes_and_reads(
    old: str, before: int, new: str, after: int
) -> None:
    rig = SmallRig(old, before, slow=True, reads_zero=old != "raid5")
    if new in ("rdp", "evenodd", "upc"):
        rig.member_bytes *= 2  # for a log that holds one of their stripes twice

    async def body(rig: Rig) -> None:
        await fill(rig, 0.7)
        async with under_load(rig):
            job = await restripe(rig, new, after)
            await job.finished.wait()
        await ended(rig, job)
        assert rig.array is not None
        assert rig.array.store.config.layout == new
        assert rig.array.store.config.params == {}
        # Beyond the old end, and everywhere: the new layout serves as one made so.
        data = random.Random(3).randbytes(len(rig.model))
        await rig.array.write(0, data)
        rig.model[:] = data
        await rig.compare()
        await scrubbed(rig)

    play(rig, body)
