"""Discards: what they cover reads as zeros, parity stays right, and the space is given back."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import NotFastError, ReadOnlyError
from raidx_fuse.layouts.numbers import Chunk, Role, stripe_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import WRITE
from raidx_fuse.store.member_set import MemberSet
from tests.support.arrays import Rig, parity_holds
from tests.support.closing import entered

CHUNK = 4096
LAYOUTS = {
    "raid0": 3,
    "raid1": 2,
    "raid4": 4,
    "raid5": 4,
    "rdp": 4,
    "evenodd": 5,
    "upc": 4,
    "xcode": 5,
    "raidx-zero": 3,
    "raidx-copy": 4,
    "raidx-parity": 4,
}
SEEDS = range(3)


def script_of(rng: random.Random, chunk: int) -> list[tuple[Any, ...]]:
    """Return random writes and discards with a failure, a rebuild and remounts among them."""
    script: list[tuple[Any, ...]] = [("write", 0.0, 1.0, 1), ("write", 0.7, 0.9, 2)]
    if rng.random() < 0.4:
        script.append(("cache", 1 << 18))
    for number in range(14):
        where, size = rng.random(), rng.random()
        unit = rng.choice((1, 512, chunk, chunk, 4 * chunk))
        script += [("discard", where, rng.choice((size, 1.0)), unit)] * (rng.random() < 0.5)
        script += [("parallel", rng.random(), rng.random(), number)] * (rng.random() < 0.4)
        script += [("write", rng.random(), rng.random(), number)] * (rng.random() < 0.6)
        script += [("remount", True)] * (rng.random() < 0.1)
        script += [("flush",)] * (rng.random() < 0.1)
        if number == 5:
            script += [("fail", rng.randrange(4))] * (rng.random() < 0.5)
        if number == 9:
            script.append(("replace",))
    return [*script, ("settle",), ("scrub",)]


async def check_zeros(array: Array) -> None:
    """Assert that unwritten places read as zero on the members of which that is recorded."""
    context = array.context
    await context.journal.drain()
    zero_roles = context.zeros.recorded()
    for stripe in stripe_range(0, context.layout.stripes):
        for cell in cells_of(context.unwritten_cells(stripe)):
            role, offset = context.position(stripe, cell)
            queue = context.member_set.queues[role]
            if queue is not None and role in zero_roles:
                buffer = bytearray(context.chunk_bytes)
                await queue.member.readv(offset, [buffer])
                assert not any(buffer), f"stripe {stripe}, cell {cell} is not empty"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_arrays_equal_their_model_whatever_is_discarded(layout: str, seed: int) -> None:
    rng = random.Random(f"{layout} {seed}")
    rig = Rig(
        layout, LAYOUTS[layout], stripes=12, slow=rng.random() < 0.5, reads_zero=rng.random() < 0.7
    )
    await rig.play(script_of(rng, rig.chunk_bytes))
    try:
        await check_zeros(await rig.open())
    finally:
        await rig.close()


@asynccontextmanager
async def compared(layout: str, *, full: bool = True, **options: Any) -> AsyncIterator[Rig]:
    """Run an array that is written to its end, if *full*; compare its content in the end."""
    rig = Rig(layout, LAYOUTS[layout], **options)
    await rig.create()
    try:
        if full:
            rig.model[:] = random.Random(1).randbytes(len(rig.model))
            await rig.array.write(0, bytes(rig.model))
        with trio.fail_after(600):
            yield rig
        await rig.compare()
    finally:
        await rig.close()


async def made(layout: str, **options: Any) -> tuple[Rig, Array]:
    rig = await entered(compared(layout, **options))
    return rig, rig.array


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_whole_image_that_is_discarded_costs_nothing(layout: str) -> None:
    rig, array = await made(layout, stripes=8)
    await rig.discard(0, array.size_bytes)
    context = array.context
    assert context.written.count_live(context.layout, 0, context.layout.stripes) == 0
    await check_zeros(array)
    for member in rig.members:  # nothing is left on the members either
        memory = member.inner
        assert isinstance(memory, RamMember)
        assert not any(memory.memory[array.member_set.data_offset :][: 8 * rig.chunk_bytes])


async def test_a_part_of_a_stripe_is_zeroed_and_a_whole_stripe_dropped() -> None:
    rig, array = await made("raid5")
    chunk, written = rig.chunk_bytes, array.context.written
    before = written.count_written()
    await array.discard(0, 2 * chunk)  # of three data chunks: the parity needs them
    assert written.count_written() == before
    await array.discard(chunk, 3 * chunk)
    assert written.count_written() == before
    await array.discard(100, 3 * chunk)
    rig.model[: 4 * chunk] = bytes(4 * chunk)
    await array.discard(0, 3 * chunk)
    assert written.count_written() == before - 3


@pytest.mark.parametrize("layout", ["raid1", "raid5", "rdp", "raidx-parity"])
async def test_what_would_be_overwritten_with_zeros_is_not_fast(layout: str) -> None:
    rig, array = await made(layout)
    size, written = len(rig.model), array.context.written
    before = written.count_written()
    for at, length in ((0, rig.chunk_bytes // 2), (100, rig.chunk_bytes)):
        with pytest.raises(NotFastError):
            await array.discard(at, length, fast_only=True)
    assert written.count_written() == before
    await array.discard(0, size, fast_only=True)
    rig.model[:] = bytes(size)
    assert not written.count_written()
    await array.discard(1, size - 1, fast_only=True)  # all holes


async def test_chunks_that_were_never_written_do_not_keep_a_stripe() -> None:
    rig, array = await made("raid5", full=False)
    chunk = rig.chunk_bytes
    await array.write(chunk, b"a" * chunk)
    await array.discard(chunk, chunk)
    assert not array.context.written.count_written()


@pytest.mark.parametrize("layout", ["raid0", "raid1", "raidx-copy", "raidx-zero"])
async def test_without_parity_each_chunk_is_dropped_alone(layout: str) -> None:
    rig, array = await made(layout)
    chunk, written = rig.chunk_bytes, array.context.written
    before = written.count_written()
    await rig.discard(chunk - 1, chunk + 2)
    assert written.count_written() == before - 1


async def test_first_writes_after_a_discard_keep_their_fast_path() -> None:
    rig, array = await made("raid5")
    stripe = array.context.code.data_count * rig.chunk_bytes
    await rig.discard(0, 4 * stripe)
    assert array.context.zeros.all_roles
    await array.write(5, b"new")
    rig.model[5:8] = b"new"


async def test_members_that_cannot_punch_are_zeroed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cannot(*_: object) -> bool:
        return False

    monkeypatch.setattr(MemberSet, "punch", cannot)
    rig, array = await made("raid5")
    stripe = array.context.code.data_count * rig.chunk_bytes
    await rig.discard(0, 4 * stripe)
    await check_zeros(array)


async def test_unsettled_and_deferred_stripes_are_discarded() -> None:
    rig, array = await made("raid5")
    stripe = array.context.code.data_count * rig.chunk_bytes
    await array.flush()
    for at in range(0, 6 * stripe, stripe):
        await array.write(at + 10, b"unsettled")
        await array.write(at + rig.chunk_bytes, b"b" * rig.chunk_bytes)
    await rig.discard(0, 3 * stripe + 700)
    for at in range(3 * stripe, 6 * stripe, stripe):
        if at > 3 * stripe:
            rig.model[at + 10 : at + 19] = b"unsettled"
        rig.model[at + rig.chunk_bytes : at + 2 * rig.chunk_bytes] = b"b" * rig.chunk_bytes
    await rig.compare()
    await parity_holds(array)


async def test_a_growth_zeroes_and_drops_afterwards() -> None:
    rig, array = await made("raid5", slow=True)
    new = rig.new_member()
    rig.members.append(new)
    job = (await array.grow([new]))["job"]
    await rig.discard(0, array.size_bytes)
    await rig.compare()
    assert (await array.jobs.wait(job))["state"] == "done"
    await rig.compare()
    assert array.context.written.count_written()
    await array.discard(0, array.size_bytes)
    assert not array.context.written.count_written()


async def test_requests_beside_a_discard_wait_for_it() -> None:
    rig, array = await made("raid5", slow=True)
    stripe = array.context.code.data_count * rig.chunk_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(array.discard, 0, 8 * stripe)
        await trio.lowlevel.checkpoint()
        for number in range(20):
            nursery.start_soon(array.write, 8 * stripe + 512 * number, bytes([number]) * 512)
            nursery.start_soon(array.read, 512 * number, 512)
    rig.model[: 8 * stripe] = bytes(8 * stripe)
    for number in range(20):
        at = 8 * stripe + 512 * number
        rig.model[at : at + 512] = bytes([number]) * 512
    assert not array.context.locks.held


async def test_a_crash_before_the_holes_does_not_bring_the_old_content_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images: list[bytes] = []
    punch = MemberSet.punch
    rig, array = await made("raid5")

    def take() -> Iterator[bytes]:
        for member in rig.members:
            assert isinstance(member.inner, RamMember)
            yield bytes(member.inner.memory)

    async def noted(member_set: MemberSet, role: Role, offset: int, size: int) -> bool:
        images[:] = images or take()
        return await punch(member_set, role, offset, size)

    await trio.sleep(60)  # no region is dirty any more
    monkeypatch.setattr(MemberSet, "punch", noted)
    stripe = array.context.code.data_count * rig.chunk_bytes
    await rig.discard(0, 2 * stripe)
    members = [RamMember(len(image)) for image in images]
    for member, image in zip(members, images, strict=True):
        member.memory[:] = image
    async with open_array(members) as again:
        await again.write(5, b"new")
        assert bytes(await again.read(0, stripe)) == b"\0\0\0\0\0new".ljust(stripe, b"\0")


async def test_first_writes_do_not_rely_on_holes_that_could_not_be_made() -> None:
    """The member cannot be spared: it stays, with the old content in its place."""
    rig, array = await made("raid0")
    context = array.context
    await context.journal.drain()
    role, offset = context.position(*context.layout.locate(Chunk(4)))
    fault = rig.members[role].error(WRITE, offset_bytes=offset, length_bytes=CHUNK)
    await array.discard(4 * CHUNK, CHUNK)
    fault.lift()
    rig.model[4 * CHUNK : 5 * CHUNK] = bytes(CHUNK)
    await rig.compare()
    rig.model[4 * CHUNK + 512 : 4 * CHUNK + 515] = b"new"
    await array.write(4 * CHUNK + 512, b"new")
    await rig.compare()


async def test_a_read_only_array_discards_nothing() -> None:
    rig = Rig("raid5", 4)
    await rig.create()
    await rig.close()
    async with open_array(list(rig.members), read_only=True) as array:
        with pytest.raises(ReadOnlyError):
            await array.discard(0, 4096)
