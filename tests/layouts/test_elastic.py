"""The elastic mapping: the paper's Fig. 1, a transcription of its recursion, invariants."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import cell_range, stripe_range
from raidx_fuse.layouts.placements.elastic import ElasticLayout, ElasticMapping
from raidx_fuse.layouts.registry import make_layout


@st.composite
def mappings(draw: st.DrawFn) -> ElasticMapping:
    """Draw a mapping with up to three growths."""
    history = [draw(st.integers(1, 6))]
    for _ in range(draw(st.integers(0, 3))):
        history.append(history[-1] + draw(st.integers(1, 5)))
    return ElasticMapping(tuple(history), draw(st.integers(1, 50)))


def slow_locate(history: tuple[int, ...], rows: int, block: int) -> tuple[int, int]:
    """Place *block* by the paper's recursion (Fig. 8), moves by order within a column (Fig. 9)."""
    if len(history) == 1:
        return block % history[0], block // history[0]
    v, w = history[-2:]
    n = w - v
    if block >= v * rows:
        j, row = (block - v * rows) % n, (block - v * rows) // n
        column = row % w
        return (column - n + 1 + j) % w, row
    disk, row = slow_locate(history[:-1], rows, block)
    column = row % w
    if not disk <= column <= disk + n - 1:
        return disk, row
    moved = [d for d in range(v) if d <= column <= d + n - 1]
    vacant = {(column - n + 1 + j) % w for j in range(n)}
    places = [d for d in range(v, w) if d not in vacant]
    return dict(zip(moved, places, strict=True))[disk], row


def test_fig_1_from_four_disks_to_six() -> None:
    mapping = ElasticMapping((3, 5), 5)
    on_new = {disk: [mapping.logical(disk, row) for row in range(5)] for disk in (3, 4)}
    assert [block for block in on_new[3] if block < 15] == [0, 3, 7]
    assert [block for block in on_new[4] if block < 15] == [4, 8, 11]
    # as drawn in the module
    assert [[mapping.logical(disk, row) for row in range(5)] for disk in range(5)] == [
        [16, 17, 6, 9, 12],
        [1, 18, 19, 10, 13],
        [2, 5, 20, 21, 14],
        [0, 3, 7, 22, 23],
        [15, 4, 8, 11, 24],
    ]


@given(mappings())
def test_mapping_is_the_papers_recursion_and_its_inverse(mapping: ElasticMapping) -> None:
    places = set()
    for block in range(mapping.blocks):
        place = mapping.locate(block)
        assert place == slow_locate(mapping.history, mapping.blocks_per_disk, block)
        assert mapping.logical(*place) == block
        places.add(place)
    rows = range(mapping.blocks_per_disk)
    assert places == {(disk, row) for disk in range(mapping.disks) for row in rows}


@given(mappings())
def test_ranges_agree_with_single_blocks(mapping: ElasticMapping) -> None:
    blocks = np.arange(mapping.blocks)
    disks, rows = mapping.locate_many(blocks)
    single = [mapping.locate(block) for block in range(mapping.blocks)]
    assert list(zip(disks.tolist(), rows.tolist(), strict=True)) == single
    assert np.array_equal(mapping.logical_many(disks, rows), blocks)
    grid = mapping.logical_many(np.arange(mapping.disks)[:, None], np.arange(3 % mapping.blocks))
    for disk in range(mapping.disks):
        for row in range(grid.shape[1]):
            assert grid[disk, row] == mapping.logical(disk, row)


@given(mappings(), st.integers(1, 5))
def test_growth_moves_the_minimum_and_only_to_new_disks(
    mapping: ElasticMapping, added: int
) -> None:
    grown = mapping.grown(mapping.disks + added)
    moves = {(move.source, move.block): move.target for move in grown.moves()}
    for block in range(mapping.blocks):
        disk, row = mapping.locate(block)
        target, new_row = grown.locate(block)
        assert new_row == row
        assert target == moves.pop((disk, row), disk)
        assert target == disk or target >= mapping.disks
    assert not moves
    # whole regions: n of w of the old blocks, v * n in each region
    regions = mapping.blocks_per_disk // grown.disks
    moved = list(grown.moves(0, regions * grown.disks))
    assert len(moved) == regions * mapping.disks * added
    assert len(moved) * grown.disks == added * mapping.disks * regions * grown.disks


@given(mappings(), st.integers(1, 5))
def test_every_disk_is_loaded_alike_in_whole_regions(mapping: ElasticMapping, added: int) -> None:
    grown = mapping.grown(mapping.disks + added)
    whole = mapping.blocks_per_disk // grown.disks * grown.disks
    old = Counter(
        disk
        for disk in range(grown.disks)
        for row in range(whole)
        if grown.logical(disk, row) < mapping.blocks
    )
    new = whole - old[0]
    assert set(old.values()) <= {whole * mapping.disks // grown.disks}
    assert new == whole * added // grown.disks


@given(mappings())
def test_moves_of_one_disk_are_neighbours_within_a_region(mapping: ElasticMapping) -> None:
    """Section 3.2: one read for each old disk and one write for each new one per region."""
    grown = mapping.grown(mapping.disks + 2)
    for key in ("source", "target"):
        rows: dict[tuple[int, int], list[int]] = {}
        for move in grown.moves():
            rows.setdefault((getattr(move, key), move.block // grown.disks), []).append(move.block)
        for run in rows.values():
            assert all(b - a == 1 for a, b in pairwise(run))


def test_moves_of_a_window_are_part_of_all_moves() -> None:
    grown = ElasticMapping((3, 4, 6), 40)
    parts = [list(grown.moves(a, b)) for a, b in ((0, 7), (7, 8), (8, 31), (31, 40))]
    assert [move for part in parts for move in part] == list(grown.moves())
    assert list(ElasticMapping((4,), 10).moves()) == []


@pytest.mark.parametrize("history", [(), (0, 3), (3, 3), (4, 3), (3, 5, 5)])
def test_histories_must_rise(history: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError):
        ElasticMapping(history, 10)


@given(mappings())
def test_elastic_layout_is_the_mapping_under_roles(mapping: ElasticMapping) -> None:
    history = tuple(disks + 1 for disks in mapping.history)
    layout = ElasticLayout("raid4", history, 4096, mapping.blocks_per_disk)
    assert layout.chunks == mapping.blocks
    parity = layout.code.data_count
    for chunk in range(layout.chunks):
        stripe, cell = layout.locate(chunk)
        assert (cell, stripe) == mapping.locate(chunk)
        assert layout.logical(stripe, cell) == chunk
    for stripe in stripe_range(0, layout.stripes):
        roles = [layout.place(stripe, cell)[0] for cell in cell_range(0, parity + 1)]
        assert sorted(roles) == list(range(layout.width))
        assert roles[parity] == mapping.history[0]  # parity never moves
        assert tuple(roles) == layout.roles(stripe)
        for number, role in enumerate(roles):
            assert layout.inverse(role, stripe) == (stripe, number)
            assert layout.lost_cells(stripe, frozenset([role])) == 1 << number
    assert layout.inverse(0, layout.stripes) is None


def test_raid4_with_a_history_is_elastic() -> None:
    layout = make_layout("raid4", 6, 5, 4096, history=[4, 6])
    assert isinstance(layout, ElasticLayout)
    assert [layout.place(*layout.locate(chunk)) for chunk in (0, 3, 7)] == [(4, 0), (4, 1), (4, 2)]
    for bad in ("46", [4, 5], [], [2, 6], ["4", "6"]):
        with pytest.raises(LayoutError):
            make_layout("raid4", 6, 5, 4096, history=bad)
