"""The hot paths without a mount, one after the other: `pytest bench --benchmark-only`.

RAM members. The benchmark steps the array's coroutines by hand, as the FUSE session loop does while
nothing suspends; a coroutine that suspends fails the benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numpy as np
import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.planning.stripe_plan import read_plan, write_plans
from raidx_fuse.layouts.registry import make_layout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.xor import combine

KIB, MIB = 1 << 10, 1 << 20
CHUNK_BYTES = 64 * KIB
MEMBERS = 4
IMAGE_BYTES = 48 * MIB
PLACES = 1024
Use = Callable[[Array], None]


def step(coroutine: Coroutine[Any, Any, Any] | Awaitable[Any]) -> Any:
    """Run *coroutine* to its end, which must not suspend."""
    iterator = coroutine.__await__()
    try:
        next(iterator)
    except StopIteration as end:
        return end.value
    raise AssertionError("suspended: this is not the hot path")


def with_array(layout: str, use: Use) -> None:
    """Run *use* on an array that was written in full, without a journal."""

    async def main() -> None:
        members = [RamMember(64 * MIB, name=f"ram{number}") for number in range(MEMBERS)]
        await create_array(members, layout, name="bench", now_s=0, chunk_bytes=CHUNK_BYTES)
        async with open_array(members) as array:
            await array.set("journal", "none")
            noise = random.Random(1).randbytes(MIB)
            for at in range(0, IMAGE_BYTES, MIB):
                await array.write(at, noise)
            use(array)

    trio.run(main)


def offsets(size: int) -> Callable[[], int]:
    """Return a function that gives the next of some random offsets, multiples of *size*."""
    rng = random.Random(2)
    places = [rng.randrange(IMAGE_BYTES // size) * size for _ in range(PLACES)]
    turn = 0

    def following() -> int:
        nonlocal turn
        turn = (turn + 1) % PLACES
        return places[turn]

    return following


@pytest.mark.parametrize("size", [4 * KIB, MIB], ids=["4KiB", "1MiB"])
@pytest.mark.parametrize("layout", ["raid0", "raid5"])
def test_read(benchmark: Any, layout: str, size: int) -> None:
    following = offsets(size)

    def use(array: Array) -> None:
        got = benchmark(lambda: step(array.read(following(), size)))
        assert len(got) == size

    with_array(layout, use)


@pytest.mark.parametrize("size", [4 * KIB, MIB], ids=["4KiB", "1MiB"])
@pytest.mark.parametrize("layout", ["raid0", "raid5"])
def test_write(benchmark: Any, layout: str, size: int) -> None:
    following = offsets(size)
    data = random.Random(3).randbytes(size)

    def use(array: Array) -> None:
        before = array.context.traffic.writes
        benchmark(lambda: step(array.write(following(), data)))
        assert array.context.traffic.writes > before

    with_array(layout, use)


@pytest.mark.parametrize("name", ["raid5", "rdp", "xcode"])
def test_locate_and_place(benchmark: Any, name: str) -> None:
    layout = make_layout(name, 5, 1000, CHUNK_BYTES)

    def look_up() -> tuple[int, int]:
        stripe, cell = layout.locate(77)
        return layout.place(stripe, cell)

    role, _ = benchmark(look_up)
    assert 0 <= role < 5


@pytest.mark.parametrize("name", ["raid5", "rdp"])
def test_plan_look_up(benchmark: Any, name: str) -> None:
    code = make_layout(name, 5, 1000, CHUNK_BYTES).code
    lost = code.column_masks[0]

    def look_up() -> tuple[object, object]:
        return write_plans(code, 0b10, 0, 0), read_plan(code, code.data_mask, lost, 0)

    plans = benchmark(look_up)
    assert all(plans)


@pytest.mark.parametrize("size", [4 * KIB, 64 * KIB, MIB], ids=["4KiB", "64KiB", "1MiB"])
def test_xor_of_three(benchmark: Any, size: int) -> None:
    rng = np.random.default_rng(4)
    sources = [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(3)]
    out = np.empty(size, dtype=np.uint8)
    benchmark(combine, out, sources)
    assert np.array_equal(out, sources[0] ^ sources[1] ^ sources[2])


@pytest.mark.parametrize(("name", "width"), [("raid5", 4), ("rdp", 6), ("xcode", 5)])
def test_encode_a_stripe(benchmark: Any, name: str, width: int) -> None:
    """Compute all parity of a full stripe as the plan says, chunks of 64 KiB."""
    code = make_layout(name, width, 1000, CHUNK_BYTES).code
    rng = np.random.default_rng(5)
    data = [rng.integers(0, 256, CHUNK_BYTES, dtype=np.uint8) for _ in range(code.data_count)]
    _, plan = write_plans(code, code.data_mask, 0, 0)
    assert plan is not None
    parity = [np.empty(CHUNK_BYTES, dtype=np.uint8) for _ in plan.outputs]

    def encode() -> None:
        for output, out in zip(plan.outputs, parity, strict=True):
            combine(out, [data[cell] for cell in output.new])

    benchmark(encode)
    assert len(parity) == code.parity_count
