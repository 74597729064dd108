"""Every two operations meet: a sample of the theme "pairs", and what it finds when it should.

``RAIDX_CRASH_STATES`` and ``RAIDX_CRASH_SEED`` as in test_campaign.py. All places of all pairs:
``python -m raidx_fuse.lab.crash --theme pairs --every-place --states 100000``.
"""

from __future__ import annotations

import os

import pytest
import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.crash import __main__, campaign
from raidx_fuse.lab.crash.campaign import crash_workloads, replay
from raidx_fuse.lab.crash.pairs import OPERATIONS
from raidx_fuse.lab.crash.state import Cell, State
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.pool.wipe import Wiper
from raidx_fuse.settings import MODES
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.member_set import MemberSet

TIMES = max(1.0, int(os.environ.get("RAIDX_CRASH_STATES", "5000")) / 5000)
SEED = int(os.environ.get("RAIDX_CRASH_SEED", "1"))
STATES = int(200 * TIMES)
BROKEN_STATES = 1000

pytestmark = pytest.mark.timeout(600 * TIMES)


def test_every_two_operations_keep_the_promises() -> None:
    names = [name for name, layout in LAYOUTS.items() if layout.build or layout.bundled]
    cells = [
        Cell(name, MODES[n % len(MODES)], theme="pairs", sums=n % 2 == SEED % 2)
        for n, name in enumerate(names)
    ]
    tally = campaign.run_cells(cells, STATES, SEED)
    assert not tally.violations, tally.report()
    assert tally.total >= STATES
    layouts = {Cell.parse(cell).layout for cell, _, _ in tally.states}
    assert layouts == set(names)


def test_stripes_that_a_new_mark_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    put = DirtyBitmap._put

    def forgetful(self: DirtyBitmap, regions: set[int], value: bool) -> None:
        if value:  # as if nothing were written there, though the bit still stands for it
            self._written |= {region: set() for region in regions - self._resync}
        put(self, regions, value)

    monkeypatch.setattr(DirtyBitmap, "_put", forgetful)
    cell = Cell.parse("raid5:partial:pairs:clean:stripe:10")  # a flush that fails
    tally = crash_workloads(cell, [43], BROKEN_STATES, stop_after=1)
    found = tally.violations[0]
    assert "after the return" in found.what or "parity is not consistent" in found.what
    # The printed name leads to the same state again.
    assert replay(State.parse(found.state)) == (found.verb, found.what)


@pytest.mark.parametrize("name", ["move:read:144/w1", "restripe:read:120/w7"])
def test_an_error_inside_a_move_or_a_job_that_costs_nobody_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State.parse(f"raid5:partial:pairs:{name}/m0/k/-")
    _, what = replay(state)
    assert what is None
    monkeypatch.setattr(MemberSet, "_blame_all", lambda *_: None)
    _, what = replay(state)
    assert what is not None
    assert "holds zeros" in what


def test_operations_that_never_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(_wiper: Wiper) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Wiper, "wiped", stuck)
    cell = Cell.parse("raid1:full:pairs:shrink:read")
    tally = crash_workloads(cell, range(3), BROKEN_STATES, stop_after=1)
    found = tally.violations[0]
    assert "never end" in found.what
    assert "in stuck" in found.what, "the places at which all tasks wait"


def test_a_pair_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="pairs:trim:nothing"):
        __main__._cells(("raid5",), ("full",), False, ("pairs:trim:nothing",))


def test_the_catalogue_has_what_can_meet() -> None:
    assert len(OPERATIONS) >= 38
    for layout in ("raid0", "raid1", "raid5", "rdp", "raidx-parity"):
        assert sum(one.suits(layout) for one in OPERATIONS.values()) >= 25
