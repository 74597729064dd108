"""The load of users during a slow operation of the array, and checks for afterwards."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from raidx_fuse.jobs.job import Job
from tests.support.arrays import Rig, job_ended
from tests.support.closing import close_at_end

CHUNK = 4096


AnyRig = TypeVar("AnyRig", bound=Rig)


async def opened(rig: AnyRig, filled: float = 0.0) -> AnyRig:
    """Make the array of *rig*, *filled* to a share, and close it when the test ends."""
    close_at_end(rig.close)
    await rig.create(filled)
    return rig


def enlarge(rig: Rig) -> None:
    """Extend the model to the size of the image."""
    rig.model.extend(bytes(rig.array.size_bytes - len(rig.model)))


async def scribble(rig: Rig, task: int, tasks: int, over: trio.Event, pause_s: float) -> None:
    """Write and read all sizes, in every *tasks*-th twelve chunks; check every read."""
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
            await rig.put(start, data)
        else:
            got = bytes(await rig.array.read(start, length))
            assert got == rig.model[start : start + length], f"read of {length} at {start}"
        if rng.random() < 0.1:
            await rig.array.flush()
        await trio.sleep(pause_s)


@asynccontextmanager
async def under_load(rig: Rig, tasks: int = 3, pause_s: float = 0.003) -> AsyncIterator[None]:
    """Write and read while the block of the `async with` runs."""
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(scribble, rig, number, tasks, over, pause_s)
        yield
        over.set()


async def scrubbed(rig: Rig) -> None:
    """Assert that the image equals the model, and by a scrub that all parity is right."""
    await rig.compare()
    result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
    assert result["state"] == "done", result
    assert result["mismatches"] == 0, result["findings"]
    assert result["unchecked_stripes"] == 0 or not rig.array.context.code.parity_count


async def ended(rig: Rig, job: Job, state: str = "done") -> None:
    """Wait for the end; everything reads as before, parity holds, a remount changes nothing."""
    await job_ended(job, state)
    enlarge(rig)
    await scrubbed(rig)
    await rig.reopen()
    await scrubbed(rig)


async def eventually(
    condition: Callable[[], object], within_s: float = 1.0, each_s: float = 0.0001
) -> None:
    """Look each *each_s* until *condition* holds, for at most *within_s* of virtual time."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await trio.sleep(each_s)
