"""Superblocks at both ends: damage of each kind to either, cuts at every step of a write."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raidx_fuse.array.check import check_members
from raidx_fuse.array.new_identity import give_new_identity
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, Reason
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.both_ends import (
    Copies,
    copies_of,
    erase_superblocks,
    has_none,
    lost_slots,
    read_copies,
    read_superblock,
    repair,
    searched_size,
)
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import create_array, prepare_member
from raidx_fuse.format.examine import examine
from raidx_fuse.format.regions import SUPERBLOCK_BYTES, SUPERBLOCK_SLOT_BYTES, Region, end_offset
from raidx_fuse.format.signature import find_signatures
from raidx_fuse.format.superblock import Superblock, encode_superblock, read_slots, write_config
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.simulated.powercut import (
    CutRecord,
    PowerCutMember,
    SparseImage,
    enumerate_cuts,
)
from tests.support.reasons import because

MIB = 1 << 20
SIZE = 64 * MIB
END = 63 * MIB - SUPERBLOCK_BYTES
LOG = 1 * MIB
NOISE = random.Random(3).randbytes(SUPERBLOCK_BYTES)
GPT = bytes(512) + b"EFI PART" + bytes(504)


def disks(count: int = 3, size: int = SIZE, record: CutRecord | None = None) -> list[Any]:
    return [
        PowerCutMember(SparseImage(size), name=f"d{number}", record=record)
        for number in range(count)
    ]


async def made(
    count: int = 3, layout: str = "raid5", size: int = SIZE, **options: Any
) -> tuple[list[Any], ArrayConfig]:
    members = disks(count, size)
    given = {"name": "disk", "now_s": 0, "log_bytes": LOG, **options}
    return members, await create_array(members, layout, **given)


def put(member: Any, offset: int, content: bytes) -> None:
    member.state.image[offset : offset + len(content)] = content


def resized(member: Any, size: int) -> Any:
    """Return a member of *size* with the content of *member*, as far as it goes."""
    image = SparseImage(size)
    for offset, length in member.state.image.extents(0, min(size, member.size_bytes)):
        image[offset : offset + length] = member.state.image[offset : offset + length]
    return PowerCutMember(image, name=member.path)


async def test_create_writes_all_four_slots_and_the_data_end_below() -> None:
    members, config = await made()
    assert config.needs == ("ends",)
    assert config.regions.data.end <= END == config.end_of(config.record(Role(1)))
    for member in members:
        slots = [*await read_slots(member), *await read_slots(member, end=end_offset(SIZE))]
        assert [slot.state for slot in slots] == ["valid"] * 4
        fields = [
            struct.unpack_from("<QQ", member.state.image[s.offset : s.offset + 96], 80)
            for s in slots
        ]
        assert fields == [(0, 0), (0, 0), (END, SIZE), (END + SUPERBLOCK_SLOT_BYTES, SIZE)]
    _, small = await made(size=SIZE - 512)
    assert small.needs == ()
    assert small.regions.data.end > SIZE - MIB


async def test_members_of_unlike_sizes_have_each_its_own_end() -> None:
    sizes = (40 * MIB, 80 * MIB + 12800, 100 * MIB)
    members = [PowerCutMember(SparseImage(size), name=f"d{size}") for size in sizes]
    options: dict[str, Any] = {"name": "x", "now_s": 0}
    config = await create_array(members, "raidx-copy", params={"length": 2}, **options)
    ends = [config.end_of(record) for record in config.members]
    assert ends == [None, 79 * MIB - SUPERBLOCK_BYTES, 99 * MIB - SUPERBLOCK_BYTES]
    async with open_array(members) as array:
        await array.write(0, b"x" * 70000)
    for member in members[1:]:
        put(member, 0, bytes(SUPERBLOCK_BYTES))
    async with open_array(members) as array:
        assert not array.member_set.lost
        assert await array.read(0, 70000) == b"x" * 70000


Damage = Callable[[Any], Any]  # of a member; what is there instead


def _written(offset: int, content: bytes) -> Damage:
    def damage(member: Any) -> Any:
        put(member, offset, content)
        return member

    return damage


FRONTS: dict[str, Damage] = {
    "zeros": _written(0, bytes(SUPERBLOCK_BYTES)),
    "noise": _written(0, NOISE),
    "the first MiB": _written(0, bytes(MIB)),
    "damage": lambda member: _written(200, b"x")(_written(65536 + 200, b"x")(member)),
}
ENDS: dict[str, Damage] = {
    "zeros": _written(END, bytes(SUPERBLOCK_BYTES)),
    "noise": _written(END, NOISE),
    "damage": lambda member: _written(END + 200, b"x")(_written(END + 65736, b"x")(member)),
    "truncated": lambda member: resized(member, END),
}
TAKEN: dict[str, Damage] = {
    "GPT": _written(0, GPT),
    "GPT over noise": lambda member: _written(0, GPT)(_written(0, NOISE)(member)),
    "GPT over zeros": lambda member: _written(0, GPT)(_written(0, bytes(MIB))(member)),
}


@pytest.mark.parametrize("where", FRONTS)
async def test_a_front_that_is_lost_costs_no_member_and_is_written_when_asked(where: str) -> None:
    members, _ = await made()
    async with open_array(members) as array:
        await array.write(0, b"before" * 1000)
    members[1] = FRONTS[where](members[1])
    front = bytes(members[1].state.image[0:SUPERBLOCK_BYTES])
    assembly = await assemble(members)
    assert sorted(assembly.by_role) == [0, 1, 2]
    warning, *behind = assembly.warnings
    assert "d1: its front has no superblock" in warning
    assert ["the map behind its front is gone" in text for text in behind] == [True] * (
        where == "the first MiB"
    )
    said = await examine(members[1])
    assert said["valid"] is True
    assert "--repair-superblocks" in said["problem"]
    async with open_array(members) as array:
        assert await array.read(0, 6000) == b"before" * 1000
        await array.write(0, b"after." * 1000)
    assert bytes(members[1].state.image[0:SUPERBLOCK_BYTES]) == front, "nobody asked for it"
    (_, copies, _) = await copies_of(members)
    assert not isinstance(copies, Exception)
    await repair(members[1], copies)
    assert lost_slots(await read_copies(members[1])) == []
    assert (await assemble(members)).warnings == []
    put(members[1], END, bytes(SUPERBLOCK_BYTES))  # the front is enough again
    async with open_array(members) as array:
        assert await array.read(0, 6000) == b"after." * 1000
    assert (await read_slots(members[1], end=end_offset(SIZE)))[0].superblock is not None


@pytest.mark.parametrize(
    ("layout", "sums", "words"),
    [
        (
            "raid5",
            False,
            "raidx replace-disk ARRAY 1 d1; raidx scrub --repair would trust the data",
        ),
        ("raid5", True, "healed by the checksums: raidx scrub --repair"),
        ("raid0", False, "the others cannot give that back"),
    ],
)
async def test_what_may_have_gone_on_into_the_data_is_said_with_what_to_do(
    layout: str, sums: bool, words: str
) -> None:
    members, _ = await made(layout=layout, sums=sums)
    for written in (b"", b"x" * 5000):
        async with open_array(members) as array:
            await array.write(0, written)
        cut = [PowerCutMember(member.crash(), name=member.path) for member in members]
        put(cut[1], 0, bytes(2 * MIB))
        _, *behind = (await assemble(cut)).warnings
        assert [words in text for text in behind] == [True] * bool(written), behind


@pytest.mark.parametrize("where", ENDS)
async def test_an_end_that_is_lost_is_named_and_written_by_the_next_round(where: str) -> None:
    members, _ = await made()
    async with open_array(members):
        pass
    members[1] = ENDS[where](members[1])
    assembly = await assemble(members)
    assert sorted(assembly.by_role) == [0, 1, 2]
    (warning,) = assembly.warnings
    assert "the superblocks at its end are lost" in warning
    async with open_array(members):
        pass
    size = members[1].size_bytes
    assert len(members[1].state.image) == size, "no write extends a member"
    assert bool((await assemble(members)).warnings) == (where == "truncated")


@pytest.mark.parametrize("where", TAKEN)
async def test_a_signature_in_front_outweighs_a_valid_end(where: str) -> None:
    members, _ = await made()
    async with open_array(members):
        pass
    members[1] = TAKEN[where](members[1])
    assembly = await assemble(members)
    assert sorted(assembly.by_role) == [0, 2]
    assert any(
        "d1 carries a GPT" in text and "--accept-member" in text for text in assembly.warnings
    )
    with pytest.raises(AssemblyError, check=because(Reason.MEMBERS_MISSING)):
        await assemble([members[1], members[2]])
    copies = await read_copies(members[1])
    await repair(members[1], copies)
    assert sorted((await assemble(members)).by_role) == [0, 1, 2]
    assert [s.name for s in await find_signatures(members[1])] == ["a raidx member"] * 4


async def test_both_ends_lost_is_no_member() -> None:
    members, _ = await made()
    for damage in (FRONTS["noise"], ENDS["zeros"]):
        damage(members[1])
    assembly = await assemble(members)
    assert sorted(assembly.by_role) == [0, 2]
    assert any("d1 is no member of an array" in text for text in assembly.warnings)


async def test_a_front_copied_from_another_member_is_left_out_not_taken_for_that_one() -> None:
    members, _ = await made()
    put(members[1], 0, bytes(members[0].state.image[0:MIB]))
    assembly = await assemble(members)
    assert sorted(assembly.by_role) == [0, 2]
    assert any("of different members" in text for text in assembly.warnings)


async def test_an_enlarged_member_is_found_by_the_size_that_the_others_know() -> None:
    members, _ = await made()
    members[1] = resized(members[1], SIZE + 5 * MIB)
    put(members[1], 0, NOISE)
    assert sorted((await assemble(members)).by_role) == [0, 1, 2]
    with pytest.raises(AssemblyError):
        await assemble([members[1]])  # nobody says it
    async with open_array(members):
        pass
    assert (await read_slots(members[1], end=end_offset(SIZE)))[0].superblock is not None
    copies = (await copies_of(members))[1]
    assert not isinstance(copies, Exception)
    await repair(members[1], copies)
    assert (await assemble([members[1], members[2]])).warnings[0].startswith("role 0")


async def test_an_end_that_nobody_knows_is_searched_and_no_other_is_taken_for_it() -> None:
    """All were enlarged, and two lost their fronts: the third says which array it was, not where.

    Beyond the end lie that of an array that the disk was in before, and a copy of the own one.
    """
    members, _ = await made()
    async with open_array(members) as array:
        await array.write(0, b"kept" * 1000)
    old, _ = await made(size=SIZE + 5 * MIB)
    for number, member in enumerate(members):
        members[number] = resized(member, SIZE + 9 * MIB + 12345)
        end = bytes(member.state.image[END : END + SUPERBLOCK_BYTES])
        put(
            members[number],
            END + 5 * MIB,
            bytes(old[0].state.image[END + 5 * MIB : SIZE + 4 * MIB]),
        )
        put(members[number], END + 7 * MIB, end)
        put(members[number], 0, NOISE)
    assert [has_none(one) for one in await copies_of(members)] == [True] * 3
    assert [await searched_size(member) for member in members] == [SIZE + 5 * MIB] * 3
    put(members[2], END + 5 * MIB, bytes(SUPERBLOCK_BYTES))
    put(members[2], END, bytes(SUPERBLOCK_SLOT_BYTES))  # one slot is enough
    copies = (await copies_of(members[2:], searched=True))[0]
    assert isinstance(copies, Copies)
    await repair(members[2], copies)
    assert [has_none(one) for one in await copies_of(members)] == [False] * 3
    put(members[2], END, bytes(SUPERBLOCK_BYTES))
    async with open_array(members) as array:
        assert not array.member_set.lost
        assert await array.read(0, 4000) == b"kept" * 1000


async def test_a_deep_check_says_where_an_end_lies_that_the_others_do_not_know() -> None:
    """They were told of a size at which nothing was written: a cut between two programs, say."""
    members, config = await made()
    records = (replace(each, size_bytes=2 * SIZE) for each in config.members)
    changed = replace(config, members=tuple(records), events=config.events + 1)
    known = {config.record(Role(role)).member_uuid: members[role] for role in (0, 2)}
    for member in known.values():
        put(member, END, bytes(SUPERBLOCK_BYTES))
    members[1] = resized(members[1], SIZE + 3 * MIB)
    put(members[1], 0, NOISE)
    assert not await write_config(known, changed)
    for deep in (False, True):
        problems = (await check_members(members, deep=deep))["problems"]
        found = [each for each in problems if each["member"] == "d1"]
        assert [f"lie at byte {END}" in each["what"] for each in found] == [True] * deep


async def test_a_search_reads_no_hole_and_two_pages_of_each_mib() -> None:
    members, _ = await made(2, "raid1")
    member = resized(members[0], 1 << 40)
    put(member, 0, NOISE)
    put(member, 1 << 39, b"x" * 8 * MIB)
    reads: list[int] = []
    try_readv = member.try_readv

    def counted(offset: int, buffers: Any) -> bool:
        reads.extend(map(len, buffers))
        return bool(try_readv(offset, buffers))

    member.try_readv = counted
    assert await searched_size(member) == SIZE
    assert sum(reads) <= 8 * 2 * 4096 + (64 << 10)


async def test_a_log_lost_with_the_front_is_not_taken_for_an_empty_one() -> None:
    members, _ = await made(2, "raid0")
    async with open_array(members) as array:
        await array.write(0, b"x" * 5000)
        await array.flush()
        images = [member.crash() for member in members]
    members = [PowerCutMember(image, name=f"d{n}") for n, image in enumerate(images)]
    put(members[0], 0, bytes(SUPERBLOCK_BYTES))  # its log is there
    async with open_array([PowerCutMember(m.crash(), name=m.path) for m in members]) as array:
        assert await array.read(0, 5000) == b"x" * 5000
    put(members[0], 0, bytes(MIB))
    with pytest.raises(AssemblyError, check=because(Reason.WRITE_HOLE)):
        async with open_array(members):
            pass
    async with open_array(members, start_degraded=True):
        pass


async def test_larger_members_move_their_ends_and_leave_none_in_the_data() -> None:
    """Cut at each step, a member without its front is found at the end of either size."""
    old, _ = await made()
    async with open_array(old) as array:
        await array.write(0, b"z" * 200_000)
    record = CutRecord()
    members = [
        PowerCutMember(resized(member, 2 * SIZE).state.image, name=member.path, record=record)
        for member in old
    ]
    async with open_array(members) as array:
        before = array.size_bytes
        begin = len(record.events)
        await array.larger_members.use()
        done = len(record.events)
        assert array.size_bytes > 2 * before - 10 * MIB
        sizes = {each.size_bytes for each in array.member_set.config.members}
    assert sizes == {2 * SIZE}
    for member in members:
        assert not any(member.state.image[END : END + SUPERBLOCK_BYTES])
    rng = random.Random(5)
    for index, states, _event in record.moments():
        if not begin <= index <= done:
            continue
        cut = [
            PowerCutMember(state.crash(state.sample(rng)), name=f"d{number}")
            for number, state in enumerate(states)
        ]
        lost = rng.randrange(3)
        put(cut[lost], 0, bytes(SUPERBLOCK_BYTES))
        async with open_array(cut) as array:
            assert not array.member_set.lost
            assert await array.read(0, 200_000) == b"z" * 200_000


async def test_of_two_ends_the_newest_counts() -> None:
    """A change of the size wrote the new end, and was cut; the array went on with the old one."""
    members, _ = await made()
    members = [resized(member, 2 * SIZE) for member in members]
    end = end_offset(2 * SIZE)
    assert end is not None
    for member in members:
        superblock = await read_superblock(member)
        assert superblock is not None
        content = encode_superblock(superblock, end=end, size_bytes=2 * SIZE)
        put(member, end + superblock.slot * SUPERBLOCK_SLOT_BYTES, content)
    async with open_array(members) as array:
        await array.write(0, b"new" * 1000)
    for member in members:
        put(member, 0, bytes(SUPERBLOCK_BYTES))
    assembly = await assemble(members)
    assert assembly.config.starts == 1
    async with open_array(members) as array:
        assert await array.read(0, 3000) == b"new" * 1000


# -- rounds --------------------------------------------------------------------------------------


def _either_end(image: SparseImage) -> list[Any]:
    """Return members with *image*, of which one has its front alone, the other its end."""
    found = []
    for lost in (END, 0):
        member = PowerCutMember(image.copy(), name="d0")
        put(member, lost, bytes(SUPERBLOCK_BYTES))
        found.append(member)
    return found


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_a_cut_in_a_round_leaves_the_newest_or_the_one_before_at_each_end(
    rounds: int,
) -> None:
    """Whatever it keeps and tears of the two writes; and after the flush both have the newest."""
    (member, *_), config = await made(2, "raid1")
    uuid = config.record(Role(0)).member_uuid
    for _ in range(rounds - 1):
        config = config.bumped()
        assert not await write_config({uuid: member}, config)
    older, config = config, config.bumped()
    states: list[SparseImage] = []

    def cut(_event: object) -> None:
        states.extend(member.crash(kept) for (kept,) in enumerate_cuts([member.state]))

    flush = member.flush

    async def flushed() -> None:
        cut(None)
        await flush()

    member.tell(cut)
    member.flush = flushed
    assert not await write_config({uuid: member}, config)
    assert len(states) > 20
    for image in states:
        for alone in _either_end(image):
            found = await read_superblock(alone)
            assert found is not None
            assert found.events in (older.events, config.events)
    for alone in _either_end(member.crash()):
        found = await read_superblock(alone)
        assert found is not None
        assert found.events == config.events


async def test_a_first_round_that_was_cut_is_no_lost_front() -> None:
    members, config = await made(2, "raid1")
    for slot in (0, SUPERBLOCK_SLOT_BYTES, END + SUPERBLOCK_SLOT_BYTES):
        put(members[0], slot, bytes(SUPERBLOCK_SLOT_BYTES))
    by_uuid = {r.member_uuid: members[r.role] for r in config.members}
    assert not await write_config(by_uuid, config.bumped())
    assert (await read_slots(members[0]))[1].superblock is not None


async def test_a_repair_that_is_cut_leaves_what_the_damage_left() -> None:
    for damage in (*FRONTS.values(), *(ENDS[name] for name in ("zeros", "noise")), *TAKEN.values()):
        (member, *_), _ = await made()
        damage(member)
        before = await read_superblock(member)
        states: list[SparseImage] = []

        def cut(_event: object, member: Any = member, states: list[Any] = states) -> None:
            rng = random.Random(len(states))
            for _ in range(6):
                states.append(member.crash(member.state.sample(rng)))

        member.tell(cut)
        await repair(member, await read_copies(member))
        assert len(states) >= 12
        assert before is not None
        for image in states:
            found = await read_superblock(PowerCutMember(image, name="d0"))
            assert found is not None
            assert (found.member_uuid, found.config) == (before.member_uuid, before.config)


# -- erasing -------------------------------------------------------------------------------------


async def _alone(member: Any) -> Superblock | None:
    """Return what the end of *member* says without its front."""
    put(member, 0, bytes(SUPERBLOCK_BYTES))
    return await read_superblock(member)


async def test_what_erases_superblocks_erases_both_ends() -> None:
    members, config = await made(4)
    enlarged = resized(members[3], SIZE + 9 * MIB)
    await erase_superblocks(members[0])
    await prepare_member(members[1], config.regions)
    await erase_superblocks(enlarged)
    for member in (members[0], members[1], enlarged):
        assert await _alone(member) is None
        assert end_offset(SIZE) == END
        assert not any(member.state.image[END : END + SUPERBLOCK_BYTES])
    put(members[2], 0, bytes(MIB))
    put(members[2], 0, GPT)
    before = bytes(members[2].state.image[0:MIB])
    await erase_superblocks(members[2])
    assert bytes(members[2].state.image[0:MIB]) == before, "it may be somebody's"
    assert not any(members[2].state.image[END : END + SUPERBLOCK_BYTES])


async def test_a_member_that_was_replaced_has_no_end_any_more() -> None:
    members, _ = await made()
    new = PowerCutMember(SparseImage(SIZE + 3 * MIB), name="new")
    async with open_array(members) as array:
        await array.write(0, b"y" * 300_000)
        job = (await array.replace_disk(1, new))["job"]
        assert (await array.jobs.wait(job))["state"] == "done"
        assert await _alone(members[1]) is None
        config = array.member_set.config
    record = config.record(Role(1))
    assert config.end_of(record) == 66 * MIB - SUPERBLOCK_BYTES
    assert (await _alone(new)) is not None
    async with open_array([members[0], new, members[2]]) as array:
        assert not array.member_set.lost
        assert await array.read(0, 300_000) == b"y" * 300_000
    for member in (members[0], members[2]):
        assert (await _alone(member)) is not None


async def test_a_new_identity_is_that_of_both_ends_wherever_it_was_cut() -> None:
    old, _ = await made(2, "raid1")
    async with open_array(old) as array:
        await array.write(0, b"copy" * 1000)
    record = CutRecord()
    members = [PowerCutMember(m.crash(), name=m.path, record=record) for m in old]
    former, config = await give_new_identity(members)
    assert former != config.array_uuid
    for member in members:
        slots = [*await read_slots(member), *await read_slots(member, end=end_offset(SIZE))]
        valid = [slot.superblock for slot in slots if slot.superblock is not None]
        assert {one.array_uuid for one in valid} == {config.array_uuid}
        assert len(valid) == 4
    rng = random.Random(11)
    for index, states, _event in record.moments():
        if index % 2:
            continue
        cut = [
            PowerCutMember(state.crash(state.sample(rng)), name=f"d{number}")
            for number, state in enumerate(states)
        ]
        found = [await read_superblock(member) for member in cut]
        if any(one is not None and one.array_uuid != former for one in found):
            _, config = await give_new_identity(cut)
        for member in cut:
            put(member, 0, bytes(SUPERBLOCK_BYTES))
        async with open_array(cut) as array:
            assert not array.member_set.lost
            assert await array.read(0, 4000) == b"copy" * 1000


async def test_the_content_of_a_user_at_that_place_is_no_end() -> None:
    """Of an array without ends, the data lie there."""
    members, _ = await made(1, "raid0", size=SIZE - 512)
    member = resized(members[0], SIZE)
    other, _ = await made(1, "raid0")
    moved = bytes(other[0].state.image[0:SUPERBLOCK_BYTES])
    put(member, END, moved)  # a front, not an end
    assert (await examine(member))["problem"] is None
    await erase_superblocks(member)
    assert bytes(member.state.image[END : END + SUPERBLOCK_BYTES]) == moved
    put(member, END, bytes(other[0].state.image[END : END + SUPERBLOCK_BYTES]))
    assert (await read_superblock(member)) is not None  # nothing in front says otherwise


async def test_an_end_inside_the_data_does_not_count() -> None:
    members, config = await made()
    uuid = config.record(Role(0)).member_uuid
    data = Region(config.regions.data.offset, 2 * SIZE)
    changed = replace(config, regions=replace(config.regions, data=data))
    assert changed.end_of(changed.record(Role(0))) is None
    assert not await write_config({uuid: members[0]}, changed.bumped())
    put(members[0], 0, NOISE)
    found = await read_superblock(members[0])
    assert found is None or found.config == config
