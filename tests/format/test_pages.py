"""Pages: two slots, newest valid generation, what counts as damaged, what never counts."""

from __future__ import annotations

import mmap
import random
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.format.configuration.config import uuid_bytes
from raidx_fuse.format.log_record import DATA, RecordBody, encode_record
from raidx_fuse.format.pages import (
    PAGE_HEADER,
    DamagedPage,
    LoadedPages,
    encode_page,
    erase_log,
    erase_pages,
    load_pages,
    nothing_loaded,
)
from raidx_fuse.format.regions import (
    COUNTER_MAX,
    PAGE_BYTES,
    PAGE_HEADER_BYTES,
    PAGE_KINDS,
    PAYLOAD_BYTES,
    REGION_KINDS,
    PageRegion,
    plan_regions,
)
from raidx_fuse.members.base import WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.store.buffers import extend_zeroed, zeroed

SIZE = 4 << 20
ARRAY = str(uuid.UUID(int=0x1234 << 100))
OTHER = str(uuid.UUID(int=0x9876 << 100))
REGIONS = plan_regions(SIZE, 4096, 4)
REGION = REGIONS.pages("written")


def payload(seed: int) -> bytes:
    return random.Random(seed).randbytes(PAYLOAD_BYTES)


def put(member: RamMember, page: int, slot: int, content: bytes) -> None:
    offset = REGION.slot_offset(page, slot)
    member.memory[offset : offset + PAGE_BYTES] = content


def page(number: int, generation: int, array: str = ARRAY, kind: str = "written") -> bytes:
    return encode_page(number, generation, kind, payload(number * 100 + generation), array)


def load(member: RamMember, region: PageRegion = REGION, count: int | None = None) -> LoadedPages:
    return run(load_pages, member, region, ARRAY, count)


def state(loaded: LoadedPages) -> dict[int, tuple[int, int]]:
    """Return page -> (generation, slot) after checking the payloads."""
    for number in range(len(loaded.generations)):
        generation = int(loaded.generations[number])
        expected = payload(number * 100 + generation) if generation else bytes(PAYLOAD_BYTES)
        assert loaded.payload[number].tobytes() == expected
    return {
        number: (int(loaded.generations[number]), int(loaded.slots[number]))
        for number in loaded.present()
    }


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, COUNTER_MAX),
    st.sampled_from(sorted(PAGE_KINDS)),
    st.uuids().map(str),
)
def test_encoding_is_lossless(number: int, generation: int, kind: str, array: str) -> None:
    content = encode_page(number, generation, kind, payload(number), array)
    _magic, _crc, its_generation, page, its_kind, zero, half = PAGE_HEADER.unpack_from(content)
    assert (page, its_generation, its_kind, zero) == (number, generation, PAGE_KINDS[kind], 0)
    assert content[PAGE_HEADER_BYTES:] == payload(number)
    assert half == uuid.UUID(array).bytes[:8]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, PAGE_BYTES * 8 - 1))
def test_any_flipped_bit_is_seen(bit: int) -> None:
    content = bytearray(page(1, 5))
    content[bit // 8] ^= 1 << bit % 8
    member = RamMember(SIZE)
    put(member, 1, 0, page(1, 4))
    put(member, 1, 1, bytes(content))
    loaded = load(member)
    assert state(loaded) == {1: (4, 0)}
    assert [(d.page, d.slot) for d in loaded.damaged] == [(1, 1)]


def test_the_newest_valid_slot_counts() -> None:
    member = RamMember(SIZE)
    assert state(load(member)) == {}
    put(member, 0, 0, page(0, 1))
    put(member, 2, 0, page(2, 8))
    put(member, 2, 1, page(2, 7))
    put(member, 1, 1, page(1, 3))
    assert state(load(member)) == {0: (1, 0), 1: (3, 1), 2: (8, 0)}
    assert state(load(member, count=2)) == {0: (1, 0), 1: (3, 1)}
    assert len(load(member, count=2).generations) == 2


def test_a_page_torn_at_any_sector_leaves_the_old_or_the_new() -> None:
    old, new = page(1, 4), page(1, 6)
    member = RamMember(SIZE)
    put(member, 1, 1, page(1, 5))
    for kept in range(256):
        torn = b"".join(
            (new if kept >> sector & 1 else old)[sector * 512 : (sector + 1) * 512]
            for sector in range(8)
        )
        put(member, 1, 0, torn)
        assert state(load(member)) == {1: (6, 0) if torn == new else (5, 1)}


def test_another_arrays_pages_and_garbage_never_count_and_are_no_damage() -> None:
    member = RamMember(SIZE)
    put(member, 0, 0, page(0, 9, array=OTHER))
    put(member, 1, 0, random.Random(1).randbytes(PAGE_BYTES))
    put(member, 2, 1, b"\xff" * PAGE_BYTES)
    loaded = load(member)
    assert state(loaded) == {}
    assert loaded.damaged == []


def test_a_misdirected_page_is_damage() -> None:
    member = RamMember(SIZE)
    put(member, 1, 0, page(2, 9))
    put(member, 0, 0, page(0, 9, kind="bitmap"))
    loaded = load(member)
    assert state(loaded) == {}
    assert loaded.damaged == [DamagedPage(0, 0, 0), DamagedPage(1, 0, 0)]


def test_the_newest_copy_of_each_page_is_collected() -> None:
    first, second = RamMember(SIZE), RamMember(SIZE)
    put(first, 0, 0, page(0, 2))
    put(second, 0, 1, page(0, 3))
    put(first, 1, 1, page(1, 5))
    put(second, 1, 0, page(1, 4))
    put(second, 2, 0, page(2, 1))
    newest = nothing_loaded(np.zeros((REGION.pages, PAYLOAD_BYTES), np.uint8), REGION.pages)

    async def collect(member: RamMember) -> LoadedPages:
        return await load_pages(member, REGION, ARRAY, newest=newest)

    alone = [run(collect, member) for member in (first, second)]
    assert state(newest) == {0: (3, 1), 1: (5, 1), 2: (1, 0)}
    assert [found.generations[:3].tolist() for found in alone] == [[2, 5, 0], [3, 4, 1]]
    assert [len(found.payload) for found in alone] == [0, 0]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, REGION.pages - 1), st.integers(0, 1), st.integers(1, 50)),
        max_size=30,
    ),
    st.integers(1, REGION.pages),
)
def test_loading_equals_looking_at_every_page(
    written: list[tuple[int, int, int]], count: int
) -> None:
    member = RamMember(SIZE)
    slots: dict[tuple[int, int], int] = {}
    for number, slot, generation in written:
        put(member, number, slot, page(number, generation))
        slots[number, slot] = generation
    expected: dict[int, tuple[int, int]] = {}
    for (number, slot), generation in sorted(slots.items()):
        if number < count and generation > expected.get(number, (0, 0))[0]:
            expected[number] = (generation, slot)
    assert state(load(member, count=count)) == expected


def test_an_untouched_region_is_not_even_read() -> None:
    class Counting(RamMember):
        read_bytes = 0

        def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
            self.read_bytes += sum(map(len, buffers))
            return super().try_readv(offset_bytes, buffers)

    member = Counting(1 << 40)
    region = plan_regions(1 << 40, 65536, 4).pages("written")
    offset = region.slot_offset(region.pages // 2, 0)
    member.try_writev(offset, [page(region.pages // 2, 1)])
    loaded = run(load_pages, member, region, ARRAY, None)
    assert loaded.present() == [region.pages // 2]
    assert region.length > 200 << 20
    assert member.read_bytes <= 3 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_large_map_takes_memory_where_it_is_touched() -> None:
    """And stays what others hold when it grows."""
    before = resident_bytes()
    zeros = zeroed(300_000_000)
    same = zeros
    assert not np.frombuffer(zeros, np.uint8).any()
    zeros[7] = 5
    extend_zeroed(zeros, 400_000_000)
    assert len(same) == 400_000_000
    assert (same[7], same[399_999_999], bytes(same[6:9])) == (5, 0, b"\0\5\0")
    assert resident_bytes() - before < 20_000_000


# -- erasing -------------------------------------------------------------------------------------


class NoPunch(RamMember):
    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        return False


@pytest.mark.parametrize("kind", [RamMember, NoPunch])
def test_erased_pages_and_records_never_come_back(kind: type[RamMember]) -> None:
    member = kind(SIZE)
    for region_kind in REGION_KINDS:
        region = REGIONS.pages(region_kind)
        for number in (0, region.pages - 1):
            offset = region.slot_offset(number, 1)
            content = page(number, 7, kind=region_kind)
            member.memory[offset : offset + PAGE_BYTES] = content
    body = RecordBody([DATA, 0, 4, 0], b"", [b"RDXJ"], 4)
    record = encode_record(3, 1, 0, uuid_bytes(ARRAY), body)
    spots = (REGIONS.log.offset + 8192, REGIONS.log.end - 512)
    for spot in spots:
        member.memory[spot : spot + len(record)] = record
    member.memory[REGIONS.data.offset : REGIONS.data.offset + len(record)] = record
    run(erase_pages, member, REGIONS)
    run(erase_log, member, REGIONS)
    for region_kind in REGION_KINDS:
        assert load(member, REGIONS.pages(region_kind)).present() == []
    for spot in spots:
        assert bytes(member.memory[spot : spot + 4]) == bytes(4)
    assert bytes(member.memory[REGIONS.data.offset :][:4]) == b"RDXJ", "data is not touched"


def test_erasing_without_punch_writes_only_what_looks_like_a_page() -> None:
    member = NoPunch(SIZE)
    noise = random.Random(3).randbytes(SIZE)
    member.memory[:] = noise
    run(erase_pages, member, REGIONS)
    run(erase_log, member, REGIONS)
    assert bytes(member.memory) == noise
