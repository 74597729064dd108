"""The commands of volumes as the control socket gives them, in virtual time, without a mount."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.volumes import VolumeCommands
from raidx_fuse.errors import (
    AmbiguousError,
    AssemblyError,
    BusyError,
    InUseError,
    JobRunningError,
    LosesDataError,
    Reason,
    UsageError,
)
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.pool import Pool, by_array, check_names
from tests.daemon.conftest import MOUNTPOINT, Shelf, mount_report
from tests.support.arrays import Rig, jobs_ended
from tests.support.reasons import because
from tests.support.two_arrays import volume_of

PAGE = 4096
LOOPS = {f"{MOUNTPOINT}/looped": ["/dev/loop7"]}


class VolumeDesk:
    """The commands of a mount without a volume; *ask* sends one."""

    def __init__(self, rig: Rig, volumes: ArrayVolumes) -> None:
        self.volumes = volumes
        commands = ArrayCommands(volumes.array, volumes.volumes, Shelf(rig))
        commands.mount_report = mount_report
        of_volumes = VolumeCommands(
            Pool([volumes]), commands.path_of, lambda path: LOOPS.get(path, [])
        )
        self.commands = Dispatcher([commands], of_volumes)

    async def ask(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        return dict(await self.commands.handle(command, arguments))


@asynccontextmanager
async def desk_of() -> AsyncIterator[VolumeDesk]:
    rig = Rig("raid5", 4, stripes=60)
    array = await rig.create()
    table = VolumeTable()
    await array.member_set.update(lambda config: replace(config, volumes=table))
    try:
        async with open_volumes(array) as volumes:
            yield VolumeDesk(rig, volumes)
    finally:
        await rig.close()


desk = pytest.fixture(desk_of)


async def test_a_life_of_a_volume(desk: VolumeDesk) -> None:
    made = await desk.ask("volume-create", name="one", size=8 * PAGE)
    assert made["path"] == f"{MOUNTPOINT}/one"
    assert (made["size"], made["written"], made["open"]) == (8 * PAGE, 0, 0)
    assert (await desk.ask("volume-list"))["volumes"] == [made]
    renamed = await desk.ask("volume-rename", volume=made["uuid"], name="two")
    assert renamed == {**made, "name": "two", "path": f"{MOUNTPOINT}/two"}
    assert (await desk.ask("volume-resize", volume="two", size=9 * PAGE))["size"] == 9 * PAGE
    (about,) = (await desk.ask("array-list"))["arrays"]
    assert about["volumes"] == ["two"]
    assert (about["name"], about["layout"], about["state"]) == ("rig", "raid5", "clean")
    assert about["free"] + 9 * PAGE == about["size"]
    assert about["unused_bytes"] == 0
    status = await desk.ask("status")  # the commands of the array are there as well
    assert [volume["name"] for volume in status["volumes"]] == ["two"]
    gone = await desk.ask("volume-delete", volume="two")
    assert (gone["deleted"], gone["loses"]) == ("two", 0)
    assert (await desk.ask("volume-list"))["volumes"] == []


async def test_without_a_size_a_volume_gets_all_there_is_also_of_larger_members(
    desk: VolumeDesk,
) -> None:
    await desk.ask("volume-create", name="one", size=8 * PAGE)
    await desk.ask("volume-create", name="two", size=8 * PAGE)
    array = desk.volumes.array
    before, taken = array.size_bytes, 9 * PAGE  # of three stripes, the first volume has all
    assert (await desk.ask("volume-resize", volume="two"))["size"] == before - taken
    await desk.ask("volume-resize", volume="two", size=8 * PAGE)
    await desk.volumes.wiped()
    size = array.membership.find(0).size_bytes + 5 * PAGE
    for role in range(4):
        await array.replace_disk(role, RamMember(size, name=f"larger{role}"))
        await jobs_ended(array)
    (about,) = (await desk.ask("array-list"))["arrays"]
    assert about["unused_bytes"] == 5 * PAGE
    after = before + 3 * 5 * PAGE
    plan = await desk.ask("volume-resize", volume="two", dry_run=True)
    assert plan["does"] == (
        f"uses {5 * PAGE} bytes more of each member, enlarges volume two to {after - taken} bytes"
    )
    assert (plan["loses"], array.size_bytes) == (0, before)
    scrub = await array.start_scrub(repair=False)
    with pytest.raises(JobRunningError):
        await desk.ask("volume-resize", volume="two")
    await array.jobs.wait(scrub)
    assert (await desk.ask("volume-resize", volume="two"))["size"] == after - taken
    (about,) = (await desk.ask("array-list"))["arrays"]
    assert (about["size"], about["free"], about["unused_bytes"]) == (after, PAGE, 0)
    assert (await desk.ask("volume-resize", volume="two"))["size"] == after - taken


async def test_without_a_size_a_volume_gets_what_the_limit_of_the_image_has_left(
    desk: VolumeDesk,
) -> None:
    array = desk.volumes.array
    whole = array.size_bytes
    limit = whole - 60 * PAGE
    await array.member_set.update(lambda config: replace(config, size_bytes=limit))
    await desk.ask("volume-create", name="one", size=9 * PAGE)
    plan = await desk.ask("volume-resize", volume="one", dry_run=True)
    assert plan["does"] == f"enlarges volume one to {whole} bytes"
    assert array.size_bytes == limit
    assert (await desk.ask("volume-resize", volume="one"))["size"] == array.size_bytes == whole


async def test_a_dry_run_says_what_is_lost_and_does_nothing(desk: VolumeDesk) -> None:
    await desk.ask("volume-create", name="one", size=8 * PAGE, on="rig")
    await volume_of(desk.volumes, "one").write(0, bytes([7]) * 3 * PAGE)
    before = await desk.ask("volume-list")
    with pytest.raises(LosesDataError):
        await desk.ask("volume-delete", volume="one", dry_run=True)
    plan = await desk.ask("volume-delete", volume="one", dry_run=True, lose_data=True)
    assert (plan["dry_run"], plan["loses"]) == (True, 3 * PAGE)
    assert (plan["redundancy_left"], plan["redundancy_reduced"]) == (1, False)
    plan = await desk.ask("volume-resize", volume="one", size=4 * PAGE, dry_run=True)
    assert (plan["does"], plan["loses"]) == ("shrinks volume one to 16384 bytes", 0)
    plan = await desk.ask("volume-resize", volume="one", size=16 * PAGE, dry_run=True)
    assert plan["does"] == "enlarges volume one to 65536 bytes"
    assert await desk.ask("volume-list") == before


async def test_a_volume_in_use_names_its_loop_device(desk: VolumeDesk) -> None:
    for name in ("looped", "open"):
        await desk.ask("volume-create", name=name, size=8 * PAGE)
        volume_of(desk.volumes, name).opened = 1
    for command, more in (("volume-delete", {}), ("volume-resize", {"size": PAGE})):
        with pytest.raises(BusyError) as caught:
            await desk.ask(command, volume="looped", **more)
        assert str(caught.value) == (
            "volume looped is in use by /dev/loop7; detach it: losetup -d /dev/loop7"
        )
        with pytest.raises(InUseError):
            await desk.ask(command, volume="open", **more)
    await desk.ask("volume-rename", volume="looped", name="other")  # the kernel knows "looped"
    with pytest.raises(BusyError, match="volume other is in use by /dev/loop7; detach it"):
        await desk.ask("volume-delete", volume="other")


async def test_bad_requests_are_refused(desk: VolumeDesk) -> None:
    for name, arguments, said in (
        ("volume-create", {"name": "one"}, "needs the argument 'size'"),
        ("volume-create", {"name": 1, "size": PAGE}, "name cannot be 1"),
        ("volume-create", {"name": "one", "size": PAGE, "on": "other"}, "no array other here"),
        ("volume-delete", {"volume": "none"}, "there is no volume none; there is none"),
        ("volume-nonsense", {}, "has no command"),
    ):
        with pytest.raises(UsageError, match=said):
            await desk.commands.handle(name, arguments)


async def test_stats_name_what_each_volume_was_asked_for(desk: VolumeDesk) -> None:
    for name in ("one", "two"):
        await desk.ask("volume-create", name=name, size=8 * PAGE)
    one, two = desk.volumes.volumes
    for _ in range(3):
        one.count_read(PAGE)
    for _ in range(2):
        two.count_write(512)
    nothing = {"reads": 0, "writes": 0, "read_bytes": 0, "write_bytes": 0}
    assert (await desk.ask("stats"))["volumes"] == [
        {**nothing, "name": "one", "reads": 3, "read_bytes": 3 * PAGE},
        {**nothing, "name": "two", "writes": 2, "write_bytes": 1024},
    ]
    found: list[dict[str, Any]] = []

    async def look() -> None:
        found.append(await desk.ask("stats", interval_s=10.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.sleep(5)
        one.count_read(0)
        one.noted.append(PAGE)  # as FUSE does
    assert found[0]["volumes"] == [
        {**nothing, "name": "one", "reads": 2, "read_bytes": PAGE},
        {**nothing, "name": "two"},
    ]


# -- several arrays --------------------------------------------------------------------------------


@asynccontextmanager
async def two_arrays() -> AsyncIterator[tuple[Dispatcher, list[ArrayVolumes]]]:
    """Mount two arrays, "fast" without volumes and "slow" with one."""
    async with AsyncExitStack() as stack:
        shown, commands = [], []
        for name, layout in (("fast", "raid0"), ("slow", "raid5")):
            members = [RamMember(4 << 20, name=f"{name}{number}") for number in range(3)]
            await create_array(
                members,
                layout,
                name=name,
                now_s=0,
                chunk_bytes=PAGE,
                with_volume=name == "slow",
            )
            array = await stack.enter_async_context(open_array(members))
            volumes = await stack.enter_async_context(open_volumes(array))
            shown.append(volumes)
            commands.append(ArrayCommands(array, volumes.volumes, Shelf(Rig(layout, 3))))
            commands[-1].mount_report = mount_report
        of_volumes = VolumeCommands(Pool(shown), commands[0].path_of, lambda path: [])
        yield Dispatcher(commands, of_volumes), shown


async def test_a_mount_of_two_arrays_shows_both() -> None:
    async with two_arrays() as (pool, arrays):
        fast, slow = arrays
        assert [a["name"] for a in (await pool.handle("array-list", {}))["arrays"]] == [
            "fast",
            "slow",
        ]
        made = await pool.handle("volume-create", {"name": "new", "size": PAGE})
        assert made["array"] == "fast"  # it has more space
        with pytest.raises(UsageError, check=because(Reason.EXISTS)):
            await pool.handle("volume-create", {"name": "slow", "size": PAGE, "on": "fast"})
        with pytest.raises(UsageError, check=because(Reason.EXISTS)):
            await pool.handle("volume-rename", {"volume": "new", "name": "slow"})
        await pool.handle("volume-resize", {"volume": "slow", "size": 8 * PAGE})
        for key, more in (("in_array", {"on": None}), ("on", {"in_array": "fast"})):
            made = await pool.handle(
                "volume-create", {"name": f"by {key}", "size": PAGE, key: slow.array.uuid, **more}
            )
            assert made["array"] == "slow"
        listed = (await pool.handle("volume-list", {}))["volumes"]
        assert [(v["name"], v["array"]) for v in listed] == [
            ("new", "fast"),
            ("slow", "slow"),
            ("by in_array", "slow"),
            ("by on", "slow"),
        ]
        await volume_of(fast, "new").write(0, b"fast" * 1024)
        await volume_of(slow, "by on").write(0, b"slow" * 1024)
        assert bytes(await volume_of(fast, "new").read(0, PAGE)) == b"fast" * 1024
        assert bytes(await volume_of(slow, "by on").read(0, PAGE)) == b"slow" * 1024


async def test_commands_of_one_array_name_it() -> None:
    async with two_arrays() as (pool, _):
        with pytest.raises(AmbiguousError):
            await pool.handle("stats", {})
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_ARRAY)):
            await pool.handle("stats", {"in_array": "other"})
        with pytest.raises(UsageError, check=because(Reason.UNKNOWN_COMMAND)):
            await pool.handle("statz", {})
        with pytest.raises(UsageError, match="must be a name"):
            await pool.handle("stats", {"in_array": 7})
        assert (await pool.handle("status", {"in_array": "slow"}))["layout"] == "raid5"
        await pool.handle("fail-disk", {"member": "1", "in_array": "slow"})
        status = await pool.handle("status", {})
        assert (status["name"], status["state"]) == ("slow", "degraded")  # the worst comes first
        assert [array["name"] for array in status["arrays"]] == ["fast", "slow"]
        assert [volume["name"] for volume in status["volumes"]] == ["slow"]


async def test_arrays_and_volumes_of_a_pool_have_names_of_their_own() -> None:
    async with two_arrays() as (_, arrays):
        fast, slow = arrays
        check_names(arrays)
        await slow.array.member_set.update(lambda c: replace(c, name="fast"))
        with pytest.raises(UsageError, match=r"two arrays are called fast: .*mount each on"):
            check_names(arrays)
        await slow.array.member_set.update(lambda c: replace(c, name="slow"))
        await fast.create("slow", PAGE)
        with pytest.raises(UsageError, match="arrays fast and slow both have a volume slow"):
            check_names(arrays)


async def test_members_are_told_apart_by_their_superblocks() -> None:
    members: dict[str, list[Member]] = {}
    for name in ("one", "two"):
        members[name] = [RamMember(4 << 20, name=f"{name}{number}") for number in range(3)]
        await create_array(members[name], "raid5", name=name, now_s=0, chunk_bytes=PAGE)
    one, two = members["one"], members["two"]
    assert await by_array([one[2], two[0], one[0], two[1], one[1], two[2]]) == [
        [one[2], one[0], one[1]],
        [two[0], two[1], two[2]],
    ]
    assert await by_array([*one, two[0], two[2]]) == [one, [two[0], two[2]]]  # degraded
    with pytest.raises(AssemblyError, match=r"2 arrays: .*one0, .*'one'.*; two1 of array 'two'"):
        await by_array([*one, two[1]])
    blank = RamMember(4 << 20, name="blank")
    assert await by_array([*one, blank, *two]) == [[*one, blank], two]


async def test_a_trim_counts_nothing_that_others_write_meanwhile(
    monkeypatch: pytest.MonkeyPatch, desk: VolumeDesk
) -> None:
    await desk.ask("volume-create", name="v", size=40 * PAGE)
    (volume,) = desk.volumes.volumes
    await volume.write(0, b"x" * PAGE)
    flush = volume.flush

    async def flush_beside_a_writer() -> None:
        await flush()
        await volume.write(8 * PAGE, bytes(range(256)) * 64)

    monkeypatch.setattr(volume, "flush", flush_beside_a_writer)
    answer = await desk.ask("volume-trim", offset=0, length=40 * PAGE, lose_data=True)
    monkeypatch.undo()
    assert answer["loses"] == answer["given_back"] > 0
