"""Placements: the four maps agree with each other and with textbook tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.codes.horizontal import rdp, replicas, single_parity, striping
from raidx_fuse.layouts.numbers import Role, cell_range, stripe_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.pattern import PatternLayout
from raidx_fuse.layouts.placements.rotated import RotatedLayout
from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths, make_code, make_layout
from tests.support.patterns import made_by

CHUNK = 4096
BUILDABLE = [name for name, info in LAYOUTS.items() if info.build is not None]


@st.composite
def patterns(draw: st.DrawFn) -> PatternLayout:
    width = draw(st.integers(4, 8))
    code = draw(st.sampled_from([single_parity(3), rdp(4), replicas(2), striping(1)]))
    base = st.permutations(range(width)).map(lambda roles: roles[: code.columns])
    bases = draw(st.lists(base, min_size=1, max_size=3))
    chunks = draw(st.integers(1, 2)) * len(bases) * len(code.cells) + draw(st.integers(0, 2))
    return made_by(code, bases, width, chunks)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw any layout that can be made, up to 12 members and three rounds of rotation.

    Or one by a pattern, of stripes narrower than the array.
    """
    if draw(st.booleans()):
        return draw(patterns())
    name = draw(st.sampled_from(BUILDABLE))
    width = draw(st.sampled_from(allowed_widths(name, 12)))
    rows = make_code(name, width).rows
    member_chunks = draw(st.integers(rows, rows * width * 2 + 1))
    params = {key: draw(st.booleans()) for key in LAYOUTS[name].params if key == "rotate"}
    return make_layout(name, width, member_chunks, CHUNK, **params)


def test_raid5_is_left_symmetric_as_in_the_textbook() -> None:
    layout = make_layout("raid5", 5, 5, CHUNK)
    table = [[""] * 5 for _ in range(5)]
    for stripe in range(5):
        for cell in range(5):
            role, member_chunk = layout.place(stripe, cell)
            label = "P" if cell == 4 else str(layout.logical(stripe, cell))
            table[member_chunk][role] = label
    assert table == [
        ["0", "1", "2", "3", "P"],
        ["5", "6", "7", "P", "4"],
        ["10", "11", "P", "8", "9"],
        ["15", "P", "12", "13", "14"],
        ["P", "16", "17", "18", "19"],
    ]


def test_raid4_keeps_parity_on_the_last_member() -> None:
    layout = make_layout("raid4", 4, 9, CHUNK)
    assert {layout.place(stripe, 3)[0] for stripe in range(9)} == {3}
    assert [layout.place(*layout.locate(chunk)) for chunk in range(4)] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
    ]


@given(layouts())
def test_place_and_inverse_are_inverse_and_no_two_cells_share_a_chunk(layout: Layout) -> None:
    seen = set()
    for stripe in range(layout.stripes):
        for cell in range(len(layout.code.cells)):
            place = layout.place(stripe, cell)
            seen.add(place)
            assert layout.inverse(*place) == (stripe, cell)
            assert place[0] == layout.roles(stripe)[layout.code.column_of[cell]]
            assert 0 <= place[1] < layout.member_chunks
    assert len(seen) == layout.stripes * len(layout.code.cells)
    used = sum(
        layout.inverse(role, chunk) is not None
        for role in range(layout.width)
        for chunk in range(layout.member_chunks)
    )
    assert used == len(seen)
    assert layout.inverse(0, layout.member_chunks) is None


@given(layouts())
def test_places_of_many_stripes_are_those_of_each(layout: Layout) -> None:
    stripes = np.arange(min(layout.stripes, 40), dtype=np.int64)[::-1]
    for cell in cell_range(0, len(layout.code.cells)):
        roles, chunks = layout.places(stripes, cell)
        found = list(zip(roles.tolist(), chunks.tolist(), strict=True))
        assert found == [layout.place(stripe, cell) for stripe in stripes.tolist()]


@given(layouts())
def test_locate_and_logical_are_inverse_and_contiguous(layout: Layout) -> None:
    for chunk in range(layout.chunks):
        stripe, cell = layout.locate(chunk)
        assert layout.logical(stripe, cell) == chunk
        assert (stripe, cell) == divmod(chunk, layout.code.data_count)
    assert layout.size_bytes == layout.chunks * CHUNK


@given(layouts(), st.data())
def test_lost_cells_are_the_cells_placed_on_lost_roles(layout: Layout, data: st.DataObject) -> None:
    lost_roles = frozenset(map(Role, data.draw(st.frozensets(st.integers(0, layout.width - 1)))))
    for stripe in stripe_range(0, min(layout.stripes, 2 * layout.width)):
        expected = sum(
            1 << cell
            for cell in cell_range(0, len(layout.code.cells))
            if layout.place(stripe, cell)[0] in lost_roles
        )
        assert layout.lost_cells(stripe, lost_roles) == expected


@given(layouts())
def test_rows_say_where_stripes_begin_and_end(layout: Layout) -> None:
    """A restripe relies on it: so much is free, so much is full."""
    cells = range(len(layout.code.cells))
    chunks = [[layout.place(stripe, cell)[1] for cell in cells] for stripe in range(layout.stripes)]
    stripes, rows = range(layout.stripes + 1), range(layout.member_chunks + 1)
    until = [max((max(each) + 1 for each in chunks[:at]), default=0) for at in stripes]
    before = [min((min(each) for each in chunks[at:]), default=rows[-1]) for at in stripes]
    assert list(map(layout.rows_until, stripes)) == until
    assert list(map(layout.rows_before, stripes)) == before
    for row in rows:
        assert layout.stripes_within(row) == max(at for at in stripes if until[at] <= row)
        assert layout.stripes_behind(row) == min(at for at in stripes if before[at] >= row)
    in_tile, tile_rows = layout.tile()
    assert layout.stripes * tile_rows == layout.member_chunks * in_tile


@given(layouts())
def test_rotation_loads_every_role_alike_over_one_round(layout: Layout) -> None:
    if not isinstance(layout, RotatedLayout) or layout.rotation != "left":
        return
    parity = [0] * layout.width
    for stripe in range(layout.width):
        for cell in range(layout.code.data_count, len(layout.code.cells)):
            parity[layout.place(stripe, cell)[0]] += 1
    assert len(set(parity)) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_layout("riad5", 4, 10, CHUNK), ["unknown layout 'riad5'", "raid5"]),
        (lambda: make_layout("zzz", 4, 10, CHUNK), ["raid0", "raid1", "raid4", "raid5"]),
        (lambda: make_layout("raid5", 2, 10, CHUNK), ["2 members", "nearest: 3"]),
        (lambda: make_layout("raid1", 1, 10, CHUNK), ["nearest: 2"]),
        (lambda: make_layout("xcode", 8, 10, CHUNK), ["nearest: 7 or 11", "primes"]),
        (lambda: make_layout("pcode", 7, 10, CHUNK), ["nearest: 6 or 10", "primes less one"]),
        (lambda: make_layout("upc", 3, 10, CHUNK), ["nearest: 4"]),
        (lambda: make_layout("rdp", 65, 10, CHUNK), ["nearest: 64"]),
        (lambda: make_layout("upc", 6, 10, CHUNK, rotate=True), ["no parameter 'rotate'"]),
        (lambda: make_layout("rdp", 6, 3, CHUNK), ["at least 4 chunks"]),
        (lambda: make_layout("raidx-copy", 6, 3, CHUNK), ["one by one"]),
        (lambda: make_layout("raid5", 300, 10, CHUNK), ["nearest: 255"]),
        (lambda: make_layout("raid5", 3, 0, CHUNK), ["at least 1 chunks"]),
        (lambda: make_layout("raid5", 3, 9, 5000), ["5000", "powers of two"]),
        (lambda: make_layout("raid5", 3, 9, 2048), ["4 KiB"]),
        (lambda: make_layout("raid5", 3, 9, 2 << 20), ["1 MiB"]),
        (lambda: make_layout("raid5", 3, 9, CHUNK, p=7), ["no parameter 'p'"]),
        (lambda: RotatedLayout("x", make_code("raid4", 3), 4096, 9, "right"), ["'right'"]),
    ],
)
def test_what_cannot_be_made_says_so_in_one_line(call: object, words: list[str]) -> None:
    assert callable(call)
    with pytest.raises(LayoutError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_allowed_widths() -> None:
    assert allowed_widths("raid0", 4) == (1, 2, 3, 4)
    assert allowed_widths("raid5", 5) == (3, 4, 5)
    assert allowed_widths("rdp", 14) == allowed_widths("evenodd", 14) == tuple(range(4, 15))
    assert allowed_widths("xcode", 20) == (5, 7, 11, 13, 17, 19)
    assert allowed_widths("pcode", 20) == allowed_widths("upc", 20) == (4, 6, 10, 12, 16, 18)


@pytest.mark.parametrize("name", BUILDABLE)
def test_the_table_tells_the_truth_about_its_codes(name: str) -> None:
    info = LAYOUTS[name]
    for width in allowed_widths(name, 14):
        code = make_code(name, width)
        assert (code.columns, code.tolerance) == (width, info.tolerance(width))
        assert info.efficiency(width) == pytest.approx(code.data_count / (code.rows * width))
