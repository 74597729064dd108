"""The elastic mapping: the paper's Fig. 1, a brute-force reference for every code, invariants."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.elastic_mapping import (
    ElasticMapping,
    Rule,
    choose_rule,
)
from raidx_fuse.layouts.registry import make_layout

CHUNK = 4096
CODES = {"raid0": 0, "raid4": 1, "raid5": 1, "rdp": 2, "evenodd": 2}  # parity columns

Shape = tuple[str, list[int], list[list[int] | None], bool, int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw (name, history, rules, rotate, stripes) with up to three growths by 1 to 4 members."""
    name = draw(st.sampled_from(sorted(CODES)))
    history = [draw(st.integers(4 if CODES[name] == 2 else 3, 10))]
    for _ in range(draw(st.integers(1, 3))):
        history.append(history[-1] + draw(st.integers(1, 4)))
    rules: list[list[int] | None] = [
        draw(
            st.none()
            | st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(0, after - 2)).map(list)
        )
        for after in history[1:]
    ]
    rotate = name == "raid5" or (CODES[name] == 2 and draw(st.booleans()))
    return name, history, rules, rotate, draw(st.integers(1, 60))


def made(shape: Shape, migrated: int | None = None, growths: int | None = None) -> ElasticLayout:
    """Return the layout of *shape*, or after its first *growths* growths only."""
    name, history, rules, rotate, stripes = shape
    if growths is not None:
        history, rules = history[: growths + 1], rules[:growths]
    params: dict[str, object] = {"history": history, "rules": rules}
    rows = 1
    if CODES[name] == 2:
        params |= {"rotate": rotate, "prime": 23}
        rows = 22
    if migrated is not None:
        params["migrated"] = migrated
    layout = make_layout(name, history[-1], stripes * rows, CHUNK, **params)
    assert isinstance(layout, ElasticLayout)
    return layout


class Reference:
    """Brute force: the members of one stripe, growth by growth, by the rules in words."""

    def __init__(self, shape: Shape) -> None:
        self.name, self.history, self.rules, self.rotate, self.stripes = shape
        self.parities = CODES[self.name]
        self.standing = self.parities if self.name == "raid4" else 0

    def columns(self, stripe: int, growths: int) -> list[int]:
        """Return for each member the age of the column that it holds; a standing parity is -1."""
        counts = [m - self.standing for m in self.history[: growths + 1]]
        first = counts[0]
        on = {(c - stripe) % first if self.rotate else c: c for c in range(first)}
        period = first if self.rotate else 1
        for v, w, rule in zip(counts, counts[1:], self.rules, strict=False):
            if rule is None:
                shift = stripe % w
                period = period * w // np.gcd(period, w)
            else:
                granule, turn = rule
                repeats = period // int(np.gcd(period, granule))
                y, x = divmod(stripe // granule, repeats)
                shift = (x + turn * (x // w) + y) % w
                period = repeats * granule * w
            goes = [d for d in range(v) if d <= shift < d + w - v]
            born = [(shift - (w - v) + 1 + j) % w for j in range(w - v)]
            free = [d for d in range(v, w) if d not in born]
            moved = dict(zip(goes, free, strict=True))
            on = {moved.get(d, d): c for d, c in on.items()}
            on |= {d: v + j for j, d in enumerate(born)}
        held = [on[d] for d in range(counts[-1])]
        return held if not self.standing else [*held[:first], -1, *held[first:]]

    def roles(self, stripe: int, growths: int) -> list[int]:
        """Return the role of each column of the code: data by age, then parity."""
        held = self.columns(stripe, growths)
        turning = self.parities - self.standing
        first = self.history[0] - self.standing
        parity = list(range(first - turning, first)) + [-1] * self.standing
        data = sorted(c for c in held if c not in parity)
        return [held.index(column) for column in (*data, *parity)]


@settings(max_examples=60)
@given(shapes())
def test_every_code_and_history_is_the_brute_force_reference(shape: Shape) -> None:
    layout, reference = made(shape), Reference(shape)
    growths = len(layout.history) - 1
    for stripe in range(layout.stripes):
        roles = reference.roles(stripe, growths)
        assert list(layout.roles(stripe)) == roles
        assert sorted(roles) == list(range(layout.width))  # no two cells on one member
        for cell, (row, column) in enumerate(layout.code.cells[:40]):
            place = layout.place(stripe, cell)
            assert place == (roles[column], stripe * layout.code.rows + row)
            assert layout.inverse(*place) == (stripe, cell)
        for role in range(layout.width):
            mask = layout.lost_cells(stripe, frozenset([role]))
            assert mask == layout.code.column_masks[roles.index(role)]
    assert layout.inverse(0, layout.member_chunks) is None


@settings(max_examples=60)
@given(shapes())
def test_chunks_and_data_cells_are_one_to_one(shape: Shape) -> None:
    layout = made(shape)
    rows = layout.logical_rows(0, layout.stripes)
    assert sorted(rows.ravel().tolist()) == list(range(layout.chunks))
    step = max(1, layout.chunks // 500)
    for chunk in range(0, layout.chunks, step):
        stripe, cell = layout.locate(chunk)
        assert layout.logical(stripe, cell) == rows[stripe, cell] == chunk
    before = made(shape, growths=len(shape[1]) - 2)
    for chunk in range(0, before.chunks, step):  # a growth changes no number, stripe or row
        (stripe, cell), (stripe_before, cell_before) = layout.locate(chunk), before.locate(chunk)
        assert stripe == stripe_before
        assert layout.code.row_of[cell] == before.code.row_of[cell_before]


@settings(max_examples=60)
@given(shapes())
def test_a_growth_moves_the_least_and_only_to_new_members(shape: Shape) -> None:
    name, history, rules, rotate, _ = shape
    growths = len(history) - 1
    standing = CODES[name] if name == "raid4" else 0
    v, w = (m - standing for m in history[-2:])
    mapping = ElasticMapping(
        [m - standing for m in history],
        [None if r is None else (r[0], r[1]) for r in rules],
        rotate,
    )
    stripes = min(mapping.period, 4000)
    after = mapping.members(0, stripes)[:, :v]
    before = ElasticMapping(mapping.history[:-1], mapping.rules[:-1], rotate).members(0, stripes)
    moved = before != after
    assert (after[moved] >= v).all()
    if stripes == mapping.period:
        assert Fraction(int(moved.sum()), stripes * v) == Fraction(w - v, w)
    layout = made(shape, migrated=0)
    stripes_, columns = layout.moving(0, layout.stripes)
    reference = Reference(shape)
    new = set(
        range(layout.generations[-1].first_column, layout.code.data_count // layout.code.rows)
    )
    expected = []
    for stripe in range(layout.stripes):
        old, now = reference.roles(stripe, growths - 1), reference.roles(stripe, growths)
        parities = CODES[name]
        old = old[: len(old) - parities] + [-1] * len(new) + old[len(old) - parities :]
        expected += [
            (stripe, c)
            for c, pair in enumerate(zip(old, now, strict=True))
            if pair[0] != pair[1] and c not in new
        ]
    assert list(zip(stripes_.tolist(), columns.tolist(), strict=True)) == expected


@settings(max_examples=40)
@given(shapes())
def test_under_the_turned_rule_each_kind_of_column_is_even_over_a_full_period(shape: Shape) -> None:
    """Data, parity and the columns of each growth, whatever granules the growths have."""
    _, history, rules, rotate, _ = shape
    turned = [(1, 0) if rule is None else (rule[0], rule[1]) for rule in rules]
    mapping = ElasticMapping(history, turned, rotate)
    if mapping.period > 20_000:
        mapping = ElasticMapping(history[:2], turned[:1], rotate)
    members = mapping.members(0, mapping.period)
    first = mapping.history[0]
    for column in range(mapping.columns):
        counts = np.bincount(members[:, column], minlength=mapping.columns)
        if rotate or column >= first:
            assert counts.max() - counts.min() <= 1
    held = np.bincount(members[:, :first].ravel(), minlength=mapping.columns)
    assert held.max() - held.min() <= 1


@pytest.mark.parametrize("first", [3, 4, 6, 10])
@pytest.mark.parametrize("growth", [(1, 1, 1), (2, 2), (4, 1, 3), (2, 3, 3)])
def test_the_chosen_turns_keep_parity_even_in_an_array_of_usual_size(
    first: int, growth: tuple[int, ...]
) -> None:
    """16384 stripes: members of 1 GiB with chunks of 64 KiB."""
    history: list[int] = [first]
    rules: list[Rule] = []
    for added in growth:
        history.append(history[-1] + added)
        rules.append(choose_rule(tuple(history), tuple(rules), True, 1 << 14))
    assert rules[0] is not None
    assert rules[0][0] >= 4
    members = ElasticMapping(history, rules, True).members(0, 1 << 14)
    for column in range(first):
        counts = np.bincount(members[:, column], minlength=history[-1])
        assert counts.min() / counts.mean() > 0.9
        assert counts.max() / counts.mean() < 1.1


def test_without_a_turn_parity_gathers_on_some_members() -> None:
    """What the turned rule is for; the plain rule on all columns of raid5, 4 > 6 > 8."""
    plain = ElasticMapping([4, 6, 8], [], True)
    turned = ElasticMapping([4, 6, 8], [(1, 0), (1, 0)], True)
    for mapping, least, most in ((plain, 0.0, 5 / 3), (turned, 1.0, 1.0)):
        counts = np.bincount(mapping.members(0, mapping.period)[:, 3], minlength=8)
        assert (counts.min() / counts.mean(), counts.max() / counts.mean()) == (least, most)


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


@given(
    st.integers(1, 6),
    st.lists(st.integers(1, 5), max_size=3),
    st.integers(1, 40),
    st.sampled_from(["raid0", "raid4"]),
)
def test_arrays_grown_without_rules_are_the_papers_recursion(
    first: int, growths: list[int], stripes: int, name: str
) -> None:
    """The layout of every array that grew before rules were recorded."""
    parity = int(name == "raid4")
    disks = [max(first, 2 * parity)]
    for added in growths:
        disks.append(disks[-1] + added)
    history = [count + parity for count in disks]
    layout = make_layout(name, history[-1], stripes, CHUNK, history=history)
    for chunk in range(layout.chunks):
        disk, row = slow_locate(tuple(disks), stripes, chunk)
        role = disk + (parity and disk >= disks[0])  # parity keeps the last role of the first ones
        assert layout.place(*layout.locate(chunk)) == (role, row)
    if parity:
        assert {layout.place(s, layout.code.data_count)[0] for s in range(stripes)} == {disks[0]}


def test_fig_1_from_four_disks_to_six() -> None:
    layout = make_layout("raid0", 5, 5, CHUNK, history=[3, 5])
    grid = [[-1] * 5 for _ in range(5)]
    for chunk in range(25):
        disk, row = layout.place(*layout.locate(chunk))
        grid[disk][row] = chunk
    assert grid == [  # as drawn in the module
        [16, 17, 6, 9, 12],
        [1, 18, 19, 10, 13],
        [2, 5, 20, 21, 14],
        [0, 3, 7, 22, 23],
        [15, 4, 8, 11, 24],
    ]


def test_neighbouring_new_chunks_lie_on_different_members_and_each_is_read_in_order() -> None:
    layout = make_layout("raid5", 6, 1000, CHUNK, history=[4, 6], rules=[[8, 0]])
    assert isinstance(layout, ElasticLayout)
    new = layout.generations[1]
    places = [layout.place(*layout.locate(chunk)) for chunk in range(new.start, new.start + 48)]
    for six in zip(*[iter(places)] * 6, strict=True):
        assert len({role for role, _ in six}) == 6
    rows: dict[int, list[int]] = {}
    for role, row in places:
        rows.setdefault(role, []).append(row)
    assert all(b - a == 1 for run in rows.values() for a, b in pairwise(run))
    assert Counter(map(len, rows.values())) == {8: 6}


@pytest.mark.parametrize("history", [(), (0, 3), (3, 3), (4, 3), (3, 5, 5)])
def test_histories_must_rise(history: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError):
        ElasticMapping(history)


@pytest.mark.parametrize("rules", [[(0, 1)], [(1, 6)], [(1, -1)], [(1, 1), (1, 1)]])
def test_rules_must_be_possible(rules: list[Rule]) -> None:
    with pytest.raises(LayoutError):
        ElasticMapping((4, 6), rules)


def test_a_history_makes_a_layout_elastic() -> None:
    layout = make_layout("raid4", 6, 5, CHUNK, history=[4, 6])
    assert isinstance(layout, ElasticLayout)
    assert [layout.place(*layout.locate(chunk)) for chunk in (0, 3, 7)] == [(4, 0), (4, 1), (4, 2)]
    for bad in ("46", [4, 5], [], [2, 6], ["4", "6"]):
        with pytest.raises(LayoutError):
            make_layout("raid4", 6, 5, CHUNK, history=bad)
    for rules in ("x", [[1]], [[1, "2"]], [[1, True]], [None, None]):
        with pytest.raises(LayoutError, match="rules must say"):
            make_layout("raid4", 6, 5, CHUNK, history=[4, 6], rules=rules)


def test_a_prime_for_growth_makes_room_and_its_end_is_named() -> None:
    layout = make_layout("rdp", 6, 40, CHUNK, prime=11)
    assert (layout.code.rows, layout.stripes) == (10, 4)
    grown = make_layout("rdp", 12, 40, CHUNK, history=[6, 12], rules=[[1, 0]], prime=11)
    assert grown.size_bytes == 10 * 40 * CHUNK
    with pytest.raises(LayoutError, match="rdp with prime 11 has at most 12 members, not 13"):
        make_layout("rdp", 13, 40, CHUNK, history=[6, 13], prime=11)
    with pytest.raises(LayoutError, match="evenodd with prime 5 has at most 7 members, not 8"):
        make_layout("evenodd", 8, 40, CHUNK, history=[6, 8])  # chosen for six
    for prime in (9, 1, "7"):
        with pytest.raises(LayoutError, match="prime"):
            make_layout("rdp", 6, 40, CHUNK, prime=prime)
