"""A new identity for a copy of an array, cut at every write: it is one of the two, or completed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from raidx_fuse.array.new_identity import give_new_identity
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import AssemblyError, RaidxError, Reason, UsageError
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.powercut import CutRecord, Image, PowerCutMember
from raidx_fuse.pool.array_volumes import open_volumes
from raidx_fuse.pool.pool import by_array
from tests.support.reasons import because

SIZE = 1 << 20
SHAPES: list[tuple[str, int, dict[str, Any]]] = [
    ("raid1", 2, {}),
    ("raid5", 3, {}),
    ("rdp", 4, {}),
    ("raidx-parity", 4, {"length": 3}),
]


def powercut(
    images: Sequence[Image], record: CutRecord | None = None, first: int = 0
) -> list[Member]:
    """Return members with copies of *images*, numbered from *first*."""
    return [
        PowerCutMember(image.copy(), name=f"d{number}", record=record)
        for number, image in enumerate(images, first)
    ]


def images_of(members: Sequence[Member]) -> list[Image]:
    """Return the content of *members*."""
    return [member.crash() for member in members if isinstance(member, PowerCutMember)]


async def made(
    layout: str, width: int, params: dict[str, Any], content: bytes, *, spare: bool = False
) -> list[Member]:
    """Return the members of an array with *content*, closed, after a second start."""
    members = powercut([bytearray(SIZE)] * width)
    options: dict[str, Any] = {"name": "v", "now_s": 0, "chunk_bytes": 4096, "params": params}
    await create_array(members, layout, with_volume=False, **options)
    async with open_array(members) as array, open_volumes(array) as volumes:
        for name in ("first", "second"):
            await volumes.create(name, 16384)
        await array.write(0, content)
    async with open_array(members) as array:
        await array.write(4096, content[4096:])
        if spare:
            members += powercut([bytearray(SIZE)], first=width)
            await array.add_spare(members[-1])
        if isinstance(layout_made := array.context.layout, BundleLayout):
            mover = ChunkMover(array.context, layout_made)
            pairs = ((one, other) for one in range(8) for other in range(one))
            moves = (mover.exchange(*pair) for pair in pairs)
            swap = next(m for m in moves if m[0][1] != m[1][1] and mover.problem(m) is None)
            assert await mover.move(swap)  # so that shares of the table have pages
    return members


async def identity(members: Sequence[Member], content: bytes) -> tuple[str, set[str], set[str]]:
    """Return the UUIDs of array, members and volumes; the array is whole and has *content*."""
    async with open_array(members) as array, open_volumes(array) as volumes:
        assert not array.member_set.lost
        assert all(r.state in ("active", "spare") for r in array.member_set.config.members)
        assert all("the other one is used" in text for text in array.warnings), "a torn superblock"
        assert bytes(await array.read(0, len(content))) == content
        names = {volume.uuid for volume in volumes.volumes}
        return array.uuid, {r.member_uuid for r in array.member_set.config.members}, names


@pytest.mark.parametrize(("layout", "width", "params"), SHAPES)
async def test_a_cut_leaves_one_of_the_two_arrays_or_what_the_same_command_completes(
    layout: str, width: int, params: dict[str, Any]
) -> None:
    content = random.Random(1).randbytes(40000)
    generator = random.Random(2)

    before = images_of(await made(layout, width, params, content, spare=layout == "raid5"))
    old = await identity(powercut(before), content)
    record = CutRecord()
    former, _ = await give_new_identity(powercut(before, record))
    assert former == old[0]
    seen = set()
    for _, disks, _ in record.moments():
        for decisions in (
            [None] * len(disks),
            [[write.kept for write in disk.open_writes] for disk in disks],
            [disk.sample(generator) for disk in disks],
        ):
            left = [disk.crash(how) for disk, how in zip(disks, decisions, strict=True)]
            try:
                (members,) = await by_array(powercut(left))
                seen.add("old" if await identity(members, content) == old else "new")
            except AssemblyError as error:
                seen.add(error.action)
            members = powercut(left)
            await give_new_identity(members)
            new = await identity(members, content)
            assert new[0] != old[0]
            assert not new[1] & old[1]
            assert len(new[2]) == len(old[2])
            assert not new[2] & old[2]
    assert seen == {"old", "new", "complete it: raidx rename --new-uuid with all members"}


async def test_who_was_started_meanwhile_is_not_mixed_with_the_others() -> None:
    content = random.Random(1).randbytes(40000)

    before = images_of(await made("raid1", 2, {}, content))
    record = CutRecord()
    await give_new_identity(powercut(before, record))
    for _, disks, _ in record.moments():
        left = [disk.crash() for disk in disks]
        found = [await read_superblock(member) for member in powercut(left)]
        if len({one.array_uuid for one in found if one is not None}) == 2:
            break
    for alone in (0, 1):
        members = powercut(left)
        async with open_array([members[alone]]):
            pass
        with pytest.raises(AssemblyError, check=because(Reason.OUTDATED)):
            await give_new_identity(members)
        with pytest.raises(RaidxError):
            await by_array(members)


async def test_a_member_that_would_keep_the_old_uuid_is_missed() -> None:
    content = random.Random(1).randbytes(40000)

    members = await made("raid5", 3, {}, content)
    before = images_of(members)
    with pytest.raises(UsageError, check=because(Reason.MEMBERS_MISSING)):
        await give_new_identity(members[:2])
    assert images_of(members) == before
    async with open_array(members[:2]):
        pass
    # Who is out of the array already is out of its copy.
    await give_new_identity(members[:2])
    with pytest.raises(AssemblyError, check=because(Reason.SEVERAL_ARRAYS)):
        async with open_array(members):
            pass
