"""I/O distributions: Figs. 1 and 3 of the upc paper, and the words that describe a pattern."""

from __future__ import annotations

import pytest

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.load import (
    conventional_reads,
    parse_writes,
    write_load,
)
from raidx_fuse.layouts.registry import make_code, make_layout


def layout_of(name: str, width: int, **params: object) -> Layout:
    return make_layout(name, width, 1000, 65536, **params)


def totals(name: str, width: int, spec: str, **params: object) -> list[int]:
    layout = layout_of(name, width, **params)
    return list(write_load(layout, parse_writes(spec, layout)).total)


@pytest.mark.parametrize("p", [5, 7, 11, 13])
def test_fig_1_rdp_parity_disks_are_hot(p: int) -> None:
    """Section 2.2.1: 2(p-1) per data disk, 2(p-1)^2 row parity, 2(p-2)^2 + 2(p-1)^2 diagonal."""
    rows, diagonals = 2 * (p - 1) ** 2, 2 * (p - 2) ** 2 + 2 * (p - 1) ** 2
    assert totals("rdp", p + 1, "all") == [2 * (p - 1)] * (p - 1) + [rows, diagonals]
    assert diagonals / (2 * (p - 1)) == pytest.approx(2 * p + 1 / (p - 1) - 4)  # Fig. 1d


def test_fig_3_pcode_puts_18_operations_on_one_disk_and_4_on_others() -> None:
    """p = 11, ten writes to the ten data chunks of the second row (row 1 counted from 0)."""
    assert totals("pcode", 10, "row:1") == [18, 6, 6, 4, 4, 4, 4, 4, 4, 6]
    assert totals("pcode", 10, "0-9") == totals("pcode", 10, "row:1")


@pytest.mark.parametrize("width", [6, 10, 12])
def test_upc_is_even_in_every_row(width: int) -> None:
    for row in range(1, make_code("upc", width).rows):
        assert totals("upc", width, f"row:{row}") == [6] * width


def test_rotation_evens_rdp_out_over_a_round() -> None:
    code = make_code("rdp", 8)
    spec = f"0-{8 * code.data_count - 1}"
    assert len(set(totals("rdp", 8, spec, rotate=True))) == 1
    assert len(set(totals("rdp", 8, spec))) == 3


def test_raid5_small_writes_cost_four_operations() -> None:
    assert totals("raid5", 4, "0") == [2, 0, 0, 2]
    assert totals("raid5", 4, "3x5") == [0, 0, 10, 10]
    assert totals("raid0", 4, "0,1,5") == [2, 4, 0, 0]


def test_words_of_a_pattern() -> None:
    layout = layout_of("upc", 6)
    assert parse_writes("0-3,7", layout) == [0, 1, 2, 3, 7]
    assert parse_writes("1x3, 2-3x2", layout) == [1, 1, 1, 2, 3, 2, 3]
    assert parse_writes("all", layout) == list(range(12))
    assert parse_writes("row:2", layout) == list(range(6, 12))
    drawn = parse_writes("random:200:7", layout)
    assert drawn == parse_writes("random:200:7", layout) != parse_writes("random:200:8", layout)
    assert parse_writes("random:9", layout) == parse_writes("random:9:0", layout)
    assert set(drawn) <= set(range(6 * 12))
    assert len(drawn) == 200


@pytest.mark.parametrize("spec", ["", "x", "3-", "-3", "3-1", "row:0", "row:9", "random", "1,,2"])
def test_words_that_mean_nothing(spec: str) -> None:
    with pytest.raises(LayoutError):
        parse_writes(spec, layout_of("upc", 6))


def test_chunks_beyond_the_end_are_named() -> None:
    layout = make_layout("raid5", 3, 4, 4096)
    with pytest.raises(LayoutError, match="chunk 8 is beyond the end"):
        parse_writes("7-8", layout)


def test_imbalance() -> None:
    layout = layout_of("pcode", 10)
    load = write_load(layout, parse_writes("row:1", layout))
    assert load.imbalance == pytest.approx(18 * 10 / 60)
    assert write_load(layout, []).imbalance == 0.0


@pytest.mark.parametrize(
    ("name", "width", "conventional", "fewest"),
    [("rdp", 8, 36, 27), ("raid5", 5, 4, 4), ("raid1", 3, 1, 1), ("evenodd", 9, 42, 33)],
)
def test_recovery_against_the_conventional_way(
    name: str, width: int, conventional: int, fewest: int
) -> None:
    """Section 2.3.1: 36 reads for a disk of RDP with p = 7; the hybrid optimum is 27."""
    code = make_code(name, width)
    assert conventional_reads(code, 1) == conventional
    reads = 0
    for _, mask in code.recover(1):
        reads |= mask
    assert reads.bit_count() == fewest
    assert not reads & code.column_masks[1]
