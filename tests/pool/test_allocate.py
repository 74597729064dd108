"""Places for volumes, and reads and writes of volumes that lie in several: against a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from raidx_fuse.engine.gate import Gate
from raidx_fuse.errors import NoSpaceError, Reason
from raidx_fuse.format.configuration.volumes import Extent
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.pool.allocate import EXTENTS_MAX, allocate, cut, extended, free_ranges, unit_bytes
from raidx_fuse.pool.volume import SLOTS, Volume, allocation_of, discard_of, read_of, write_of
from tests.support.reasons import because

PAGE = 4096


def test_random_volumes_never_meet_and_give_everything_back() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        unit = rng.choice([PAGE, 3 * PAGE, 16 * PAGE])
        end = rng.randrange(20, 400) * PAGE + rng.choice([0, 512])
        volumes: dict[int, tuple[Extent, ...]] = {}
        sizes: dict[int, int] = {}
        for number in range(60):
            free = free_ranges([e for extents in volumes.values() for e in extents], end)
            size = rng.randrange(1, 60) * PAGE
            old = rng.choice(list(volumes)) if volumes else None
            try:
                if old is not None and rng.random() < 0.3:
                    del volumes[old], sizes[old]
                elif old is not None and rng.random() < 0.5:
                    if size > sizes[old]:
                        grown = extended(volumes[old], size - sizes[old], free, unit)
                        kept, _ = cut(grown, sizes[old])
                        assert sum(e.length for e in kept) == sizes[old]
                        assert [e.offset for e in kept] == [e.offset for e in volumes[old]]
                        volumes[old] = grown
                    else:
                        volumes[old], off = cut(volumes[old], size)
                        assert sum(e.length for e in off) == sizes[old] - size
                    sizes[old] = size
                else:
                    volumes[number], sizes[number] = allocate(free, size, unit), size
                    assert all(e.offset % unit == 0 for e in volumes[number])
            except NoSpaceError:
                # Nothing is refused that fits in one piece.
                assert old is not None or all(e.length < size + unit for e in free)
            for key, extents in volumes.items():
                assert sum(e.length for e in extents) == sizes[key]
                assert len(extents) <= EXTENTS_MAX
            taken = sorted(e for extents in volumes.values() for e in extents)
            assert all(a.end <= b.offset for a, b in pairwise(taken))
            assert not taken or taken[-1].end <= end


def test_the_first_range_that_is_large_enough_is_taken() -> None:
    free = [Extent(0, 2 * PAGE), Extent(4 * PAGE, 4 * PAGE), Extent(16 * PAGE, 9 * PAGE)]
    assert allocate(free, 3 * PAGE, PAGE) == (Extent(4 * PAGE, 3 * PAGE),)
    assert allocate(free, 3 * PAGE, 16 * PAGE) == (Extent(16 * PAGE, 3 * PAGE),)
    assert len(allocate(free, 15 * PAGE, PAGE)) == 3
    with pytest.raises(NoSpaceError, check=because(Reason.ARRAY_FULL)):
        allocate(free, 16 * PAGE, PAGE)


def test_too_many_pieces_are_refused() -> None:
    free = [Extent(2 * at * PAGE, PAGE) for at in range(EXTENTS_MAX + 1)]
    assert len(allocate(free, EXTENTS_MAX * PAGE, PAGE)) == EXTENTS_MAX
    with pytest.raises(NoSpaceError, match="in 17 pieces"):
        allocate(free, (EXTENTS_MAX + 1) * PAGE, PAGE)


def test_the_unit_is_the_data_of_a_stripe_in_whole_pages() -> None:
    assert unit_bytes(3 * 65536) == 3 * 65536
    assert unit_bytes(4097) == 8192


# -- reads and writes ------------------------------------------------------------------------------


class Bytes:
    """An array that is a bytearray, and what was asked of it."""

    def __init__(self, size_bytes: int) -> None:
        self.content = bytearray(random.Random(1).randbytes(size_bytes))
        self.asked: list[tuple[int, int]] = []

    async def read(self, offset: int, size: int) -> bytes:
        self.asked.append((offset, size))
        return bytes(self.content[offset : offset + size])

    async def write(self, offset: int, data: ReadBuffer) -> None:
        self.asked.append((offset, len(data)))
        self.content[offset : offset + len(data)] = data

    async def discard(self, offset: int, size: int, _fast_only: bool) -> None:
        self.asked.append((offset, size))
        self.content[offset : offset + size] = bytes(size)

    def allocation(self, offset: int, size: int) -> Iterator[tuple[int, bool]]:
        for at in range(offset, offset + size):
            yield 1, bool(self.content[at])

    async def read_for(self, _volume: Gate | None, offset: int, size: int) -> bytes:
        return await self.read(offset, size)

    async def write_for(self, _volume: Gate | None, offset: int, data: ReadBuffer) -> None:
        await self.write(offset, data)

    async def flush(self) -> None:
        """Nothing waits."""


def volume_in(array: Bytes, extents: list[Extent]) -> Volume:
    return Volume(
        "v",
        sum(extent.length for extent in extents),
        read=read_of(array.read_for, extents),
        write=write_of(array.write_for, extents),
        flush=array.flush,
        discard=discard_of(array.discard, extents, lambda _offset, _length: None),
        allocation=allocation_of(array.allocation, extents),
    )


def test_one_extent_from_the_start_binds_the_methods_of_the_array() -> None:
    array = Bytes(PAGE)
    volume = volume_in(array, [Extent(0, PAGE)])
    for bound, own in ((volume.read, array.read_for), (volume.write, array.write_for)):
        assert isinstance(bound, partial)
        assert bound.func == own


@pytest.mark.parametrize("slots", [1, 5, SLOTS])  # few: several extents begin in one
async def test_volumes_of_several_extents_read_and_write_like_one_disk(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raidx_fuse.pool.volume.SLOTS", slots)

    for seed in range(20):
        rng = random.Random(seed)
        array = Bytes(64 * PAGE)
        starts = rng.sample(range(16), rng.randrange(1, 6))
        extents = [Extent(4 * at * PAGE, rng.randrange(1, 5) * PAGE) for at in starts]
        volume = volume_in(array, extents)
        model = bytearray(b"".join(array.content[e.offset : e.end] for e in extents))
        others = bytearray(array.content)
        for extent in extents:
            others[extent.offset : extent.end] = bytes(extent.length)
        for _ in range(40):
            offset = rng.randrange(volume.size_bytes)
            size = rng.randrange(1, volume.size_bytes - offset + 1)
            draw = rng.random()
            if draw < 0.5:
                assert bytes(await volume.read(offset, size)) == model[offset : offset + size]
            elif draw < 0.7:
                await volume.discard(offset, size)
                model[offset : offset + size] = bytes(size)
                found = list(volume.allocation(offset, size))
                assert sum(length for length, _ in found) == size
                assert not any(written for _, written in found)
            else:
                data = rng.randbytes(size)
                await volume.write(offset, data)
                model[offset : offset + size] = data
        assert bytes(await volume.read(0, volume.size_bytes)) == model
        for extent in extents:
            array.content[extent.offset : extent.end] = bytes(extent.length)
        assert array.content == others, "a write went beside the volume's extents"


async def test_a_request_inside_one_extent_is_one_request_of_the_array() -> None:
    array = Bytes(16 * PAGE)
    volume = volume_in(array, [Extent(8 * PAGE, 2 * PAGE), Extent(0, PAGE)])
    await volume.read(PAGE, PAGE)
    await volume.write(2 * PAGE, bytes(100))
    await volume.read(2 * PAGE - 1, 2)
    assert array.asked == [(9 * PAGE, PAGE), (0, 100), (10 * PAGE - 1, 1), (0, 1)]


async def test_a_volume_without_a_discard_of_its_own_writes_zeros() -> None:
    array = Bytes(8 * PAGE)
    volume = volume_in(array, [Extent(0, 8 * PAGE)])
    volume.bind(array.read, array.write, volume.flush)  # while it moves, say
    array.asked.clear()
    await volume.discard(PAGE, 2 * PAGE)
    assert array.asked == [(PAGE, 2 * PAGE)]
    assert not any(array.content[PAGE : 3 * PAGE])
    assert list(volume.allocation(0, PAGE)) == [(PAGE, True)]
