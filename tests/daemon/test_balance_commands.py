"""The commands of a pool's monitor and balancer, in virtual time, without a mount."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.balance import BalanceCommands
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.volumes import VolumeCommands
from raidx_fuse.daemon.serve import SAVE_S, HistoryFiles
from raidx_fuse.errors import OtherVersionError, Reason, UsageError, single
from raidx_fuse.pool.hotspots.balancer import watched
from raidx_fuse.pool.monitor import Monitor, Observation
from raidx_fuse.pool.pool import Pool
from raidx_fuse.settings import OF_POOL
from tests.daemon.conftest import Shelf, mount_report
from tests.pool.test_balancer import TWO, Notes, loaded
from tests.support.arrays import Rig
from tests.support.pool_rig import PoolRig
from tests.support.reasons import because

Ask = Callable[..., Awaitable[dict[str, Any]]]


@asynccontextmanager
async def balanced(arrays: Any = TWO) -> AsyncIterator[tuple[Pool, Ask]]:
    rig = PoolRig(arrays)
    await rig.create()
    async with rig.mounted() as pool, watched(pool.arrays, Notes()) as balancer:
        of_arrays = [
            ArrayCommands(one.array, one.volumes, Shelf(Rig("raid5", 4))) for one in pool.arrays
        ]
        for one in of_arrays:
            one.mount_report = mount_report
        of_volumes = VolumeCommands(pool, of_arrays[0].path_of, lambda _path: [])
        commands = Dispatcher(of_arrays, of_volumes, BalanceCommands(balancer))

        async def ask(command: str, /, **arguments: Any) -> dict[str, Any]:
            return dict(await commands.handle(command, arguments))

        yield pool, ask


async def test_a_hotspot_in_status_stats_and_balance() -> None:
    async with balanced() as (pool, ask):
        for key, value in {"hot.interval": "1s", "hot.window": "4", "hot.tau": "50%"}.items():
            await ask("set", key=key, value=value)
        async with loaded(pool, mail=8, www=6, old=1):
            await trio.sleep(4.5)
        status = await ask("status")
        fast, slow = status["pool"]["arrays"]
        assert (fast["array"], fast["hotspot"], slow["hotspot"]) == ("fast", True, False)
        assert fast["utilisation"] > 0.5 > slow["utilisation"]
        stats = await ask("stats", in_array="fast")
        mail = stats["pool"]["volumes"][0]
        assert (mail["volume"], mail["array"], mail["mean_read"]) == ("mail", "fast", 16384)
        assert mail["reads_per_second"] > 100
        plan = await ask("balance", dry_run=True)
        assert (plan["hotspots"], plan["solved"], plan["dry_run"]) == (["fast"], True, True)
        assert plan["balance"]["state"] == "idle"
        stepped = await ask("balance", dry_run=True, step=True)
        trace = stepped.pop("trace")
        assert (stepped["steps"], "trace" in plan) == (plan["steps"], False)
        assert trace[0]["overloaded"] == ["fast"]
        assert [one["array"] for one in trace[-1]["arrays"]] == ["fast", "slow"]
        begun = await ask("balance", planner="dswap")
        assert begun["balance"]["state"] == "running"
        await trio.sleep(1.5)
        assert (await ask("balance-status"))["balance"]["state"] == "done"
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_JOB)):
            await ask("balance-cancel")
        await ask("array-evacuate", name="slow")
        assert (await ask("balance-cancel"))["balance"]["state"] == "cancelled"
        gone = await ask("array-evacuate", name="slow", dry_run=True)
        assert gone["steps"] == ["move old from slow to fast"]
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_ARRAY)):
            await ask("array-evacuate", name="other")


async def test_settings_of_a_pool() -> None:
    async with balanced() as (_, ask):
        settings = (await ask("get"))["settings"]
        assert (settings["hot.tau"], settings["hot.window"]) == (0.8, 10)
        assert await ask("set", key="hot.tau", value="0.6", in_array="slow") == {
            "settings": {"hot.tau": 0.6}
        }
        assert (await ask("get", key="hot.tau"))["settings"]["hot.tau"] == {
            "fast": 0.8,
            "slow": 0.6,
        }
        assert (await ask("get", key="hot.tau", in_array="fast"))["settings"] == {"hot.tau": 0.8}
        await ask("set", key="hot.tau", value="70%")
        assert (await ask("get", key="hot.tau"))["settings"] == {"hot.tau": 0.7}
        both = await ask("get", in_array="slow")  # those of the array are there as well
        assert both["settings"]["speed_max"] == 0
        assert both["settings"]["balance.auto"] == "off"
        await ask("set", key="balance.auto", value="on", in_array="slow")  # of the whole pool
        assert (await ask("get", key="balance.auto"))["settings"] == {"balance.auto": "on"}
        shown = await ask("set", key="balance.apart", value="mail+old")
        assert shown == {"settings": {"balance.apart": "mail+old"}}
        await ask("volume-rename", volume="mail", name="post")
        assert (await ask("get", key="balance.apart"))["settings"]["balance.apart"] == "post+old"
        for key, value, words in (
            ("hot.tau", "2", "outside 1 % to 100 %"),
            ("hot.tau", "hot", "not a share"),
            ("hot.window", "0", "not a number of observations"),
            ("hot.interval", "1us", "outside 100 ms"),
            ("hot.position", "5ms", "no setting hot.position any more: the queues measure it"),
            ("balance.auto", "yes", "neither on nor off"),
            ("balance.planner", "best", "no planner best"),
            ("balance.stay", "nobody", "no volume nobody; there is post, www"),
            ("hot.tua", "1", "did you mean hot.tau"),
        ):
            with pytest.raises(UsageError, match=words):
                await ask("set", key=key, value=value)


async def test_an_array_alone_is_monitored_but_not_balanced() -> None:
    async with balanced({"one": {"disk": 1 << 20}}) as (_, ask):
        await trio.sleep(25)
        status = await ask("status")
        assert [one["observations"] for one in status["pool"]["arrays"]] == [2]
        with pytest.raises(UsageError, match="this mount has one array"):
            await ask("balance", dry_run=True)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_histories_are_kept_by_array(tmp_path: Path) -> None:
    rig = PoolRig(TWO)
    await rig.create()
    async with rig.mounted() as pool:
        files = HistoryFiles(tmp_path, pool.arrays, 1000.0)
        monitor = files.load()
        assert not monitor.arrays
        fast, slow = (part.array.uuid for part in pool.arrays)
        for number in range(5):
            monitor.note_array(fast, Observation(1000.0 + number, 0.9, 0.9, 0.01))
        monitor.note_array(slow, Observation(1004.0, 0.1, 0.1, 0.01))
        files.save_now_and_then(monitor, 1000.0 + SAVE_S - 1)
        assert not names_in(tmp_path)
        files.save_now_and_then(monitor, 1000.0 + SAVE_S)
        assert len(names_in(tmp_path)) == 2
        again = HistoryFiles(tmp_path, pool.arrays[:1], 5.0).load()  # another pool, another clock
        assert list(again.arrays) == [fast]
        assert again.arrays[fast].newest(9)[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
        (tmp_path / f"{fast}.history").write_bytes(b"{")
        (tmp_path / f"{slow}.history").unlink()
        assert not HistoryFiles(tmp_path, pool.arrays, 5.0).load().arrays
        HistoryFiles(tmp_path / "absent", pool.arrays, 5.0).save(Monitor())  # only a warning


async def test_an_array_with_every_setting_of_a_pool_starts_again() -> None:
    async def set_all(array: Array, settings: dict[str, Any]) -> None:
        await array.member_set.update(
            lambda config: replace(config, settings={**config.settings, **settings})
        )

    rig = PoolRig(TWO)
    await rig.create()
    kept = {name: setting.default for name, setting in OF_POOL.items()}
    async with rig.mounted() as pool:
        for one in pool.arrays:
            await set_all(one.array, kept)
    async with rig.mounted() as pool, watched(pool.arrays, Notes()):
        for one in pool.arrays:
            assert kept.items() <= one.array.member_set.config.settings.items()
        await set_all(pool.arrays[1].array, {"balance.later": "on"})
    with pytest.raises(BaseExceptionGroup) as caught:  # the other array is running by then
        async with rig.mounted():
            pass
    error = single(caught.value)
    assert isinstance(error, OtherVersionError)
    assert "'balance.later', unknown to this raidx" in error.message
