"""Power cuts: decisions against a slow reference, boundaries of a recorded run, enumeration."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import (
    CutRecord,
    DiskState,
    Event,
    OpenWrite,
    PowerCutMember,
    SparseImage,
    choices,
    count_cuts,
    enumerate_cuts,
    keep_last,
)
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.member_contract import read, write

SIZE_BYTES = 16 * SECTOR_BYTES


def slow_crash(durable: bytes, writes: list[tuple[int, bytes]], decisions: list[int]) -> bytearray:
    """Return what a cut leaves, byte by byte: the definition."""
    image = bytearray(durable)
    for (offset, data), decision in zip(writes, decisions, strict=True):
        for at, byte in enumerate(data, offset):
            if decision >> (at // SECTOR_BYTES - offset // SECTOR_BYTES) & 1:
                image[at] = byte
    return image


@st.composite
def one_write(draw: st.DrawFn) -> tuple[int, bytes, int]:
    length = draw(st.integers(1, 5 * SECTOR_BYTES))
    offset = draw(st.integers(0, SIZE_BYTES - length))
    fill = bytes([draw(st.integers(1, 255))])
    sectors = (offset + length - 1) // SECTOR_BYTES - offset // SECTOR_BYTES + 1
    return offset, fill * length, draw(st.integers(0, 2**sectors - 1))


@given(st.lists(one_write(), max_size=6), st.integers(0, 6))
def test_any_cut_equals_the_definition(writes: list[tuple[int, bytes, int]], covered: int) -> None:
    state = DiskState(bytearray(SIZE_BYTES))
    durable = bytearray(SIZE_BYTES)
    covered = min(covered, len(writes))
    for offset, data, _ in writes[:covered]:
        state.write(offset, data)
        durable[offset : offset + len(data)] = data
    state.flush()
    for offset, data, _ in writes[covered:]:
        state.write(offset, data)
    left = writes[covered:]
    pairs = [(offset, data) for offset, data, _ in left]
    decisions = [decision for _, _, decision in left]
    expected = slow_crash(bytes(durable), pairs, decisions)
    assert state.crash(decisions) == expected
    assert state.crash() == durable
    assert state.crash([write.kept for write in state.open_writes]) == state.image
    reused = bytearray(b"?" * SIZE_BYTES)
    assert state.crash(decisions, into=reused) is reused
    assert reused == expected


def test_a_flush_covers_only_what_was_written_before_it_began() -> None:
    state = DiskState(bytearray(SIZE_BYTES))
    state.write(0, b"a" * 512)
    state.write(256, b"b" * 512)
    state.flush(1)
    assert state.crash()[:1024] == b"a" * 512 + bytes(512)


def test_partly_touched_sectors_count_as_sectors() -> None:
    assert OpenWrite(0, b"x" * 512, b"").sectors == 1
    assert OpenWrite(511, b"xx", b"").sectors == 2
    assert OpenWrite(100, b"x" * 10, b"").kept == 1
    assert sorted(choices(OpenWrite(0, b"x" * 1536, b""))) == [0, 1, 3, 7]
    assert sorted(choices(OpenWrite(0, b"x" * 1536, b""), torn=False)) == [0, 7]


def test_enumeration_yields_each_cut_once() -> None:
    disks = [DiskState(bytearray(SIZE_BYTES)) for _ in range(3)]
    disks[0].write(0, b"a" * 1024)
    disks[0].write(512, b"b" * 512)
    disks[2].write(0, b"c" * 1536)
    cuts = [tuple(map(tuple, cut)) for cut in enumerate_cuts(disks)]
    assert len(cuts) == len(set(cuts)) == count_cuts(disks) == 3 * 2 * 4
    assert all([len(part) for part in cut] == [2, 0, 1] for cut in cuts)
    assert len(list(enumerate_cuts(disks, torn=False))) == count_cuts(disks, torn=False) == 8
    assert list(enumerate_cuts([DiskState(bytearray(512))])) == [[[]]]


def test_sampling_reaches_every_kind_of_decision_and_follows_the_seed() -> None:
    state = DiskState(bytearray(SIZE_BYTES))
    state.write(0, b"x" * 2048)
    state.write(4096, b"y")
    draws = [tuple(state.sample(random.Random(seed))) for seed in range(300)]
    assert draws == [tuple(state.sample(random.Random(seed))) for seed in range(300)]
    first = {draw[0] for draw in draws}
    assert first >= {0, 1, 3, 7, 15, 8, 12, 14, 5}
    assert {draw[1] for draw in draws} == {0, 1}


def test_a_cut_that_tears_keeps_no_write_whole_that_can_be_torn_and_drops_none() -> None:
    state = DiskState(bytearray(SIZE_BYTES))
    state.write(0, b"x" * 2048)
    state.write(4096, b"y")
    draws = {tuple(state.tear(random.Random(seed))) for seed in range(300)}
    assert {draw[0] for draw in draws} >= {1, 3, 7, 8, 12, 14, 5}
    assert {draw[1] for draw in draws} == {0, 1}


def test_a_slow_flush_covers_no_more_than_it_must() -> None:
    record = CutRecord()
    member = PowerCutMember(bytearray(SIZE_BYTES), record=record)
    assert member.try_writev(0, [b"a" * 512])
    before = member.writes
    assert member.try_writev(512, [b"b" * 512])
    member.make_durable(before)
    assert member.crash()[:1024] == b"a" * 512 + bytes(512)
    member.make_durable(before)  # another one, which began before and ends later
    assert member.crash()[:1024] == b"a" * 512 + bytes(512)
    member.make_durable(member.writes)
    assert member.crash()[:1024] == b"a" * 512 + b"b" * 512
    assert [event.covered for event in record.events if event.operation == "flush"] == [1, 0, 1]


@given(st.lists(one_write(), max_size=8))
def test_a_sparse_image_holds_what_a_dense_one_holds(writes: list[tuple[int, bytes, int]]) -> None:
    sparse, dense = SparseImage(SIZE_BYTES), bytearray(SIZE_BYTES)
    for offset, data, _ in writes:
        copy = sparse.copy()
        sparse[offset : offset + len(data)] = data
        assert copy[0:SIZE_BYTES] == dense, "a copy is one of its own"
        dense[offset : offset + len(data)] = data
        assert sparse[offset : offset + len(data)] == data
    assert len(sparse) == len(dense)
    assert sparse[0:SIZE_BYTES] == dense
    assert sparse.startswith(bytes(dense[100:9000]), 100)
    left = bytearray(dense)
    ends = [0]
    for offset, length in sparse.extents(300, SIZE_BYTES - 300):
        assert offset > ends[-1] or ends == [0], "in order, joined"
        ends.append(offset + length)
        left[offset : offset + length] = bytes(length)
    assert not any(left[300:]), "all that is not zero was named"
    assert ends[-1] <= SIZE_BYTES


def test_a_sparse_image_may_hold_what_an_old_disk_holds() -> None:
    blank = bytes(range(256)) * 16
    old, new = SparseImage(SIZE_BYTES, blank=blank), SparseImage(SIZE_BYTES)
    old[4096 + 10 : 4096 + 12] = new[4096 + 10 : 4096 + 12] = b"xy"
    assert old.copy()[4096:8192] == blank[:10] + b"xy" + blank[12:]
    assert list(old.extents(0, SIZE_BYTES)) == [(0, SIZE_BYTES)], "nothing reads as zeros"
    assert b"xy" in old
    assert blank[7:9] in old
    assert blank[7:9] not in new
    assert not old.is_hole(0, 512)
    assert new.is_hole(0, 4096)
    assert not new.is_hole(4000, 97)


def test_one_recorded_run_gives_every_boundary() -> None:
    record = CutRecord()
    first = bytearray(b"\x11" * SIZE_BYTES)
    members = [PowerCutMember(first, name="a", record=record)]
    members.append(PowerCutMember(bytearray(SIZE_BYTES), name="b", record=record))

    async def workload() -> list[list[bytes]]:
        seen: list[list[bytes]] = []

        def look() -> None:
            seen.append([bytes(member.crash()) for member in members])

        for member in members:
            member.before_event = lambda _event: look()
        generator = random.Random(1)
        for number in range(60):
            member = members[number % 2]
            if generator.random() < 0.3:
                await member.flush()
                record.note(f"flushed {number}")
                look()  # a note is a moment too: after what it speaks of
            else:
                await write(member, generator.randrange(SIZE_BYTES - 600), bytes([number]) * 600)
        look()
        return seen

    seen = run(workload)
    walk = [
        ([bytes(disk.crash()) for disk in disks], [bytes(disk.image) for disk in disks], event)
        for _, disks, event in record.moments()
    ]
    assert [durable for durable, _, _ in walk] == seen
    assert walk[-1][1] == [bytes(member.state.image) for member in members]
    assert walk[-1][2] is None
    notes = [event.note for _, _, event in walk if event is not None and event.note]
    assert notes
    assert all(str(note).startswith("flushed") for note in notes)


async def test_the_hook_may_stop_the_run_before_anything_happened() -> None:
    class PowerFailure(Exception):
        pass

    events: list[str] = []

    def hook(event: Event) -> None:
        events.append(event.operation)
        if len(events) == 3:
            raise PowerFailure

    member = PowerCutMember(bytearray(SIZE_BYTES))
    member.tell(hook)
    await write(member, 0, b"one")
    await member.flush()
    with pytest.raises(PowerFailure):
        await write(member, 0, b"two")
    assert await read(member, 0, 3) == b"one"
    assert member.crash()[:3] == b"one"
    assert events == ["write", "flush", "write"]


async def test_a_punch_can_be_torn() -> None:
    member = PowerCutMember(bytearray(b"x" * SIZE_BYTES))

    assert await member.punch(0, 1024)
    assert await read(member, 0, 1024) == bytes(1024)
    assert member.crash([0b10])[:1024] == b"x" * 512 + bytes(512)


def test_a_cut_may_leave_the_copies_of_what_was_written_last_alone() -> None:
    disks = [DiskState(bytearray(2048)) for _ in range(2)]
    for disk in disks:
        disk.write(0, b"a" * 512)
        disk.write(512, b"b" * 1024)
    disks[0].write(0, b"c" * 512)
    assert keep_last(disks, 1) == [[0, 3, 1], [0, 3]]
    assert keep_last(disks[1:], 1) == [[0, 3]]
    assert keep_last(disks[:1], 1) == [[0, 0, 1]]
