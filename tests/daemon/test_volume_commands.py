"""The commands of volumes as the control socket gives them, in virtual time, without a mount."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from raidx_fuse.daemon.commands.commands import Commands
from raidx_fuse.daemon.commands.volumes import VolumeCommands
from raidx_fuse.errors import BusyError, UsageError
from raidx_fuse.format.configuration.volumes import VolumeTable, encode_table
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.volume_table import ArrayVolumes, open_volumes
from tests.daemon.conftest import MOUNTPOINT, Report, Shelf
from tests.support.arrays import Rig

PAGE = 4096
LOOPS = {f"{MOUNTPOINT}/looped": ["/dev/loop7"]}


class VolumeDesk:
    """The commands of a mount without a volume; *ask* sends one."""

    def __init__(self, rig: Rig, volumes: ArrayVolumes) -> None:
        self.volumes = volumes
        commands = Commands(volumes.array, volumes.volumes, Shelf(rig))
        self.commands = VolumeCommands(volumes, commands, lambda path: LOOPS.get(path, []))
        commands.mounted(Report())

    async def ask(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        return await self.commands.handle(command, arguments)


def play(scene: Callable[[VolumeDesk], Awaitable[None]]) -> None:
    async def whole() -> None:
        rig = Rig("raid5", 4, stripes=60)
        array = await rig.create()
        values = encode_table(VolumeTable())
        await array.member_set.update(lambda config: replace(config, volumes=values))
        try:
            async with open_volumes(array) as volumes:
                await scene(VolumeDesk(rig, volumes))
        finally:
            await rig.close()

    run(whole)


def test_a_life_of_a_volume() -> None:
    async def scene(desk: VolumeDesk) -> None:
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
        status = await desk.ask("status")  # the commands of the array are there as well
        assert [volume["name"] for volume in status["volumes"]] == ["two"]
        gone = await desk.ask("volume-delete", volume="two")
        assert (gone["deleted"], gone["loses"]) == ("two", 0)
        assert (await desk.ask("volume-list"))["volumes"] == []

    play(scene)


def test_a_dry_run_says_what_is_lost_and_does_nothing() -> None:
    async def scene(desk: VolumeDesk) -> None:
        await desk.ask("volume-create", name="one", size=8 * PAGE, on="rig")
        await desk.volumes.find("one").write(0, bytes([7]) * 3 * PAGE)
        before = await desk.ask("volume-list")
        with pytest.raises(UsageError, match="to delete volume one loses 12288 bytes"):
            await desk.ask("volume-delete", volume="one", dry_run=True)
        plan = await desk.ask("volume-delete", volume="one", dry_run=True, lose_data=True)
        assert (plan["dry_run"], plan["loses"]) == (True, 3 * PAGE)
        assert (plan["redundancy_left"], plan["redundancy_reduced"]) == (1, False)
        plan = await desk.ask("volume-resize", volume="one", size=4 * PAGE, dry_run=True)
        assert (plan["does"], plan["loses"]) == ("shrinks volume one to 16384 bytes", 0)
        plan = await desk.ask("volume-resize", volume="one", size=16 * PAGE, dry_run=True)
        assert plan["does"] == "enlarges volume one to 65536 bytes"
        assert await desk.ask("volume-list") == before

    play(scene)


def test_a_volume_in_use_names_its_loop_device() -> None:
    async def scene(desk: VolumeDesk) -> None:
        for name in ("looped", "open"):
            await desk.ask("volume-create", name=name, size=8 * PAGE)
            desk.volumes.find(name).opened = 1
        for command, more in (("volume-delete", {}), ("volume-resize", {"size": PAGE})):
            with pytest.raises(BusyError) as caught:
                await desk.ask(command, volume="looped", **more)
            assert str(caught.value) == (
                "volume looped is in use by /dev/loop7; detach it: losetup -d /dev/loop7"
            )
            with pytest.raises(BusyError, match="volume open is in use; close it"):
                await desk.ask(command, volume="open", **more)

    play(scene)


def test_bad_requests_are_refused() -> None:
    async def scene(desk: VolumeDesk) -> None:
        for name, arguments, said in (
            ("volume-create", {"name": "one"}, "needs the argument 'size'"),
            ("volume-create", {"name": 1, "size": PAGE}, "name cannot be 1"),
            ("volume-create", {"name": "one", "size": PAGE, "on": "other"}, "no array other here"),
            ("volume-delete", {"volume": "none"}, "there is no volume none; array rig has: none"),
            ("volume-nonsense", {}, "has no command"),
        ):
            with pytest.raises(UsageError, match=said):
                await desk.commands.handle(name, arguments)

    play(scene)
