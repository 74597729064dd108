"""The load of users during a slow operation of the array, and checks for afterwards."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import Rig

CHUNK = 4096


def play(rig: Rig, body: Callable[[Rig], Awaitable[None]], seed: int = 0) -> None:
    """Run *body* on the rig, made and open."""

    async def whole() -> None:
        await rig.create()
        try:
            await body(rig)
        finally:
            await rig.close()

    run(whole, seed=seed)


def enlarge(rig: Rig) -> None:
    """Extend the model to the size of the image."""
    rig.model.extend(bytes(rig.array.size_bytes - len(rig.model)))


async def fill(rig: Rig, share: float = 1.0, seed: int = 1) -> None:
    """Write a *share* of the image, chunk by chunk; all of it in large writes."""
    rng = random.Random(seed)
    size = len(rig.model) if share == 1.0 else CHUNK
    for at in range(0, len(rig.model), size):
        if share == 1.0 or rng.random() < share:
            data = rng.randbytes(min(size, len(rig.model) - at))
            await rig.array.write(at, data)
            rig.model[at : at + len(data)] = data


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
            await rig.array.write(start, data)
            rig.model[start : start + length] = data
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
    """Scrub, and assert that all parity is right."""
    result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
    assert result["state"] == "done", result
    assert result["mismatches"] == 0, result["findings"]
    assert result["unchecked_stripes"] == 0 or not rig.array.context.code.parity_count


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds, for at most a second of virtual time."""
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(0.0001)
    raise AssertionError("it never comes true")
