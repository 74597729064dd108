"""The command `compare`, asked for after the change only, against two slow looks at every cell."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from raidx_fuse.daemon.commands import compare as module
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import MemberChunk, Role, Stripe
from raidx_fuse.layouts.placements.bundled import BundleLayout
from tests.daemon.conftest import Desk, desk_of

Spots = dict[object, tuple[int, int]]  # content of a cell -> (role, offset on the member)


@pytest.fixture(autouse=True)
def every_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every stripe, so that numbers are exact."""
    monkeypatch.setattr(module, "SAMPLED_CELLS", 1 << 20)


async def spots(desk: Desk) -> tuple[Spots, dict[int, list[int]]]:
    """Return where everything written lies, and the numbers of data and parity cells by role."""
    places: Spots = {}
    counts: dict[int, list[int]] = {}
    for stripe in range(desk.array.context.layout.stripes):
        for cell in (await desk.ask("explain", stripe=stripe))["cells"]:
            if cell["written"]:
                content = cell.get("image_offset", (stripe, cell["cell"]))
                places[content] = cell["role"], cell["member_offset"]
                is_parity = cell["cell"].startswith("P")
                counts.setdefault(cell["role"], [0, 0])[is_parity] += 1
    return places, counts


def told_spots(side: dict[str, Any]) -> Spots:
    return {
        cell.get("image_offset", (stripe["stripe"], cell["cell"])): (
            cell["role"],
            cell["member_offset"],
        )
        for stripe in side["stripes"]
        for cell in stripe["cells"]
        if cell["written"]
    }


def told_counts(told: dict[str, Any], side: str) -> dict[int, list[int]]:
    found = {each["role"]: [each[side]["data"], each[side]["parity"]] for each in told["members"]}
    return {role: counts for role, counts in found.items() if any(counts)}


async def check(desk: Desk, was: tuple[Spots, dict[int, list[int]]], kind: str) -> dict[str, Any]:
    """Compare what the command tells with the places from before (*was*) and with those of now."""
    now = await spots(desk)
    told = await desk.ask("compare")
    assert (told["kind"], told["state"], told["sampled_ratio"]) == (kind, "done", 1)
    assert told["cells"] == len(now[0])
    assert told["moved"] == sum(was[0].get(key, place) != place for key, place in now[0].items())
    assert told["moved"] > 0
    assert told_counts(told, "before") == was[1]
    assert told_counts(told, "after") == now[1]
    before, after = told_spots(told["before"]), told_spots(told["after"])
    assert before.items() <= was[0].items()
    assert after.items() <= now[0].items()
    assert any(before.get(key) not in (None, place) for key, place in after.items())
    return told


async def test_nothing_is_told_before_something_has_moved(desk: Desk) -> None:
    assert await desk.ask("compare") == {"kind": None, "number": 0}
    await desk.ask("job-wait", job=(await desk.ask("scrub"))["job"])
    assert (await desk.ask("compare", brief=True))["kind"] is None
    for stripes in (0, 17):
        with pytest.raises(UsageError, match="1 to 16"):
            await desk.ask("compare", stripes=stripes)


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid0", 3), ("rdp", 5)])
async def test_a_growth_that_has_ended_is_told(layout: str, width: int) -> None:
    async with desk_of(layout, width) as desk:
        was = await spots(desk)
        begun = await desk.ask("add-disk", members=["one"])
        running = await desk.ask("compare", brief=True)
        assert running == {"kind": "grow", "number": 1, "state": "running"}
        await desk.ask("job-wait", job=begun["job"])
        told = await check(desk, was, "grow")
        assert [member["role"] for member in told["before"]["members"]] == list(range(width))
        assert len(told["members"]) == width + 1
        assert told["members"][-1]["before"]["data"] == 0


async def test_of_a_large_array_a_sample_of_the_stripes_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    monkeypatch.setattr(module, "SAMPLED_CELLS", 300)
    was, _ = await spots(desk)
    begun = await desk.ask("add-disk", members=["one"])
    await desk.ask("job-wait", job=begun["job"])
    now, _ = await spots(desk)
    told = await desk.ask("compare")
    assert told["sampled_ratio"] < 0.2
    assert told["cells"] == pytest.approx(len(now), rel=0.1)
    moved = sum(was.get(key, place) != place for key, place in now.items())
    assert told["moved"] == pytest.approx(moved, rel=0.2)


async def test_a_growth_that_was_cancelled_has_moved_nothing(desk: Desk) -> None:
    await desk.ask("set", key="speed_max", value="64KiB")
    job = (await desk.ask("add-disk", members=["one"]))["job"]
    await trio.sleep(1)
    await desk.ask("job-cancel", job=job)
    await desk.ask("job-wait", job=job)
    told = await desk.ask("compare")
    assert (told["kind"], told["state"], told["moved"]) == ("grow", "cancelled", 0)


async def test_a_restripe_that_runs_and_has_ended_is_told(desk: Desk) -> None:
    was = await spots(desk)
    await desk.ask("set", key="speed_max", value="64KiB")
    begun = await desk.ask("reshape", members=["one", "two"], layout="rdp")
    await trio.sleep(2)
    told = await desk.ask("compare")
    assert (told["kind"], told["state"]) == ("restripe", "running")
    assert told_spots(told["before"]).items() <= was[0].items()
    await desk.ask("job-limit", job=begun["job"], maximum=0)
    await desk.ask("job-wait", job=begun["job"])
    told = await desk.ask("compare")
    assert (told["kind"], told["state"]) == ("restripe", "done")
    assert told["before"]["layout"] == "raid5"
    assert told_spots(told["before"]).items() <= was[0].items()
    assert told_counts(told, "before") == was[1]
    assert told_counts(told, "after") == (await spots(desk))[1]


async def swap(desk: Desk, one: int, other: int) -> None:
    """Let two cells change places, as the tuner does at an idle time."""
    tuner = desk.array.tuner
    assert tuner is not None
    assert await tuner.mover.move(tuner.mover.exchange(one, other))


@pytest.mark.rig("raidx-parity", 6)
async def test_what_the_tuner_moves_adds_up_wherever_it_lies(desk: Desk) -> None:
    layout = desk.array.context.layout
    assert isinstance(layout, BundleLayout)
    await desk.array.write(0, bytes(desk.array.size_bytes))
    was = await spots(desk)
    last = layout.cells - 1
    role = layout.place(*divmod(last, layout.length))[0]
    pairs = [
        cell
        for cell in range(layout.length, layout.cells // 2)
        if role not in layout.roles(Stripe(cell // layout.length))
        and layout.place(*divmod(cell, layout.length))[0]
        not in layout.roles(Stripe(last // layout.length))
    ]
    await swap(desk, pairs[0], last)
    told = await check(desk, was, "tuning")
    assert told["moved"] == 2
    shown = [stripe["stripe"] for stripe in told["after"]["stripes"]]
    assert shown == [pairs[0] // layout.length, last // layout.length]
    assert told["number"] == 1
    await swap(desk, last, pairs[0])  # back again: where it was when tuning began
    again = await desk.ask("compare")
    assert (again["number"], again["moved"]) == (1, 0)


@pytest.mark.rig("raidx-parity", 5)
async def test_a_growth_of_a_raidx_array_is_told_with_the_members_from_before(desk: Desk) -> None:
    await desk.array.write(0, bytes(desk.array.size_bytes))
    was = await spots(desk)
    begun = await desk.ask("add-disk", members=["one"])
    await desk.ask("job-wait", job=begun["job"])
    told = await check(desk, was, "grow")
    assert len(told["before"]["members"]) == 5
    assert all(each["after"]["accesses_per_s"] is not None for each in told["members"])


@pytest.mark.rig("raid1", 2)
async def test_another_copy_is_there_at_once(desk: Desk) -> None:
    await desk.ask("add-disk", members=["one"])
    told = await desk.ask("compare")
    assert (told["kind"], told["state"], told["moved"]) == ("copies", "done", 0)
    assert len(told["before"]["members"]) == 2
    assert len(told["members"]) == 3


@pytest.mark.rig("raidx-parity", 5)
async def test_the_memory_of_moves_is_bounded(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    monkeypatch.setattr(module, "MOVED_MAX", 3)
    table = desk.array.context.journal.chunk_table
    layout = desk.array.context.layout
    for cell in (0, 1, 2, 3, 4):
        role, chunk = layout.place(*divmod(cell, layout.code.columns))
        for hook in table.on_moves:
            hook([(cell, Role(role), MemberChunk(chunk))])
    told = await desk.ask("compare")
    assert told["is_cut"] is True
