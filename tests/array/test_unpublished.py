"""Nothing is acknowledged on a configuration that a member lacks.

The area of the superblocks refuses writes, that of the data takes them, and nobody can be spared:
no redundancy, or none is left. A member that is killed then must have what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import ArrayFailedError
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import ALL, WRITE, FaultMember, Operation
from raidx_fuse.members.simulated.virtual_time import sleep
from raidx_fuse.pool.array_volumes import open_volumes
from tests.support.spy import SpyRig, filled, noise, restarted, spied

MIB = 1 << 20
CHUNK = 4096
SUPERBLOCKS = 128 << 10


def deafen(*members: FaultMember) -> None:
    """Let the superblocks of *members* refuse every write."""
    for member in members:
        member.error(WRITE, offset_bytes=0, length_bytes=SUPERBLOCKS)


def copies(rams: list[RamMember]) -> list[RamMember]:
    """Return members with the present content of *rams*, as after kill -9."""
    found = [RamMember(ram.size_bytes, name=ram.path) for ram in rams]
    for copy, ram in zip(found, rams, strict=True):
        copy.memory[:] = ram.memory
        copy.reads_zero = False
    return found


@pytest.mark.parametrize("deaf", [1, 2])
@pytest.mark.parametrize("change", ["create", "delete", "shrink", "enlarge", "rename"])
async def test_a_change_of_volumes_that_a_superblock_lacks_is_refused_and_undone(
    change: str, deaf: int
) -> None:
    rams = [RamMember(16 * MIB, name=f"m{number}") for number in range(2)]
    members = [FaultMember(ram) for ram in rams]
    await create_array(members, "raid0", chunk_bytes=CHUNK, name="a", now_s=0, with_volume=False)
    data, shots = noise(4 * MIB), []
    async with open_array(members) as array, open_volumes(array) as volumes:
        old = await volumes.create("old", 4 * MIB)
        await old.write(0, data)
        await old.flush()
        changes: dict[str, Callable[[], Awaitable[Any]]] = {
            "create": lambda: volumes.create("new", MIB),
            "delete": lambda: volumes.delete(old, lose_data=True),
            "shrink": lambda: volumes.resize(old, MIB, lose_data=True),
            "enlarge": lambda: volumes.resize(old, 8 * MIB),
            "rename": lambda: volumes.rename(old, "other"),
        }
        deafen(*members[:deaf])
        with pytest.raises(ArrayFailedError, match="lacks the newest configuration"):
            await changes[change]()
        assert [volume.name for volume in volumes.volumes] == ["old"]
        assert old.size_bytes == 4 * MIB
        with pytest.raises(ArrayFailedError):
            await old.write(0, data[:CHUNK])
        with pytest.raises(ArrayFailedError):
            await old.flush()
        shots.append(copies(rams))
        for member in members:
            member.clear()
        await old.write(0, data)
        await old.flush()  # it works again, and so does what was refused
        assert [record.size_bytes for record in volumes.table().volumes] == [4 * MIB]
        shots.append(copies(rams))
        await changes[change]()
    for number, shot in enumerate(shots):
        async with open_array(shot) as array, open_volumes(array) as volumes:
            found = {volume.name: volume for volume in volumes.volumes}
            if not number and deaf == 1:
                continue  # the other superblock may have the change: neither was acknowledged
            assert list(found) == ["old"]
            assert bytes(await found["old"].read(0, 4 * MIB)) == data


@pytest.mark.parametrize("operations", [WRITE, ALL], ids=["writes", "all"])
async def test_a_member_that_lacks_several_superblocks_is_no_old_copy(
    operations: tuple[Operation, ...],
) -> None:
    rams = [RamMember(16 * MIB, name=f"m{number}") for number in range(2)]
    members = [FaultMember(ram) for ram in rams]
    await create_array(members, "raid0", chunk_bytes=CHUNK, name="a", now_s=0)
    data = noise(MIB)
    async with open_array(members) as array:
        await array.write(0, data)
        await array.flush()
        members[0].error(operations, offset_bytes=0, length_bytes=SUPERBLOCKS)
        for _ in range(4):
            with pytest.raises(ArrayFailedError):
                await array.set("journal", "full")
        shot = copies(rams)
        members[0].clear()
    async with open_array(shot) as array:  # the power was cut meanwhile
        assert bytes(await array.read(0, MIB)) == data


@pytest.mark.parametrize("both", [False, True], ids=["one", "all"])
async def test_what_relies_on_a_growth_position_waits_until_all_superblocks_have_it(
    both: bool,
) -> None:
    rig = await filled("raid0", 2, chunk_bytes=CHUNK, stripes=3000)
    more = rig.new_member()
    await rig.array.grow([more])
    (job,) = rig.array.jobs.running()
    job.limit(0, MIB)
    await sleep(3)
    growth = rig.array.context.growth
    assert growth is not None
    deafen(*([*rig.members, more] if both else [more]))
    await sleep(1)
    assert growth.saved < growth.layout.migrated
    at = 0

    async def overwrite() -> None:
        nonlocal at
        while True:
            await rig.put(at, noise(MIB, at))
            at += MIB

    with pytest.raises(ArrayFailedError):
        await overwrite()
    with pytest.raises(ArrayFailedError):
        await rig.array.flush()
    async with restarted(rig.images()) as array:
        got = bytes(await array.read(0, len(rig.model)))
    assert got[:at] == rig.model[:at]
    assert got[at + MIB :] == rig.model[at + MIB :]
    for member in (*rig.members, more):
        member.clear()


async def settings(rig: SpyRig) -> None:
    """Change a setting."""
    await rig.array.set("speed_max", "8MiB")


async def mode(rig: SpyRig) -> None:
    """Change the mode of the journal."""
    await rig.array.set("journal", "none")


async def spare(rig: SpyRig) -> None:
    """Add a spare."""
    await rig.array.add_spare(rig.new_member())


@pytest.mark.parametrize("change", [settings, mode, spare])
async def test_a_degraded_array_acknowledges_nothing_that_a_superblock_lacks(
    change: Callable[[SpyRig], Awaitable[None]],
) -> None:
    rig = await filled("raid5", 3, chunk_bytes=CHUNK)
    await rig.array.fail_disk(0)
    deafen(rig.members[1])
    with pytest.raises(ArrayFailedError):
        await change(rig)
    assert not rig.array.member_set.spares
    with pytest.raises(ArrayFailedError):
        await rig.put(0, noise(CHUNK))
    rig.members[1].clear()
    await rig.put(0, noise(CHUNK))
    await rig.array.flush()
    await rig.compare()


async def test_an_error_that_has_passed_by_the_second_try_fails_nothing() -> None:
    rig = await spied("raid0", 2, chunk_bytes=CHUNK)
    rig.members[1].error(WRITE, offset_bytes=0, length_bytes=SUPERBLOCKS, count=1)
    await settings(rig)
    await rig.put(0, noise(CHUNK))


async def test_an_array_whose_start_a_superblock_lacks_does_not_start() -> None:
    rig = await spied("raid0", 2, chunk_bytes=CHUNK)
    await rig.close()
    deafen(rig.members[0])
    with pytest.raises(ArrayFailedError, match="--read-only"):
        await rig.open()
    rig.members[0].clear()
    await rig.open()
