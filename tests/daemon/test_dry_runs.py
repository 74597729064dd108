"""A dry run prints the cost of what begins: it is refused exactly when the change is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raidx_fuse.errors import RaidxError
from tests.daemon.conftest import Desk, desk_of

CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("add-disk", {"members": ["a"]}),
    ("add-disk", {"members": ["a", "b"], "parity": "piggyback"}),
    ("add-disk", {"members": ["a"], "surrogate": "b"}),
    ("add-disk", {"members": ["a"], "role": "spare"}),
    ("reshape", {"members": ["a"], "lose_redundancy": True}),
    ("reshape", {"members": [], "layout": "raid0", "lose_redundancy": True}),
    ("remove-disk", {"member": "0"}),
    ("remove-disk", {"member": "SPARE"}),
    ("fail-disk", {"member": "0"}),
    ("fail-disk", {"member": "1"}),
    ("fail-disk", {"member": "SPARE"}),
    ("replace-disk", {"old": "0", "new": "a"}),
    ("replace-disk", {"old": "1", "new": "a"}),
    ("replace-disk", {"old": "SPARE", "new": "a"}),
)
STATES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "healthy": (),
    "degraded": (("fail-disk", {"member": "1"}),),
    "rebuilding": (
        ("fail-disk", {"member": "1"}),
        ("replace-disk", {"old": "1", "new": "fresh"}),
    ),
    "replacing": (("replace-disk", {"old": "2", "new": "fresh"}),),
    "with a spare": (("add-disk", {"members": ["spare"], "role": "spare"}),),
    "growing": (("add-disk", {"members": ["more"]}),),
}


async def answer(desk: Desk, name: str, **arguments: Any) -> dict[str, Any] | str:
    """Return what a command answers, or the sentence that refuses it."""
    try:
        return await desk.ask(name, **arguments)
    except RaidxError as error:
        return str(error)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("layout", "width"), [("raid0", 4), ("raid1", 3), ("raid4", 4), ("raidx-copy", 4)]
)
async def test_a_dry_run_changes_nothing_and_is_refused_exactly_when_the_change_is(
    layout: str, width: int, state: str
) -> None:
    left = list(CHANGES)
    while left:  # a change that begins is the last one of its array
        async with desk_of(layout, width) as desk:
            await desk.ask("set", key="speed_max", value="1KiB")
            for before, words in STATES[state]:
                await answer(desk, before, **words)  # raid0 loses no member
            cost: dict[str, Any] | str = ""
            while left and isinstance(cost, str):
                name, words = left.pop()
                cost = await both(desk, name, words)


@pytest.mark.parametrize(
    ("layout", "width"), [("raid1", 3), ("raid4", 4), ("raid5", 4), ("raidx-copy", 4)]
)
async def test_a_dry_run_refuses_a_member_that_is_too_small_as_the_change_does(
    layout: str, width: int
) -> None:
    async with desk_of(layout, width) as desk:
        desk.rig.member_bytes //= 8
        for name, words in CHANGES:
            if "a" in words.get("members", ()) or words.get("new") == "a":
                assert isinstance(await both(desk, name, words), str)


async def both(desk: Desk, name: str, words: dict[str, Any]) -> dict[str, Any] | str:
    """Return what a dry run answers; then make the change."""
    spare = desk.array.member_set.config.members[-1].member_uuid
    words = {key: spare if value == "SPARE" else value for key, value in words.items()}
    config, opened = desk.array.member_set.config, dict(desk.shelf.opened)
    jobs = desk.array.jobs.running()
    cost = await answer(desk, name, **words, dry_run=True)
    assert desk.array.member_set.config == config
    assert desk.array.jobs.running() == jobs
    assert desk.shelf.opened == opened
    done = await answer(desk, name, **words)
    assert isinstance(cost, str) == isinstance(done, str), (name, words, cost, done)
    if isinstance(cost, str):
        assert re.sub(r"ram\d+", "ram", cost) == re.sub(r"ram\d+", "ram", str(done))
        fresh = desk.shelf.opened.items() - opened.items()
        assert all(member in desk.shelf.released for _, member in fresh)
    return cost
