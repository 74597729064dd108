"""A layout in the middle of a growth: every stripe has its old places or its new ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.registry import grows_in_place, make_layout

CHUNK = 4096


@st.composite
def growing(draw: st.DrawFn) -> tuple[ElasticLayout, ElasticLayout, ElasticLayout]:
    """Draw (before, in the middle, after) of a growth, the second or third one sometimes."""
    name = draw(st.sampled_from(["raid0", "raid4"]))
    history = [draw(st.integers(3, 6))]
    for _ in range(draw(st.integers(1, 3))):
        history.append(history[-1] + draw(st.integers(1, 4)))
    stripes = draw(st.integers(1, 30))
    before = ElasticLayout(name, tuple(history[:-1]), CHUNK, stripes)
    middle = ElasticLayout(name, tuple(history), CHUNK, stripes, draw(st.integers(0, stripes)))
    return before, middle, ElasticLayout(name, tuple(history), CHUNK, stripes)


@given(growing())
def test_every_chunk_lies_as_before_or_as_after_by_its_stripe(
    layouts: tuple[ElasticLayout, ElasticLayout, ElasticLayout],
) -> None:
    before, middle, after = layouts
    assert middle.growing
    assert middle.size_bytes == before.size_bytes
    assert middle.code is after.code
    for chunk in range(before.chunks):
        stripe, cell = middle.locate(chunk)
        expected = after if stripe < middle.migrated else before
        assert (stripe, cell) == expected.locate(chunk)
        # A place is a role and a chunk of it: the same whichever layout names the cell.
        assert middle.place(stripe, cell) == expected.place(stripe, cell)


@given(growing())
def test_the_cells_of_a_stripe_and_the_chunks_are_one_to_one(
    layouts: tuple[ElasticLayout, ElasticLayout, ElasticLayout],
) -> None:
    _, middle, after = layouts
    rows = middle.logical_rows(0, middle.stripes)
    assert sorted(rows.ravel().tolist()) == list(range(after.chunks))
    for stripe in range(middle.stripes):
        for cell in range(middle.code.data_count):
            chunk = middle.logical(stripe, cell)
            assert chunk == rows[stripe, cell]
            assert middle.locate(chunk) == (stripe, cell)
            role, member_chunk = middle.place(stripe, cell)
            assert middle.inverse(role, member_chunk) == (stripe, cell)


@given(growing())
def test_what_moves_is_what_lies_elsewhere_afterwards(
    layouts: tuple[ElasticLayout, ElasticLayout, ElasticLayout],
) -> None:
    before, middle, after = layouts
    stripes, old, new, chunks = middle.moving(0, middle.stripes)
    assert (np.diff(stripes) >= 0).all()
    moved = dict(zip(chunks.tolist(), zip(stripes, old, new, strict=True), strict=True))
    for chunk in range(before.chunks):
        stripe, cell = before.locate(chunk)
        _, target = after.locate(chunk)
        assert (chunk in moved) == (cell != target)
        if chunk in moved:
            assert moved[chunk] == (stripe, cell, target)
            assert target >= middle.disks_before  # only ever onto a new disk
            assert before.place(stripe, cell) == middle.place(stripe, cell)
        here = middle.locate(chunk)
        assert middle.moved(*here) == (chunk in moved)


def test_a_growth_that_is_over_gives_its_blocks_to_the_image() -> None:
    layout = ElasticLayout("raid4", (4, 6), CHUNK, 10, 9)
    with pytest.raises(AssertionError):
        layout.finish_growth()
    layout.migrated = 10
    layout.finish_growth()
    assert not layout.growing
    assert layout.size_bytes == 50 * CHUNK
    plain = make_layout("raid4", 6, 10, CHUNK, history=[4, 6])
    assert [layout.locate(c) for c in range(50)] == [plain.locate(c) for c in range(50)]


def test_impossible_positions_and_layouts_are_refused() -> None:
    for history, migrated in (((4, 6), 11), ((4, 6), -1), ((4,), 0)):
        with pytest.raises(LayoutError, match="cannot have migrated"):
            ElasticLayout("raid4", history, CHUNK, 10, migrated)
    with pytest.raises(LayoutError, match="must be a number"):
        make_layout("raid4", 6, 10, CHUNK, history=[4, 6], migrated="3")
    with pytest.raises(LayoutError, match="does not lead from 1"):
        make_layout("raid0", 6, 10, CHUNK, history=[0, 6])
    assert [name for name in ("raid0", "raid4", "raid5", "upc") if grows_in_place(name)] == [
        "raid0",
        "raid4",
    ]


@given(growing())
def test_a_move_exchanges_a_block_with_the_new_block_at_its_old_place(
    layouts: tuple[ElasticLayout, ElasticLayout, ElasticLayout],
) -> None:
    _, middle, after = layouts
    stripes, old, new, chunks = middle.moving(0, middle.stripes)
    for stripe, source, target, chunk in zip(stripes, old, new, chunks, strict=True):
        appended = after.logical(stripe, source)
        pair = (chunk, appended) if stripe >= middle.migrated else (appended, chunk)
        assert (middle.logical(stripe, source), middle.logical(stripe, target)) == pair
        assert appended >= middle.size_bytes // CHUNK
    for stripe in range(middle.stripes):  # who neither moves nor is exchanged has one place
        touched = {*old[stripes == stripe].tolist(), *new[stripes == stripe].tolist()}
        for cell in set(range(middle.code.data_count)) - touched:
            assert middle.logical(stripe, cell) == after.logical(stripe, cell)


def test_a_surrogate_has_the_parity_of_the_stripes_that_have_migrated() -> None:
    layout = make_layout("raid4", 7, 10, CHUNK, history=[4, 6], migrated=3, parity="surrogate")
    assert isinstance(layout, ElasticLayout)
    parity = layout.parity_cell
    assert layout.code.columns == 6
    for stripe in range(10):
        holder, other = (6, 3) if stripe < 3 else (3, 6)
        assert layout.place(stripe, parity) == (holder, stripe)
        assert layout.roles(stripe) == (0, 1, 2, 4, 5, holder)
        assert layout.inverse(holder, stripe) == (stripe, parity)
        assert layout.inverse(other, stripe) is None
        assert layout.lost_cells(stripe, frozenset({holder})) == 1 << parity
        assert layout.lost_cells(stripe, frozenset({other, 4})) == 1 << 3
    assert layout.tolerates(frozenset({6}))
    assert not layout.tolerates(frozenset({3, 6}))
    layout.migrated = 10
    layout.finish_growth()
    assert (layout.width, layout.place(5, parity)) == (6, (3, 5))
    with pytest.raises(LayoutError, match="surrogate"):
        make_layout("raid0", 6, 10, CHUNK, history=[3, 5], migrated=3, parity="surrogate")
    with pytest.raises(LayoutError, match="does not lead"):
        make_layout("raid4", 6, 10, CHUNK, history=[4, 6], migrated=3, parity="surrogate")
    with pytest.raises(LayoutError, match="cannot follow"):
        make_layout("raid4", 6, 10, CHUNK, history=[4, 6], migrated=3, parity="raised")


def test_the_blocks_of_one_generation_follow_one_another_row_by_row() -> None:
    layout = ElasticLayout("raid4", (4, 5, 7), CHUNK, 10)
    assert layout.mapping.generations() == ((0, 3), (30, 1), (40, 2))
    for start, count in layout.mapping.generations():
        for stripe in range(10):
            blocks = range(start + stripe * count, start + (stripe + 1) * count)
            places = [layout.locate(block) for block in blocks]
            assert {row for row, _ in places} == {stripe}
            cells = sum(1 << cell for _, cell in places)
            assert layout.is_generation(stripe, cells)
            for cell in range(6):  # one more or one less, or another one instead, is none
                assert not layout.is_generation(stripe, cells ^ (1 << cell))
    assert not layout.is_generation(0, 0)
