"""The demo array of `raidx view --demo`, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.lab.demo import Demo, demo_array
from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.reasons import because


async def watched(demo: Demo, seconds: float) -> list[Any]:
    """Return the requests and cells of so many seconds, with their times."""
    seen: list[Any] = []
    since = 0
    async with demo_array(demo) as shown:
        while trio.current_time() < seconds:
            (told,) = await shown.ask([("trace", {"since": since})])
            since = told["next"]
            if told["cells"] or told["requests"]:
                seen.append((trio.current_time(), told["cells"], told["requests"]))
            await trio.sleep(0.25)
    return seen


@pytest.mark.parametrize(
    ("layout", "disks"), [("raid5", 4), ("rdp", 6), ("raidx-copy", 4), ("raid0", 1)]
)
def test_requests_pass_slowly_and_the_same_seed_shows_the_same(layout: str, disks: int) -> None:
    demo = Demo(layout=layout, disks=disks, seed=5)
    seen = run(watched, demo, 30.0)
    assert 8 <= sum(len(requests) for _, _, requests in seen) <= 60
    assert {what for _, cells, _ in seen for _, _, what, _ in cells} == {False, True}
    assert run(watched, demo, 30.0) == seen
    assert run(watched, Demo(layout=layout, disks=disks, seed=6), 30.0) != seen


async def test_the_start_takes_no_time_and_an_operation_a_part_of_a_second() -> None:
    async with demo_array(Demo(operation_s=0.5)) as shown:
        assert trio.current_time() < 0.1
        (answer,) = await shown.ask([("peek", {"stripe": 0})])
        assert trio.current_time() >= 0.5
        assert all(chain["newest"] == "holds" for chain in answer["chains"])


async def test_a_disk_fails_is_replaced_and_the_array_grows_under_load() -> None:
    async with demo_array(Demo()) as shown:
        await shown.act("fail-disk", {"member": "1"})
        (status,) = await shown.ask([("status", {})])
        assert status["state"] == "degraded"
        assert "--break" in status["action"], "there is no mount point to give a command"
        new = shown.replacement(status["members"][1]["path"])
        await shown.act("replace-disk", {"old": "1", "new": new})
        await trio.sleep(60)
        await shown.act("add-disk", {"members": [shown.replacement("")]})
        await trio.sleep(200)
        await shown.act("inject", {"member": "0", "fault": "vanish"})
        await trio.sleep(60)
        (status,) = await shown.ask([("status", {})])
        assert (len(status["members"]), status["state"]) == (5, "degraded")
        words = [event["event"] for event in await shown.events("")]
        assert words[:5] == [
            "NewArray",
            "Fail",
            "DegradedArray",
            "RebuildStarted",
            "RebuildFinished",
        ]


def test_what_a_demo_cannot_be_is_one_line() -> None:
    async def never(demo: Demo) -> None:
        async with demo_array(demo):
            raise AssertionError

    for demo in (Demo(layout="raid5", disks=1), Demo(layout="nosuch"), Demo(layout="rdp", disks=2)):
        with pytest.raises((RaidxError, LayoutError)):
            run(never, demo)

    async def cut() -> None:
        async with demo_array(Demo()) as shown:
            with pytest.raises(UsageError, check=because(Reason.NOT_LAB)):
                await shown.act("crash", {})

    run(cut)
