"""Power cuts while requests share records of the log (journal/group_commit.py).

One test breaks a rule that makes this safe, and expects the campaign to find a violation. That a
checkpoint waits for late records is tested in test_refused_record.py.
``RAIDX_CRASH_STATES`` and ``RAIDX_CRASH_SEED`` as in test_campaign.py.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from raidx_fuse.journal.journal import Journal
from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.campaign import crash_workloads, replay
from raidx_fuse.lab.crash.state import Cell, State
from raidx_fuse.lab.crash.workload import record_workload

TIMES = max(1.0, int(os.environ.get("RAIDX_CRASH_STATES", "5000")) / 5000)
SEED = int(os.environ.get("RAIDX_CRASH_SEED", "1"))
STATES = int(400 * TIMES)  # so many that each kind of gathering is among them
BROKEN_STATES = 1000

pytestmark = pytest.mark.timeout(600 * TIMES)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the kinds of gatherings that are written."""
    found: Counter[str] = Counter()
    write_batch = Journal.write_batch

    def counted(journal: Journal) -> None:
        batch = journal.batch
        write_batch(journal)
        if batch is not None:
            found["late" if batch.over is not None else "at once"] += 1
            found["several"] += len(batch.stripes) > 1
            found["the same"] += len(set(batch.stripes)) < len(batch.stripes)

    monkeypatch.setattr(Journal, "write_batch", counted)
    return found


@pytest.mark.parametrize("cell", ["raid5:partial:door", "raid4:full:door", "raid0:full:door"])
def test_writes_that_share_a_record_keep_their_promises(cell: str, met: Counter[str]) -> None:
    tally = campaign.run_cells([Cell.parse(cell)], STATES, SEED)
    assert not tally.violations, tally.report()
    assert tally.total >= STATES
    assert all(met[kind] for kind in ("late", "at once", "several", "the same")), met


def test_they_are_a_part_of_every_campaign(met: Counter[str]) -> None:
    for seed in range(40):
        record_workload(Cell("raid5", "partial"), seed)
        if met["at once"] and met["several"]:
            break
    assert met["at once"]
    assert met["several"]


def _acknowledge_without_a_record(journal: Journal) -> None:
    batch, journal.batch = journal.batch, None
    if batch is not None:
        batch.written = True


@pytest.mark.parametrize(("cell", "first"), [("raid5:partial:door", 0), ("raid5:partial", 4)])
def test_a_shared_record_that_is_never_written_is_found_out(
    cell: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search begins at the workload *first*, where the bug was found last."""
    monkeypatch.setattr(Journal, "write_batch", _acknowledge_without_a_record)
    seeds = range(first, first + 100)
    tally = crash_workloads(Cell.parse(cell), seeds, BROKEN_STATES, stop_after=1)
    assert tally.violations, "a campaign that cannot fail proves nothing"
    violation = tally.violations[0]
    assert violation.verb != "running", violation.what
    assert replay(State.parse(violation.state)) == (violation.verb, violation.what)
