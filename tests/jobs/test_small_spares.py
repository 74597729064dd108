"""A spare of a raidx layout takes the role of a larger member if it has room for the content."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import TooSmallError, UsageError
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from tests.support.growing import ram_of
from tests.support.load import under_load
from tests.support.spy import restarted
from tests.support.unlike import UnlikeRig

CHUNKS = (60, 44, 48, 50, 40)


def rig_of(name: str, *, slow: bool = False) -> UnlikeRig:
    """Return a rig of which half is free."""
    return UnlikeRig(name, 3 if name == "raidx-parity" else 2, CHUNKS, room=0.5, slow=slow)


async def begun(rig: UnlikeRig) -> int:
    """Create and fill the array, without restorations; return the bytes that role 0 needs.

    It holds less than when it was founded.
    """
    array = await rig.create(0.9)
    layout, mover = rig.bundles, ChunkMover(array.context, rig.bundles)
    before = layout.used_chunks()[0]
    for cell in [int(cell) for cell in layout.cells_of(Role(0)) if cell >= 0][::3]:
        for role in map(Role, range(1, 5)):
            if await mover.move([(cell, role, layout.free_chunks(role)[-1])]):
                break
    assert layout.used_chunks()[0] < before - 3
    await array.set("restore.after", "off")
    assert array.rebundle is not None
    needed: int = array.rebundle.needed_bytes(Role(0))
    return needed


@pytest.mark.parametrize("name", ["raidx-parity", "raidx-copy"])
async def test_a_spare_of_the_size_of_the_content_takes_the_role(name: str) -> None:
    rig = rig_of(name, slow=True)
    needed = await begun(rig)
    array = rig.array
    assert array.rebundle is not None
    assert needed < min(member.size_bytes for member in rig.members)
    least = min(map(array.rebundle.needed_bytes, map(Role, range(5))))
    with pytest.raises(UsageError, match=f"members need {least}; use a larger one"):
        await array.add_spare(RamMember(least - 4096, name="tiny"))
    rig.members.append(spare := rig.member_of(needed))
    await array.add_spare(spare)
    async with under_load(rig, 2):
        await array.fail_disk(0)
        await trio.sleep(0.1)
        await rig.settle()
    rig.members.pop(0)
    record = array.member_set.config.record(Role(0))
    assert (record.state, record.size_bytes) == ("active", needed)
    assert rig.bundles.counts[0] == rig.bundles.used_chunks()[0] + 1
    await rig.check()
    await rig.remount()
    await rig.array.fail_disk(2)
    await rig.compare()


@pytest.mark.parametrize("name", ["raidx-parity", "raidx-copy"])
async def test_a_kill_at_any_superblock_loses_nothing(name: str) -> None:
    rig = rig_of(name)
    needed = await begun(rig)
    array = rig.array
    spare = rig.member_of(needed)
    rig.members.append(spare)
    await array.add_spare(spare)
    images: list[list[bytes]] = []
    write, seen = array.member_set._write_superblocks, 0

    async def writing() -> None:
        nonlocal seen
        for _ in range(2):
            images.append([bytes(ram_of(member).memory) for member in rig.members])
            if not _:
                await write()
        seen += 1

    array.member_set._write_superblocks = writing  # type: ignore[method-assign]
    await array.fail_disk(0)
    await trio.sleep(1)
    await rig.settle()
    assert seen > 2
    for left in images:
        for present, has_spare in ((left, True), (left[1:], True), (left[1:-1], False)):
            async with restarted(present) as again:
                got = bytes(await again.read(0, len(rig.model)))
                assert got == bytes(rig.model)
                await trio.sleep(1)  # the spare takes the role
                while running := again.jobs.running():
                    await running[0].finished.wait()
                    await trio.sleep(0.1)
                assert again.member_set.lost == (set() if has_spare else {0})
                got = bytes(await again.read(0, len(rig.model)))
                assert got == bytes(rig.model)
    rig.members.pop(0)
    await rig.check()


async def test_of_two_spares_the_one_with_every_chunk_of_the_role_is_taken() -> None:
    rig = rig_of("raidx-parity")
    needed = await begun(rig)
    array = rig.array
    small, large = rig.member_of(needed), rig.disk(60)
    for spare in (small, large):
        rig.members.append(spare)
        await array.add_spare(spare)
    await array.fail_disk(0)
    await trio.sleep(1)
    await rig.settle()
    assert array.membership.path_of(array.membership.find(0)) == large.path
    rig.members.pop(0)
    await rig.check()


async def test_a_lost_member_is_replaced_by_a_smaller_one_and_one_in_use_is_not() -> None:
    rig = rig_of("raidx-parity")
    needed = await begun(rig)
    array = rig.array
    with pytest.raises(TooSmallError):
        await array.replace_disk(0, rig.member_of(needed))
    await array.fail_disk(0)
    with pytest.raises(UsageError, match=f"members need {needed}; use a larger one"):
        await array.replace_disk(0, rig.member_of(needed - 4096))
    rig.members[0] = rig.member_of(needed)
    await array.replace_disk(0, rig.members[0])
    await rig.settle()
    await rig.check()
    larger = rig.disk(60)  # and its chunks are those of the role again
    await array.replace_disk(0, larger)
    rig.members[0] = larger
    await rig.settle()
    assert rig.bundles.counts[0] >= 60
    await rig.check()
    await rig.remount()
