"""Superblocks: two slots, torn and rotten writes, rounds over several members."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import FormatError, MemberError, Reason
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.config import encode_config
from raidx_fuse.format.regions import COUNTER_MAX, SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import (
    BODY_BYTES_MAX,
    HEAD_BYTES,
    HEADER_BYTES,
    Superblock,
    decode_superblock,
    encode_superblock,
    read_slots,
    write_config,
)
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.reasons import because
from tests.support.superblocks import NAMES, SIZE, config, content, ram, read, resigned


@settings(deadline=None)
@given(st.integers(0, COUNTER_MAX), st.integers(0, COUNTER_MAX))
def test_encoding_is_lossless(sequence: int, base: int) -> None:
    superblock = Superblock(NAMES[0], sequence, base, config())
    assert decode_superblock(encode_superblock(superblock), sequence % 2) == superblock


def test_the_newest_valid_slot_counts() -> None:
    assert read(ram()) is None
    for sequences in ((0, 1), (2, 1), (8, 9)):
        member = ram(*(content(s, s + 1) for s in sequences))
        found = read(member)
        assert found is not None
        assert found.sequence == max(sequences)


@pytest.mark.parametrize("length", [-300, -1, 0, 1, 5000, BODY_BYTES_MAX - HEAD_BYTES])
def test_a_superblock_is_read_whole_however_long_it_is(length: int) -> None:
    """Around the size that is read first, up to the whole slot; its last byte counts."""
    used = len(encode_config(config(events=6, jobs={"list": ""}))) + HEADER_BYTES
    jobs = {"list": "x" * (HEAD_BYTES + length - used)}
    offset, new = content(5, 6, jobs=jobs)
    end = HEADER_BYTES + int.from_bytes(new[16:20], "little")
    assert end == HEAD_BYTES + length
    member = ram(content(4, 5), (offset, new))
    found = read(member)
    assert found is not None
    assert (found.events, found.config.jobs) == (6, jobs)
    member.memory[offset + end - 1] ^= 1
    older = read(member)
    assert older is not None
    assert older.events == 5


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_bit_in_the_newest_slot_leaves_the_older_one(data: st.DataObject) -> None:
    _, old = content(4, 5)
    offset, new = content(5, 6)
    used = HEADER_BYTES + int.from_bytes(new[16:20], "little")
    bit = data.draw(st.integers(0, used * 8 - 1))
    torn = bytearray(new)
    torn[bit // 8] ^= 1 << bit % 8
    member = ram((0, old), (offset, bytes(torn)))
    found = read(member)
    assert found is not None
    assert found.events == 5
    slots = run(read_slots, member)
    assert slots[1].state == ("other" if bit < 64 else "damaged")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans())
def test_two_damaged_slots_are_no_empty_ones(seed: int, random_bytes: bool) -> None:
    rng = random.Random(seed)
    member = ram(content(4, 5), content(5, 6))
    for slot in range(2):
        at = slot * SUPERBLOCK_SLOT_BYTES + rng.randrange(HEADER_BYTES, HEADER_BYTES + 500)
        member.memory[at] ^= rng.randrange(1, 256)
    with pytest.raises(FormatError, match=r"no superblock is valid.*checksum mismatch"):
        read(member)


def test_a_write_torn_at_any_sector_leaves_the_old_or_the_new() -> None:
    """Never a third value: every prefix of sectors, every single sector, and all but one."""
    _, first = content(0, 1)
    at, second = content(1, 2)
    offset, third = content(2, 3, jobs={"later": "x" * 3000})
    before = first + bytes(len(third) - len(first))
    sectors = range(0, len(third), 512)
    kept: list[set[int]] = [set(sectors[:count]) for count in range(len(sectors) + 1)]
    kept += [{sector} for sector in sectors]
    kept += [set(sectors) - {sector} for sector in sectors]
    seen = set()
    for keep in kept:
        torn = b"".join((third if s in keep else before)[s : s + 512] for s in sectors)
        found = read(ram((at, second), (offset, torn)))
        assert found is not None
        assert found.config in (config(events=2), config(events=3, jobs={"later": "x" * 3000}))
        seen.add(found.events)
        assert (found.events == 3) == (torn == third)
    assert seen == {2, 3}


def test_a_superblock_in_the_other_slot_is_a_misdirected_write() -> None:
    _, right = content(4, 5)
    member = ram((0, right), (SUPERBLOCK_SLOT_BYTES, right))
    slots = run(read_slots, member)
    assert slots[1].problem is not None
    assert "misdirected" in slots[1].problem
    assert read(member) == slots[0].superblock


def test_the_other_conditions_of_validity() -> None:
    """A superblock whose header is signed correctly but says what cannot be."""
    at, right = content(1, 2)
    assert read(ram((at, resigned(right, {})))) is not None
    for change, said in (
        ({16: (1 << 20).to_bytes(4, "little")}, "beyond the slot"),
        ({24: b"\x07"}, "header and configuration differ"),
        ({48: bytes(16)}, "header and configuration differ"),
        ({64: bytes(16)}, "does not name this member"),
        ({40: b"\x02"}, "belongs to slot"),
        ({HEADER_BYTES: b"["}, "not readable"),
    ):
        with pytest.raises(FormatError, match=said):
            read(ram((at, resigned(right, change))))


def test_slots_of_two_members_contradict_each_other() -> None:
    other = Superblock(NAMES[1], 1, 0, config(events=9))
    member = ram(content(0, 1), (SUPERBLOCK_SLOT_BYTES, encode_superblock(other)))
    with pytest.raises(FormatError, match=r"m0.*different members"):
        read(member)


def test_a_configuration_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    member = ram(content(0, 1))
    before = bytes(member.memory)
    large = config(events=2, jobs={"list": "x" * BODY_BYTES_MAX})

    async def attempt() -> None:
        await write_config({NAMES[0]: member}, large)

    with pytest.raises(FormatError, check=because(Reason.METADATA_FULL)):
        run(attempt)
    assert bytes(member.memory) == before


def test_a_member_too_small_for_superblocks_has_none() -> None:
    small = RamMember(4096)
    assert run(read_superblock, small) is None


def test_an_unreadable_slot_leaves_the_other_one() -> None:
    inner = ram(content(4, 5), content(5, 6))

    class HalfBlind(RamMember):
        async def readv(self, offset_bytes: int, buffers: object) -> None:
            if offset_bytes == SUPERBLOCK_SLOT_BYTES:
                raise MemberError(self.path, "read", offset_bytes, 5)
            inner.try_readv(offset_bytes, buffers)

    found = run(read_superblock, HalfBlind(SIZE, name="blind"))
    assert found is not None
    assert found.events == 5
