"""Power cuts of two arrays while volumes are created, resized, deleted, moved and swapped.

``RAIDX_CRASH_STATES`` and ``RAIDX_CRASH_SEED`` as in test_campaign.py.
"""

from __future__ import annotations

import os

import pytest

from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.campaign import crash_workloads, replay
from raidx_fuse.lab.crash.state import Cell, State
from raidx_fuse.pool.transfer import Transfer, give_up
from raidx_fuse.store.member_set import MemberSet

TIMES = max(1.0, int(os.environ.get("RAIDX_CRASH_STATES", "5000")) / 5000)
SEED = int(os.environ.get("RAIDX_CRASH_SEED", "1"))
STATES = int(120 * TIMES)
BROKEN_STATES = 1000

pytestmark = pytest.mark.timeout(600 * TIMES)


@pytest.mark.parametrize("cell", ["raid5:partial:pool", "raid1:full:pool"])
def test_volumes_keep_their_promises_on_their_way(cell: str) -> None:
    tally = campaign.run_cells([Cell.parse(cell)], STATES, SEED)
    assert not tally.violations, tally.report()
    assert tally.total >= STATES
    assert "move" in {verb for _, verb, _ in tally.states}


def test_a_source_that_gives_up_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over = Transfer.hand_over

    async def too_early(self: Transfer) -> None:
        await give_up(self.source, self.volume_uuid)
        await hand_over(self)

    monkeypatch.setattr(Transfer, "hand_over", too_early)
    cell = Cell.parse("raid5:partial:pool")
    tally = crash_workloads(cell, range(100), BROKEN_STATES, stop_after=1)
    found = tally.violations[0]
    assert "names a move that array" in found.what or "is lost" in found.what
    # The printed name leads to the same state again.
    assert replay(State.parse(found.state)) == (found.verb, found.what)


def test_places_given_up_before_the_watermark_is_durable_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pass_on = Transfer.pass_on

    async def too_early(self: Transfer) -> bool:
        self.saved = self.position  # in memory alone
        return await pass_on(self)

    monkeypatch.setattr(Transfer, "pass_on", too_early)
    cell = Cell.parse("raid5:partial:pool")
    tally = crash_workloads(cell, range(100), BROKEN_STATES, stop_after=1)
    found = tally.violations[0]
    assert tally.total <= BROKEN_STATES
    assert replay(State.parse(found.state)) == (found.verb, found.what)


def test_errors_inside_operations_that_cost_nobody_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemberSet, "_blame_all", lambda *_: None)
    cell = Cell.parse("raid5:partial:pool")
    tally = crash_workloads(cell, range(100), BROKEN_STATES, stop_after=1)
    assert tally.violations, "a write or a flush that fails loses nothing"
