"""The commands that move volumes, as the control socket gives them, without a mount."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.volumes import VolumeCommands
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.jobs.job import RATE_WINDOW_S
from raidx_fuse.pool.pool import Pool
from tests.daemon.conftest import Shelf, mount_report
from tests.support.arrays import Rig
from tests.support.reasons import because
from tests.support.two_arrays import PAGE, Arrays, Spec, make, move_of, noise, slow_move

Ask = Callable[..., Awaitable[dict[str, Any]]]
PAGES = 16


def asking(pool: Pool) -> Ask:
    """Return a function that sends a command to a mount of *pool*."""
    arrays = []
    for volumes in pool.arrays:
        arrays.append(ArrayCommands(volumes.array, volumes.volumes, Shelf(Rig("raid0", 2))))
        arrays[-1].mount_report = mount_report
    desk = Dispatcher(arrays, VolumeCommands(pool, arrays[0].path_of, lambda path: []))

    async def ask(command: str, /, **arguments: Any) -> dict[str, Any]:
        return dict(await desk.handle(command, arguments))

    return ask


@asynccontextmanager
async def created() -> AsyncIterator[Arrays]:
    arrays = Arrays()
    await arrays.create()
    yield arrays


arrays = pytest.fixture(created)


async def test_a_move_from_its_dry_run_to_its_end(arrays: Arrays) -> None:
    async with arrays.mounted() as pool:
        ask = asking(pool)
        await ask("volume-create", name="mail", size=PAGES * PAGE, on="fast")
        await pool.find("mail")[1].write(0, noise(PAGES // 2 * PAGE))
        plan = await ask("volume-move", volume="mail", to="slow", dry_run=True)
        assert plan["does"] == "moves volume mail from fast to slow"
        assert (plan["volume_bytes"], plan["bytes_moved"]) == (PAGES * PAGE, PAGES // 2 * PAGE)
        assert plan["bytes_read"] == PAGES // 2 * PAGE
        assert plan["bytes_written"] == -(-PAGES // 2 * PAGE * 4 // 3)  # and parity
        lowest, after = plan["redundancy_lowest"], plan["redundancy_after"]
        assert (plan["redundancy_left"], lowest, after) == (1, 1, 1)
        assert pool.transfers == {}
        for name in ("speed_min", "speed_max"):
            await ask("set", in_array="fast", key=name, value=f"{2 * PAGE}")
        begun = await ask("volume-move", volume="mail", to="slow")
        assert (begun["does"], begun["in_array"]) == (plan["does"], "fast")
        await trio.sleep(1)
        (one,) = (await ask("volume-list"))["volumes"]
        assert one["array"] == "fast"
        assert (one["moving"]["to"], one["moving"]["job"]) == ("slow", begun["job"])
        (job,) = (await ask("job-list", in_array="fast"))["jobs"]
        assert (job["kind"], job["volume"], job["to"]) == ("move", "mail", "slow")
        await ask("job-wait", in_array="fast", job=begun["job"])
        (one,) = (await ask("volume-list"))["volumes"]
        assert one["array"] == "slow"
        assert "moving" not in one


async def test_a_volume_loses_redundancy_only_if_that_is_accepted() -> None:
    specs = (Spec("safe", "raid5", 4), Spec("fast", "raid0", 2), Spec("copy", "raid1", 2))
    arrays = Arrays(specs)
    await arrays.create()
    async with arrays.mounted() as pool:
        ask = asking(pool)
        await ask("volume-create", name="mail", size=4 * PAGE, on="safe")
        await ask("volume-create", name="tmp", size=4 * PAGE, on="fast")
        for command, words in (
            ("volume-move", {"volume": "mail", "to": "fast"}),
            ("volume-swap", {"first": "mail", "second": "tmp"}),
            ("volume-swap", {"first": "tmp", "second": "mail"}),
        ):
            assert (await ask(command, dry_run=True, **words))["dry_run"]
            with pytest.raises(UsageError, match=r"mail: 0, not 1; .*--lose-redundancy"):
                await ask(command, **words)
        assert pool.transfers == {}
        begun = await ask("volume-move", volume="mail", to="copy")  # survives as many
        await ask("job-wait", in_array="safe", job=begun["job"])
        begun = await ask("volume-move", volume="mail", to="fast", lose_redundancy=True)
        await ask("job-wait", in_array="copy", job=begun["job"])
        found = {one["name"]: one["array"] for one in (await ask("volume-list"))["volumes"]}
        assert found == {"mail": "fast", "tmp": "fast"}


async def test_a_move_that_goes_back_has_no_negative_rate(arrays: Arrays) -> None:
    async with arrays.mounted() as pool:
        await make(pool)
        await slow_move(pool)
        job = move_of(pool.array("fast"))
        job.limit(0, PAGE)
        await trio.sleep(1.5 * RATE_WINDOW_S)
        job.cancel()
        rates = []
        for _ in range(8):
            await trio.sleep(1.5)
            rates.append(job.rate())
        assert job.detail()["going_back"]
        assert min(rates) >= 0


async def test_the_next_step_for_one_of_several_arrays_names_it(arrays: Arrays) -> None:
    async with arrays.mounted() as pool:
        ask = asking(pool)
        await ask("fail-disk", in_array="slow", member="1")
        said = "replace member 1: raidx replace-disk /mnt/array:slow 1 NEW_MEMBER"
        assert (await ask("status"))["action"] == said
        assert (await ask("status", in_array="slow"))["action"] == said
    async with arrays.mounted("slow") as pool:
        assert "replace-disk /mnt/array 1" in (await asking(pool)("status"))["action"]


async def test_what_cannot_be_shown_is_listed_and_may_be_given_up(arrays: Arrays) -> None:
    async with arrays.mounted() as pool:
        ask = asking(pool)
        await ask("volume-create", name="mail", size=PAGES * PAGE, on="fast")
        await pool.find("mail")[1].write(0, noise(PAGES * PAGE))
        await ask("set", in_array="fast", key="speed_max", value=f"{PAGE}")
        await ask("volume-move", volume="mail", to="slow")
        await trio.sleep(1)
    async with arrays.mounted("slow") as pool:
        ask = asking(pool)
        listed = await ask("volume-list")
        assert listed["volumes"] == []
        (unshown,) = listed["unshown"]
        assert (unshown["name"], unshown["size"]) == ("mail", PAGES * PAGE)
        assert "from array fast" in unshown["why"]
        assert any("mail is not shown" in line for line in (await ask("status"))["warnings"])
        for command, more in (
            ("volume-resize", {"size": PAGE}),
            ("volume-rename", {"name": "post"}),
            ("volume-move", {"to": "slow"}),
            ("volume-delete", {}),
        ):
            with pytest.raises(UsageError, match="volume mail is not shown: it is on its way"):
                await ask(command, volume="mail", **more)
        plan = await ask("volume-delete", volume="mail", lose_data=True, dry_run=True)
        assert plan["does"] == "deletes volume mail"
        gone = await ask("volume-delete", volume="mail", lose_data=True)
        assert gone["deleted"] == "mail"
        assert (await ask("volume-list"))["unshown"] == []
        assert (await ask("status"))["warnings"] == []
    async with arrays.mounted() as pool:  # the other half is of no use, and says so
        (one,) = pool.unshown
        assert "array fast names a move that array slow does not know" in one.text


async def test_a_swap_from_its_dry_run_to_its_end(arrays: Arrays) -> None:
    async with arrays.mounted() as pool:
        ask = asking(pool)
        for name, on in (("one", "fast"), ("two", "slow")):
            await ask("volume-create", name=name, size=PAGES * PAGE, on=on)
        plan = await ask("volume-swap", first="one", second="two", dry_run=True)
        assert plan["volume_bytes"] == 2 * PAGES * PAGE
        assert plan["bytes_moved"] == 0  # nothing was written
        begun = await ask("volume-swap", first="one", second="two")
        assert begun["does"] == "swaps volumes one on fast and two on slow"
        await ask("job-wait", in_array=begun["in_array"], job=begun["job"])
        arrays_of = {v["name"]: v["array"] for v in (await ask("volume-list"))["volumes"]}
        assert arrays_of == {"one": "slow", "two": "fast"}
        with pytest.raises(UsageError, check=because(Reason.ALREADY)):
            await ask("volume-move", volume="two", to="fast")
