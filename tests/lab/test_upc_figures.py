"""The UPC paper's program at small size: the proof's map, and the sign of each figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from raidx_fuse.lab.loads.request import requests_of
from raidx_fuse.layouts.registry import make_code


@pytest.fixture
def upc(program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = program("upc_runs")
    monkeypatch.setattr(module, "DISK_BYTES", 8 << 30)  # the maps of 300 GB take seconds to make
    return module


@pytest.mark.parametrize("p", [5, 7, 11, 13, 17, 19, 23, 29, 31])
def test_each_write_works_on_the_same_disks_in_both_codes(p: int) -> None:
    """The one-to-one map of the proof: disks of a write, counted over all data cells."""
    seen = []
    for name in ("pcode", "upc"):
        code = make_code(name, p - 1)
        sets = [
            (
                code.column_of[data],
                frozenset(code.column_of[cell] for cell in (data, *code.affects[data])),
            )
            for data in range(code.data_count)
        ]
        seen.append(Counter(sets))
    assert seen[0] == seen[1]
    assert all(len(disks) == 3 for _, disks in seen[0])


def test_neighbours_share_fewer_disks_in_upc_and_all_pairs_as_many(
    program: Callable[[str], ModuleType],
) -> None:
    paper = program("paper_upc")
    rows = {(row[0], row[1]): row[2:] for row in paper.overlaps(None).rows}
    for p in paper.PAPER_BETTER:
        theirs, ours = rows[p, "pcode"], rows[p, "upc"]
        assert ours[0] < theirs[0]
        assert ours[-1] == pytest.approx(theirs[-1])


def pairs(upc: ModuleType, run: Any, count: int) -> float:
    """Return by how many percent UPC is better, over *count* pairs of runs."""
    logs = 1.0
    for seed in range(1, count + 1):
        ours = run._replace(seed=seed)
        logs *= upc.mean_ms(ours) / upc.mean_ms(ours._replace(code="pcode"))
    return float(100 * (1 - logs ** (1 / count)))


def test_bursts_that_write_a_row_gain_without_locks_and_even_loads_do_not(upc: ModuleType) -> None:
    burst = upc.Run("upc", 11, 1, 300, upc.BURSTS, locks=False)
    assert pairs(upc, burst._replace(requests=200), 1) > 15
    even = upc.Run("upc", 7, 1, 300, upc.FINANCIAL1, reach=0.9)
    assert -15 < pairs(upc, even, 2) < 15


def test_the_load_as_in_the_paper_has_one_address_space_and_the_rate(upc: ModuleType) -> None:
    run = upc.Run("upc", 7, 1, 2000, upc.LOG, iops=140.0)
    blocks = list(upc.load_of(run, 300 * 10**9))
    last_s = blocks[-1].at_s[-1]
    assert 1000 / last_s < 140 < 4000 / last_s
    end = max(int((block.offset_bytes + block.length_bytes).max()) for block in blocks)
    assert end <= upc.FACTOR * upc.SPAN_BYTES + (1 << 20)
    log = [o for block in blocks for o in block.offset_bytes.tolist() if o % (28 << 10) == 0]
    assert len(log) > 200  # the log goes on in steps of 28 KiB


def test_a_shift_moves_each_address_and_changes_nothing_else(upc: ModuleType) -> None:
    run = upc.Run("upc", 13, 1, 200, upc.LOG)
    plain, moved = (
        list(requests_of(upc.load_of(one, 300 * 10**9))) for one in (run, run._replace(shift=3))
    )
    assert [(at, write, place + 3 * upc.UNIT, size) for at, write, place, size in plain] == moved


def test_at_p_7_the_factor_that_the_paper_does_not_tell_decides_the_sign(upc: ModuleType) -> None:
    run = upc.Run("upc", 7, 1, 300, upc.LOG)
    gains = [pairs(upc, run._replace(factor=factor), 1) for factor in (4, 8)]
    assert gains[0] < -5 < 0 < gains[1]


def test_at_p_13_the_cells_decide_much_of_a_single_gain(upc: ModuleType) -> None:
    """One load, as in the paper, shifted by ten chunks: only the cells of its places change."""
    run = upc.Run("upc", 13, 1, 400, upc.LOG)
    plain, moved = (pairs(upc, one, 1) for one in (run, run._replace(shift=10)))
    assert abs(plain - moved) > 5
    assert -40 < plain < 40
    assert -40 < moved < 40
