"""Rounds of superblocks over the members: slots in turn, hangs, damage, foreign superblocks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import OtherVersionError
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.config import FAILED, ArrayConfig, MemberRecord
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import (
    Patience,
    Superblock,
    encode_superblock,
    read_slots,
    write_config,
    write_superblock,
)
from raidx_fuse.laws import LawError
from raidx_fuse.members.base import Member, ReadBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.scenario import with_state
from tests.support.superblocks import NAMES, SIZE, config, content, ram, read, resigned


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


async def test_a_slot_that_an_overdue_superblock_may_still_reach_is_not_written() -> None:
    """Else the older one would land over the newer one, with the same number."""

    class Stuck(RamMember):
        stuck = True

        async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
            if self.stuck:
                self.stuck = False
                await trio.sleep_forever()
            await super().writev(offset_bytes, buffers)

    members: dict[str, Member] = {NAMES[0]: ram(), NAMES[1]: Stuck(SIZE, name="slow")}
    async with trio.open_nursery() as nursery:
        patience = Patience(5.0, nursery)
        for events in (1, 2):
            round_config = config(events=events)
            assert await write_config(members, round_config, patience) == {NAMES[1]}
        nursery.cancel_scope.cancel()


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
    with pytest.raises(OtherVersionError, match=r"m0: format 2\.0 is another version"):
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
            others = with_state(others, 1, FAILED).parting_from(others)
        assert write_round({NAMES[0]: member}, others) == {NAMES[0]}
    found = run(read_superblock, member)
    assert found is not None
    assert found.config == alone


def test_the_lineage_parts_by_itself_whatever_the_caller_knows() -> None:
    """The engine keeps the configuration of its start; the superblocks know what happened since."""
    one, two, three = ram(), ram(), ram()
    started = config(events=2, starts=1)
    assert write_round({NAMES[0]: one, NAMES[1]: two}, started) == set()
    failed = replace(with_state(started, 1, FAILED), events=3)
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


HEADERS = {
    "another major version": ({8: b"\x02"}, r"format 2\.0 is another version"),
    "a newer minor version": ({10: b"\x03"}, r"format 1\.3 is newer, this raidx knows 1\.0"),
    "a new field of the header": ({127: b"\x01"}, "its header has fields that are unknown"),
    "a new field of the configuration": (
        {130: b"z"},
        "the configuration has the field 'zrray_uuid'",
    ),
}


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("newer", [0, 1])
def test_what_is_not_known_is_refused_and_does_not_give_way_to_the_slot_before(
    what: str, newer: int
) -> None:
    """The configuration before it may count on members that are excluded by now."""
    changes, words = HEADERS[what]
    first, second = content(newer, 5), content(newer + 1, 6)
    member = ram(first, (second[0], resigned(second[1], changes)))
    before = bytes(member.memory)
    with pytest.raises(OtherVersionError, match=f"m0: {words}.*; use the raidx that wrote it"):
        read(member)
    assert write_round({NAMES[0]: member}, config(events=9)) == {NAMES[0]}
    assert bytes(member.memory) == before


async def test_an_array_is_not_started_as_if_a_member_of_a_newer_raidx_were_absent() -> None:
    """Without it, a member would count that the newer raidx had excluded: acknowledged bytes."""
    members = [ram(name=f"m{n}") for n in range(2)]
    await create_array(members, "raid1", name="disk", now_s=0, chunk_bytes=4096)
    slots = [await read_slots(member) for member in members]
    for slot in slots[0]:
        if slot.superblock is not None:
            content = encode_superblock(slot.superblock)
            at = slot.number * SUPERBLOCK_SLOT_BYTES
            members[0].memory[at : at + len(content)] = resigned(content, {10: b"\x01"})
    before = [bytes(member.memory) for member in members]
    for given in (members, members[::-1]):
        with pytest.raises(OtherVersionError, match=r"m0: format 1\.1 is newer"):
            async with open_array(given):
                raise AssertionError("it starts")
    assert [bytes(member.memory) for member in members] == before


def test_a_round_is_never_for_the_excluded() -> None:
    failed = with_state(config(events=2), 1, FAILED)

    async def attempt() -> None:
        await write_config({NAMES[1]: ram()}, failed)

    with pytest.raises(LawError, match="excluded"):
        run(attempt)
