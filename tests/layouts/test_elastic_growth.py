"""A layout in the middle of a growth: every stripe lies one way or the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.placements import elastic
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.registry import LAYOUTS, grows_in_place, make_layout
from tests.layouts.test_elastic import CHUNK, CODES, made, shapes

Three = tuple[ElasticLayout, ElasticLayout, ElasticLayout]


@st.composite
def growing(draw: st.DrawFn) -> Three:
    """Draw (before, in the middle, after) of a growth, the second or third one sometimes."""
    shape = draw(shapes())
    growths = len(shape[1]) - 1
    middle = made(shape, migrated=draw(st.integers(0, shape[4])))
    return made(shape, growths=growths - 1), middle, made(shape)


def age(layout: ElasticLayout, cell: int, wider: ElasticLayout) -> int:
    """Return the cell of the *wider* layout that *cell* becomes."""
    if cell >= layout.code.data_count:
        return cell - layout.code.data_count + wider.code.data_count
    row, column = layout.code.cells[cell]
    return wider.code.index[row, column]


@settings(max_examples=60)
@given(growing())
def test_every_cell_lies_as_before_or_as_after_by_its_stripe(layouts: Three) -> None:
    before, middle, after = layouts
    assert middle.growing
    assert middle.size_bytes == before.size_bytes
    assert middle.code is after.code
    step = max(1, len(before.code.cells) // 60)
    for stripe in range(middle.stripes):
        for cell in range(0, len(before.code.cells), step):
            wide = age(before, cell, after)
            old, new = before.place(stripe, cell), after.place(stripe, wide)
            assert middle.place(stripe, wide) == (new if stripe < middle.migrated else old)
            assert middle.place_in(stripe, wide, after=False) == old
            assert middle.place_in(stripe, wide, after=True) == new
            assert middle.moved_cells(stripe) >> wide & 1 == (old != new)
            assert middle.inverse(*middle.place(stripe, wide)) == (stripe, wide)
        assert sorted(middle.roles(stripe)) == list(range(middle.width))


@settings(max_examples=60)
@given(growing())
def test_a_move_exchanges_a_column_with_the_one_that_is_born_where_it_was(layouts: Three) -> None:
    before, middle, after = layouts
    stripes, columns = middle.moving(0, middle.stripes)
    assert (np.diff(stripes) >= 0).all()
    exchanged: dict[int, set[int]] = {}
    for stripe, column in zip(stripes.tolist(), columns.tolist(), strict=True):
        born = middle.partner(stripe, column)
        old, new = middle._before.of(stripe), middle._after.of(stripe)
        assert (old[column], new[column]) == (new[born], old[born])
        assert new[column] >= middle.members_before  # only ever onto a new member
        cell = middle.code.column_cells[born][0]
        assert middle.logical(stripe, cell) >= before.chunks
        exchanged.setdefault(stripe, set()).update((column, born))
    for stripe in range(middle.stripes):  # what neither moves nor is exchanged has one place
        for column in set(range(middle.code.columns)) - exchanged.get(stripe, set()):
            assert middle._before.of(stripe)[column] == after.roles(stripe)[column]


def test_a_growth_that_is_over_gives_its_blocks_to_the_image() -> None:
    layout = make_layout("raid5", 6, 10, CHUNK, history=[4, 6], rules=[[2, 1]], migrated=9)
    assert isinstance(layout, ElasticLayout)
    with pytest.raises(AssertionError):
        layout.finish_growth()
    layout.migrated = 10
    layout.finish_growth()
    assert not layout.growing
    assert layout.size_bytes == 50 * CHUNK
    plain = make_layout("raid5", 6, 10, CHUNK, history=[4, 6], rules=[[2, 1]])
    places = [plain.place(*plain.locate(c)) for c in range(50)]
    assert [layout.place(*layout.locate(c)) for c in range(50)] == places


def test_impossible_positions_and_layouts_are_refused() -> None:
    for history, migrated in (([4, 6], 11), ([4, 6], -1), ([4], 0)):
        with pytest.raises(LayoutError, match="cannot have migrated"):
            make_layout("raid4", history[-1], 10, CHUNK, history=history, migrated=migrated)
    with pytest.raises(LayoutError, match="must be a number"):
        make_layout("raid4", 6, 10, CHUNK, history=[4, 6], migrated="3")
    with pytest.raises(LayoutError, match="does not lead from 1"):
        make_layout("raid0", 6, 10, CHUNK, history=[0, 6])
    assert {name for name in LAYOUTS if grows_in_place(name)} == set(CODES)


def test_a_surrogate_has_the_parity_of_the_stripes_that_have_migrated() -> None:
    layout = make_layout("raid4", 7, 10, CHUNK, history=[4, 6], migrated=3, parity="surrogate")
    assert isinstance(layout, ElasticLayout)
    parity = layout.code.data_count
    assert layout.code.columns == 6
    for stripe in range(10):
        holder, other = (6, 3) if stripe < 3 else (3, 6)
        assert layout.place(stripe, parity) == (holder, stripe)
        assert sorted(layout.roles(stripe)) == sorted((0, 1, 2, 4, 5, holder))
        assert layout.inverse(holder, stripe) == (stripe, parity)
        assert layout.inverse(other, stripe) is None
        assert layout.lost_cells(stripe, frozenset({holder})) == 1 << parity
        assert layout.lost_cells(stripe, frozenset({other})) == 0
        assert layout.moved_cells(stripe) >> parity & 1
    assert layout.targets(back=False) == {4, 5, 6}
    assert layout.targets(back=True) == {0, 1, 2, 3}
    assert layout.tolerates(frozenset({6}))
    assert not layout.tolerates(frozenset({3, 6}))
    layout.migrated = 10
    layout.finish_growth()
    assert (layout.width, layout.place(5, parity)) == (6, (3, 5))
    with pytest.raises(LayoutError, match="surrogate"):
        make_layout("raid0", 6, 10, CHUNK, history=[3, 5], migrated=3, parity="surrogate")
    with pytest.raises(LayoutError, match="always live"):
        make_layout("raid5", 6, 10, CHUNK, history=[3, 5], migrated=3, parity="surrogate")
    with pytest.raises(LayoutError, match="does not lead"):
        make_layout("raid4", 6, 10, CHUNK, history=[4, 6], migrated=3, parity="surrogate")
    with pytest.raises(LayoutError, match="cannot follow"):
        make_layout("raid4", 6, 10, CHUNK, history=[4, 6], migrated=3, parity="raised")


def test_the_chunks_of_one_generation_follow_one_another_stripe_by_stripe() -> None:
    layout = make_layout("raid4", 7, 10, CHUNK, history=[4, 5, 7])
    assert isinstance(layout, ElasticLayout)
    spans = [(g.start, g.columns) for g in layout.generations]
    assert spans == [(0, 3), (30, 1), (40, 2)]
    for start, count in spans:
        for stripe in range(10):
            blocks = range(start + stripe * count, start + (stripe + 1) * count)
            places = [layout.locate(block) for block in blocks]
            assert {row for row, _ in places} == {stripe}
            cells = sum(1 << cell for _, cell in places)
            assert layout.is_generation(cells)
            for cell in range(6):  # one more or one less, or another one instead, is none
                assert not layout.is_generation(cells ^ (1 << cell))
    assert not layout.is_generation(0)


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("name", ["raid5", "raid4", "rdp"])
def test_a_table_too_large_to_keep_has_each_run_of_stripes_once(
    monkeypatch: pytest.MonkeyPatch, name: str, growing: bool
) -> None:
    params: dict[str, Any] = {"history": [4, 6, 8], "rules": [[16, 1], [8, 3]]}
    if name == "rdp":
        params |= {"prime": 7, "rotate": True}
    if growing:
        params["migrated"] = 1000
    rows = 6 if name == "rdp" else 1
    whole = make_layout(name, 8, 5000 * rows, 4096, **params)
    monkeypatch.setattr(elastic, "TABLE_BYTES_MAX", 4096)
    short = make_layout(name, 8, 5000 * rows, 4096, **params)
    assert isinstance(short, ElasticLayout)
    assert isinstance(whole, ElasticLayout)
    assert short._after.is_large > whole._after.is_large
    assert short._after.entry(short._after.period - 1) < short._after.period
    for number in range(0, 5000, 7):
        stripe = Stripe(number)
        assert short.roles(stripe) == whole.roles(stripe)
        for cell in (CellIndex(0), CellIndex(len(whole.code.cells) - 1)):
            assert short.place(stripe, cell) == whole.place(stripe, cell)
