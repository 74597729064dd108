"""Superblocks: two slots, torn and rotten writes, rounds over several members."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import crc32c
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import FormatError, MemberError
from raidx_fuse.format.configuration.config import FAILED, ArrayConfig, MemberRecord, encode_config
from raidx_fuse.format.regions import COUNTER_MAX, SUPERBLOCK_SLOT_BYTES, plan_regions
from raidx_fuse.format.superblock import (
    BODY_BYTES_MAX,
    HEAD_BYTES,
    HEADER_BYTES,
    Superblock,
    decode_superblock,
    encode_superblock,
    read_slots,
    read_superblock,
    write_superblock,
)
from raidx_fuse.format.superblock_round import Patience, write_config
from raidx_fuse.members.base import Member, ReadBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run

SIZE = 1 << 20
NAMES = [str(uuid.UUID(int=100 + number)) for number in range(4)]


def config(width: int = 2, **changes: Any) -> ArrayConfig:
    made = ArrayConfig(
        array_uuid=str(uuid.UUID(int=5)),
        name="disk",
        layout="raid1",
        chunk_bytes=4096,
        width=width,
        members=tuple(MemberRecord(r, NAMES[r], "active", SIZE, f"m{r}") for r in range(width)),
        regions=plan_regions(SIZE, 4096, width),
    )
    return replace(made, **changes)


def ram(*contents: tuple[int, bytes], name: str = "m0") -> RamMember:
    member = RamMember(SIZE, name=name)
    for offset, content in contents:
        member.memory[offset : offset + len(content)] = content
    return member


def content(sequence: int, events: int, **changes: Any) -> tuple[int, bytes]:
    """Return offset and bytes of a superblock of member 0."""
    superblock = Superblock(NAMES[0], sequence, 0, config(events=events, **changes))
    return superblock.slot * SUPERBLOCK_SLOT_BYTES, encode_superblock(superblock)


def resigned(right: bytes, change: dict[int, bytes]) -> bytes:
    """Return the superblock *right* with pieces at offsets changed and its checksum correct."""
    raw = bytearray(right)
    for offset, piece in change.items():
        raw[offset : offset + len(piece)] = piece
    raw[12:16] = bytes(4)
    end = HEADER_BYTES + min(int.from_bytes(raw[16:20], "little"), len(raw))
    raw[12:16] = crc32c.crc32c(bytes(raw[:end])).to_bytes(4, "little")
    return bytes(raw)


def read(member: Member) -> Superblock | None:
    return run(read_superblock, member)


@settings(deadline=None)
@given(st.integers(0, COUNTER_MAX), st.integers(0, COUNTER_MAX), st.integers(0, 9))
def test_encoding_is_lossless(sequence: int, base: int, minor: int) -> None:
    superblock = Superblock(NAMES[0], sequence, base, config(), minor)
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
    offset, third = content(2, 3, extra={"later": "x" * 3000})
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
        assert found.config in (config(events=2), config(events=3, extra={"later": "x" * 3000}))
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

    with pytest.raises(FormatError, match="does not fit"):
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
            inner.try_readv(offset_bytes, buffers)  # type: ignore[arg-type]

    found = run(read_superblock, HalfBlind(SIZE, name="blind"))
    assert found is not None
    assert found.events == 5


# -- rounds --------------------------------------------------------------------------------------


def write_round(
    members: Mapping[str, Member], what: ArrayConfig, timeout_s: float | None = None
) -> frozenset[str]:
    async def write() -> frozenset[str]:
        if timeout_s is None:
            return await write_config(members, what)
        async with trio.open_nursery() as nursery:
            failed = await write_config(members, what, Patience(timeout_s, nursery))
            nursery.cancel_scope.cancel()
        return failed

    return run(write)


def test_rounds_alternate_slots_and_carry_where_the_members_stood() -> None:
    members: dict[str, Member] = {n: ram(name=n) for n in NAMES[:2]}
    bases: list[int] = []
    for events in (1, 2, 5, 6):
        assert write_round(members, config(events=events)) == set()
        for name, member in members.items():
            found = run(read_superblock, member)
            assert found is not None
            assert found.config == config(events=events)
            assert found.member_uuid == name
            assert found.slot == len(bases) % 2
            base = found.base_events
        bases.append(base)
    assert bases == [0, 1, 2, 5]
    slots = run(read_slots, members[NAMES[0]])
    assert [s.superblock.events for s in slots if s.superblock] == [5, 6]


def test_who_cannot_be_written_is_reported_not_raised() -> None:
    dead = FaultMember(ram(name="dead"))
    members: dict[str, Member] = {NAMES[0]: ram(), NAMES[1]: dead}
    dead.vanish()
    assert write_round(members, config()) == {NAMES[1]}
    assert run(read_superblock, members[NAMES[0]]) is not None


def test_who_hangs_is_reported_after_the_time_out() -> None:
    class Hanging(RamMember):
        async def flush(self) -> None:
            await trio.sleep_forever()

    members: dict[str, Member] = {
        NAMES[0]: ram(),
        NAMES[1]: Hanging(SIZE, name="slow"),
    }
    assert write_round(members, config(), 5.0) == {NAMES[1]}


def test_a_slot_that_an_overdue_superblock_may_still_reach_is_not_written() -> None:
    """Else the older one would land over the newer one, with the same number."""

    class Stuck(RamMember):
        stuck = True

        async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
            if self.stuck:
                self.stuck = False
                await trio.sleep_forever()
            await super().writev(offset_bytes, buffers)

    async def main() -> None:
        members: dict[str, Member] = {NAMES[0]: ram(), NAMES[1]: Stuck(SIZE, name="slow")}
        async with trio.open_nursery() as nursery:
            patience = Patience(5.0, nursery)
            for events in (1, 2):
                round_config = config(events=events)
                assert await write_config(members, round_config, patience) == {NAMES[1]}
            nursery.cancel_scope.cancel()

    run(main)


def test_a_round_heals_two_damaged_slots() -> None:
    member = ram(content(4, 5), content(5, 6))
    for slot in range(2):
        member.memory[slot * SUPERBLOCK_SLOT_BYTES + 200] ^= 1
    assert write_round({NAMES[0]: member}, config(events=7)) == set()
    found = run(read_superblock, member)
    assert found is not None
    assert found.events == 7


def test_a_round_never_overwrites_another_members_superblock() -> None:
    swapped = ram(content(0, 1), name="swapped")
    before = bytes(swapped.memory)
    members: dict[str, Member] = {NAMES[1]: swapped}
    assert write_round(members, config(events=9)) == {NAMES[1]}
    assert bytes(swapped.memory) == before
    alien = replace(config(events=9), array_uuid=str(uuid.UUID(int=6)))
    assert write_round({NAMES[0]: swapped}, alien) == {NAMES[0]}
    assert bytes(swapped.memory) == before


def test_a_round_never_overwrites_another_version() -> None:
    offset, raw = content(0, 1)
    later = resigned(raw, {8: b"\x02"})
    member = ram((offset, later), content(1, 2))
    with pytest.raises(FormatError, match="m0: format 2 is another version"):
        read(member)
    assert write_round({NAMES[0]: member}, config(events=9)) == {NAMES[0]}
    assert bytes(member.memory[: len(later)]) == later


def test_a_round_never_overwrites_a_side_that_went_on_alone() -> None:
    alone = config(events=4).started_with([NAMES[0]])
    member = ram()
    run(write_superblock, member, Superblock(NAMES[0], 0, 0, alone))
    for starts in (0, 1, 2):
        others = config(events=9, starts=starts)
        if starts:
            others = others.with_member_state(1, FAILED).parting_from(others)
        assert write_round({NAMES[0]: member}, others) == {NAMES[0]}
    found = run(read_superblock, member)
    assert found is not None
    assert found.config == alone


def test_the_lineage_parts_by_itself_whatever_the_caller_knows() -> None:
    """The engine keeps the configuration of its start; the superblocks know what happened since."""
    one, two, three = ram(), ram(), ram()
    started = config(events=2, starts=1)
    assert write_round({NAMES[0]: one, NAMES[1]: two}, started) == set()
    failed = replace(started.with_member_state(1, FAILED), events=3)
    assert write_round({NAMES[0]: one}, failed) == set()
    newcomer = MemberRecord(1, NAMES[2], "rebuilding", SIZE)
    seated = failed.with_record(newcomer)
    for events in (4, 5):
        members = {NAMES[0]: one, NAMES[2]: three}
        assert write_round(members, replace(seated, events=events)) == set()
    lineages = []
    for member in (one, three):
        found = run(read_superblock, member)
        assert found is not None
        lineages.append(found.config.lineage)
    assert lineages[0] == lineages[1]
    assert len(lineages[0]) == 1


def test_spares_are_written_as_they_are_present() -> None:
    spare = MemberRecord(-1, NAMES[2], "spare", SIZE)
    what = config(starts=1).with_record(spare)
    one, two, three = ram(), ram(), ram()
    both: dict[str, Member] = {NAMES[0]: one, NAMES[1]: two}
    assert write_round({**both, NAMES[2]: three}, what) == set()
    assert write_round(both, replace(what, events=2)) == set()
    found = run(read_superblock, one)
    assert found is not None
    assert found.config.members[-1].state == "missing"
    assert len(found.config.lineage) == 1
    assert write_round({**both, NAMES[2]: three}, replace(what, events=3)) == set()
    found = run(read_superblock, three)
    assert found is not None
    assert found.config.members[-1].state == "spare"


def test_a_newer_minor_version_and_its_fields_survive_a_round() -> None:
    member = ram()
    later = replace(config(events=2), extra={"later": [1]})
    run(write_superblock, member, Superblock(NAMES[0], 0, 0, later, minor=3))
    found = run(read_superblock, member)
    assert found is not None
    write_round({NAMES[0]: member}, replace(found.config, events=3))
    found = run(read_superblock, member)
    assert found is not None
    assert (found.minor, found.config.extra, found.events) == (3, {"later": [1]}, 3)


def test_a_round_is_never_for_the_excluded() -> None:
    failed = config(events=2).with_member_state(1, FAILED)

    async def attempt() -> None:
        await write_config({NAMES[1]: ram()}, failed)

    with pytest.raises(AssertionError, match="excluded"):
        run(attempt)
