"""Sizing of regions: pure, for members of any size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import UsageError
from raidx_fuse.format.regions import (
    GROWTH_WIDTH_MIN,
    LOG_BYTES_MAX,
    NO_REGION,
    PAYLOAD_BITS,
    Region,
    Regions,
    data_alignment,
    plan_regions,
)

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def plan_or_refusal(size: int, chunk: int, width: int, copies: int) -> Regions | UsageError:
    try:
        return plan_regions(size, chunk, width, sums_copies=copies, has_sums=True)
    except UsageError as error:
        return error


@settings(deadline=None)
@given(
    st.integers(MIB // 512, 64 * TIB // 512).map(lambda sectors: sectors * 512),
    st.sampled_from([4 * KIB, 8 * KIB, 64 * KIB, MIB]),
    st.integers(1, 64),
    st.integers(0, 4),
)
def test_regions_fit_in_order_with_room_for_growth(
    size: int, chunk: int, width: int, copies: int
) -> None:
    regions = plan_or_refusal(size, chunk, width, copies)
    if isinstance(regions, UsageError):
        assert "too small" in regions.message
        needed = int(regions.message.split()[-1])
        assert needed > size
        return
    assert regions.problem() is None
    assert regions.data.end <= size
    assert size - regions.data.end < chunk, "the rest is less than a chunk"
    assert regions.data.length % chunk == 0
    assert regions.data.offset % data_alignment(size) == 0
    member_chunks = regions.data.length // chunk
    for grown in (width, max(GROWTH_WIDTH_MIN, 4 * width)):
        assert regions.pages("written").pages * PAYLOAD_BITS >= member_chunks * grown
    assert regions.pages("bitmap").pages * PAYLOAD_BITS * MIB >= size
    assert regions.table.length == 0
    table = -(-regions.data.length // 4096 // 1008) * 4096  # 8 sectors of 126 sums in a page
    tail = min(-(-table // 8 // 4096) * 4096, 16 << 20)
    assert (regions.sum_table_bytes, regions.sums.length) == (table, copies * (table + tail))
    if copies:
        assert regions.sum_tail_bytes(copies) == tail
        tails = [regions.sum_tail_offset(copy, copies, tail) for copy in range(copies)]
        behind = regions.sums.offset + copies * table
        assert tails == [behind + copy * tail for copy in range(copies)]
    assert ("sums" in regions.named()) == (copies > 0)
    held = [regions.sum_table_offset(copy) for copy in range(copies)]
    assert held == [regions.sums.offset + copy * table for copy in range(copies)]


def test_a_member_of_1_mib_keeps_most_of_it_for_data() -> None:
    regions = plan_regions(MIB, 4 * KIB, 4)
    assert regions.data.length > 0.7 * MIB


@pytest.mark.parametrize(
    ("member_bytes", "copies", "sums", "data"),
    [  # data begins at the next whole 16 KiB, or MiB
        (MIB, 0, (0, 0), (272 * KIB, 752 * KIB)),
        (MIB, 2, (272 * KIB, 16 * KIB), (288 * KIB, 736 * KIB)),
        (64 * MIB, 2, (8352 * KIB, 128 * KIB), (9 * MIB, 55 * MIB)),
        (64 * MIB, 3, (8352 * KIB, 192 * KIB), (9 * MIB, 55 * MIB)),
        (TIB, 1, (330144 * KIB, 1080204 * KIB), (1379 * MIB, 1047197 * MIB)),
    ],
)
def test_checksums_take_4_bytes_for_each_page_and_copy(
    member_bytes: int, copies: int, sums: tuple[int, int], data: tuple[int, int]
) -> None:
    chunk = 4 * KIB if member_bytes == MIB else 64 * KIB
    regions = plan_regions(member_bytes, chunk, 4, sums_copies=copies, has_sums=True)
    assert (regions.sums, regions.data) == (sums, data)
    room = plan_regions(member_bytes, chunk, 4, sums_copies=copies)
    assert room == replace(regions, sums=NO_REGION)
    if copies:
        assert room.place_for_sums(copies, room.end, room.end) == sums
        assert room.place_for_sums(copies + 1000, room.end, room.end) is None


def test_checksums_have_a_place_before_the_data_or_behind_them_but_none_twice() -> None:
    regions = plan_regions(MIB, 4 * KIB, 4)  # no room is kept, and 0 bytes are left before the data
    behind = Region(regions.data.end, 2 * regions.sum_table_bytes)
    assert regions.place_for_sums(2, regions.end, behind.end) == behind
    assert regions.place_for_sums(2, regions.end, behind.end - 1) is None
    further = Region(behind.end + 4 * KIB, behind.length)
    assert regions.place_for_sums(2, behind.end + 1, further.end) == further
    kept = replace(regions, sums=behind)
    assert kept.problem() is None
    assert kept.end == behind.end
    assert list(kept.named())[-2:] == ["data", "sums"]
    overlapping = replace(kept, sums=Region(behind.offset - 4 * KIB, behind.length))
    assert overlapping.problem() == "region sums overlaps the one before it"
    before = plan_regions(64 * MIB, 64 * KIB, 4, sums_copies=2, has_sums=True)
    clear = before.place_for_sums(2, before.end, before.end)
    assert clear == Region(before.sums.end, before.sums.length), "not where it is already"


def test_checksums_are_named_where_only_they_leave_no_data() -> None:
    actions = []
    for size in range(512 * KIB, MIB, 4096):
        refused = plan_or_refusal(size, 64 * KIB, 4, 2)
        if not isinstance(refused, UsageError):
            break
        actions.append((refused.action, isinstance(plan_or_refusal(size, 64 * KIB, 4, 0), Regions)))
    without = ("use larger members or a smaller chunk", False)
    assert actions[0] == without
    assert actions[-1] == (f"{without[0]}, or leave out the checksums: --sums off", True)
    assert len(set(actions)) == 2


def test_data_lies_on_whole_mebibytes_of_large_members() -> None:
    for size in (64 * MIB, GIB, TIB):
        assert plan_regions(size, 64 * KIB, 4).data.offset % MIB == 0


def test_metadata_takes_little_of_a_large_member() -> None:
    regions = plan_regions(TIB, 64 * KIB, 4)
    assert regions.log.length == LOG_BYTES_MAX
    assert regions.data.offset < TIB / 1000


@pytest.mark.parametrize(
    ("member_bytes", "log_bytes"),
    [(MIB, 128 * KIB), (96 * MIB, 12 * MIB), (512 * MIB, 64 * MIB), (GIB, LOG_BYTES_MAX)],
)
def test_the_log_takes_an_eighth_of_a_member(member_bytes: int, log_bytes: int) -> None:
    assert plan_regions(member_bytes, 4 * KIB, 4).log.length == log_bytes


def test_the_user_may_choose_the_size_of_the_log() -> None:
    region = plan_regions(96 * MIB, 64 * KIB, 4, log_bytes_wanted=5 * MIB + 1).log
    assert region.length == 5 * MIB + 4096
    for wanted in (0, 512 * KIB, 49 * MIB):
        with pytest.raises(UsageError, match=f"a log of {wanted} bytes .* 589824 to 50331648"):
            plan_regions(96 * MIB, 64 * KIB, 4, log_bytes_wanted=wanted)
    with pytest.raises(UsageError, match=f"{128 * MIB} bytes$"):
        plan_regions(TIB, 64 * KIB, 4, log_bytes_wanted=GIB)


def test_the_log_holds_two_records_of_a_whole_stripe() -> None:
    for rows, width, chunk in ((1, 4, MIB), (12, 13, 64 * KIB), (1, 2, 4 * KIB)):
        regions = plan_regions(256 * MIB, chunk, width, rows)
        assert regions.log.length >= 2 * rows * width * chunk


def test_slots_of_a_page_lie_side_by_side() -> None:
    region = plan_regions(GIB, 4 * KIB, 4).pages("written")
    assert region.pages > 2
    offsets = [region.slot_offset(page, slot) for page in range(3) for slot in range(2)]
    assert offsets == [region.offset + 4096 * index for index in range(6)]
    with pytest.raises(AssertionError):
        region.slot_offset(region.pages, 0)
    with pytest.raises(AssertionError):
        region.slot_offset(0, 2)
