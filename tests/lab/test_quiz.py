"""The quiz: answers against a slow reference, which shares no code with the package.

The reference has the codes of tests/support/slow_codes.py and the textbook's of one loss; it solves
by elimination over sets, and looks for the fewest reads by trying every choice.

All 10,000 questions take about a second.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import pytest

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.quiz import (
    EVERY_KIND,
    KINDS,
    LAYOUTS_OF,
    LEVELS,
    Question,
    Request,
    check_answers,
    parse_answers,
    quiz,
)
from raidx_fuse.layouts.registry import LayoutError
from tests.support.slow_codes import Cell, SlowCode, slow_code

QUESTIONS = 10_000


@lru_cache
def reference(layout: str, disks: int) -> SlowCode:
    every = [(0, column) for column in range(disks)]
    if layout == "raid0":
        return SlowCode(1, disks, every, [])
    if layout == "raid1":
        return SlowCode(1, disks, every[:1], [{every[0], other} for other in every[1:]])
    if layout in ("raid4", "raid5"):
        return SlowCode(1, disks, every[:-1], [set(every)])
    return slow_code(layout, disks)


class Slow:
    """One array in the reference."""

    def __init__(self, layout: str, disks: int) -> None:
        self.name = (layout, disks)
        self.code = reference(layout, disks)
        self.disks = disks
        self.turn = -1 if layout == "raid5" else 0
        self.mixed = self.code.encode([1 << i for i in range(len(self.code.data))])

    def disk(self, stripe: int, column: int) -> int:
        return (column + self.turn * stripe) % self.disks

    def column(self, stripe: int, disk: int) -> int:
        return (disk - self.turn * stripe) % self.disks

    def cell(self, chunk: int) -> tuple[int, Cell]:
        stripe, number = divmod(chunk, len(self.code.data))
        return stripe, self.code.data[number]

    def answer(self, kind: str, facts: dict[str, Any]) -> list[int]:
        found: list[int] = getattr(self, kind.replace("-", "_"))(**facts)
        return found

    def place(self, chunk: int) -> list[int]:
        stripe, (row, column) = self.cell(chunk)
        return [self.disk(stripe, column), stripe * self.code.rows + row]

    def parity(self, disk: int, member_chunk: int) -> list[int]:
        stripe, row = divmod(member_chunk, self.code.rows)
        mixture = self.mixed[row, self.column(stripe, disk)]
        count = len(self.code.data)
        assert mixture.bit_count() > 1
        return [stripe * count + i for i in range(count) if mixture >> i & 1]

    def _touched(self, chunk: int, count: int) -> tuple[int, int, list[Cell]]:
        """Return (stripe, bits of the touched data, parity cells that change)."""
        stripe, first = divmod(chunk, len(self.code.data))
        touched = sum(1 << first + i for i in range(count))
        assert touched < 1 << len(self.code.data)
        changed = [c for c, mix in self.mixed.items() if mix & touched and c not in self.code.data]
        return stripe, touched, changed

    def write(self, chunk: int, count: int) -> list[int]:
        stripe, touched, changed = self._touched(chunk, count)
        changed += [cell for i, cell in enumerate(self.code.data) if touched >> i & 1]
        return sorted({self.disk(stripe, column) for _row, column in changed})

    def pre_reads(self, chunk: int, count: int) -> list[int]:
        _, touched, changed = self._touched(chunk, count)
        others = 0
        for cell in changed:
            others |= self.mixed[cell] & ~touched
        return [min(count + len(changed), others.bit_count())]

    def lost(self, disks: list[int], stripe: int) -> list[int]:
        columns = {self.column(stripe, disk) for disk in disks}
        known = [e for e in _solved(self.code, frozenset(columns)) if len(e) == 1]
        count = len(self.code.data)
        return [
            stripe * count + i
            for i, cell in enumerate(self.code.data)
            if cell[1] in columns and {cell} not in known
        ]

    def rebuild(self, disk: int) -> list[int]:
        return [_fewest(self.name, self.column(0, disk))]

    def degraded(self, chunk: int, disk: int) -> list[int]:
        stripe, cell = self.cell(chunk)
        assert self.disk(stripe, cell[1]) == disk
        return [_shortest(self.name, cell[1])[cell]]

    def _cell_at(self, disk: int, member_chunk: int) -> tuple[int, Cell]:
        stripe, row = divmod(member_chunk, self.code.rows)
        return stripe, (row, self.column(stripe, disk))

    def _alike(self, wrong: Cell) -> list[Cell]:
        """Return the cells whose rot would break the same equations."""
        cells = set().union(*self.code.equations)
        broken = [wrong in equation for equation in self.code.equations]
        return [c for c in cells if [c in e for e in self.code.equations] == broken]

    def suspects(self, disk: int, member_chunk: int) -> list[int]:
        stripe, wrong = self._cell_at(disk, member_chunk)
        return sorted({self.disk(stripe, column) for _row, column in self._alike(wrong)})

    def repair(self, disk: int, member_chunk: int) -> list[int]:
        stripe, wrong = self._cell_at(disk, member_chunk)
        if len(self._alike(wrong)) == 1:
            return [disk]
        if wrong in self.code.data:
            bit = 1 << self.code.data.index(wrong)
            parity = [c for c, mix in self.mixed.items() if mix & bit and c not in self.code.data]
        else:
            parity = [wrong]
        return sorted({self.disk(stripe, column) for _row, column in parity})

    def rot(self, wrong: list[tuple[int, int, int]]) -> list[int]:
        gone = set()
        for page in {page for _, _, page in wrong}:
            at = [self._cell_at(disk, chunk) for disk, chunk, each in wrong if each == page]
            stripe, cells = at[0][0], [cell for _, cell in at]
            for number, cell in enumerate(self.code.data):
                if cell in cells and not _in_span(self.code, cells, cell):
                    gone.add(stripe * len(self.code.data) + number)
        return sorted(gone)


def _in_span(code: SlowCode, gone: list[Cell], cell: Cell) -> bool:
    """Return whether some sum of equations has *cell* alone of the cells that are *gone*."""
    sums = {frozenset[Cell]()}
    for equation in code.equations:
        mine = frozenset(equation) & frozenset(gone)
        sums |= {mine ^ other for other in sums}
    return frozenset({cell}) in sums


def _reduced(rows: list[set[Cell]], columns: frozenset[int]) -> list[set[Cell]]:
    """Return sums of *rows*, of which each lost cell that can be a pivot is in one only."""
    for cell in sorted({cell for row in rows for cell in row if cell[1] in columns}):
        pivot = next((row for row in rows if min(_gone(row, columns), default=None) == cell), None)
        if pivot is not None:
            rows = [row ^ pivot if cell in row and row is not pivot else row for row in rows]
    return rows


def _gone(row: set[Cell], columns: frozenset[int]) -> set[Cell]:
    return {cell for cell in row if cell[1] in columns}


def _solved(code: SlowCode, columns: frozenset[int]) -> list[set[Cell]]:
    """Return the lost cells of each equation after elimination."""
    rows = _reduced([set(equation) for equation in code.equations], columns)
    return [_gone(row, columns) for row in rows]


@lru_cache
def _fewest(name: tuple[str, int], column: int) -> int:
    """Return the fewest reads that rebuild a column by one chain for each cell: all choices."""
    code = reference(*name)
    gone = sorted(c for c in {*code.data, *set().union(*code.equations)} if c[1] == column)
    columns = frozenset({column})
    best = 10**9
    for choice in product(*([e for e in code.equations if cell in e] for cell in gone)):
        rows = _reduced([set(row) for row in choice], columns)
        solved = [_gone(row, columns) for row in rows]
        if all({cell} in solved for cell in gone):
            best = min(best, len(set().union(*rows) - set(gone)))
    return best


@lru_cache
def _shortest(name: tuple[str, int], column: int) -> dict[Cell, int]:
    """Return for each lost cell the fewest survivors whose XOR it is, by every sum of chains."""
    code = reference(*name)
    cells = sorted(set().union(*code.equations))
    masks = [sum(1 << cells.index(cell) for cell in row) for row in code.equations]
    gone = sum(1 << i for i, cell in enumerate(cells) if cell[1] == column)
    best: dict[Cell, int] = {}
    total = 0
    for number in range(1, 1 << len(masks)):  # in the order of a Gray code
        total ^= masks[(number & -number).bit_length() - 1]
        missing = total & gone
        if missing.bit_count() == 1:
            cell = cells[missing.bit_length() - 1]
            best[cell] = min(best.get(cell, 10**9), total.bit_count() - 1)
    return best


def displaced(facts: dict[str, Any], level: str) -> list[str]:
    """Return what the Dswap paper's displace step moves from east (section 3.2.1), by fractions.

    Of a hard question, the first volume and where it goes.
    """
    place = dict(facts["place"])

    def on(array: str, key: str) -> int:
        return sum(facts[key][name] for name, where in place.items() if where == array)

    by_bsr = sorted(
        (name for name, array in place.items() if array == "east"),
        key=lambda name: Fraction(facts["load"][name], facts["size"][name]),
        reverse=True,
    )
    moved: list[str] = []
    while sum(facts["load"][name] for name in by_bsr if name not in moved) > 75:  # the set R
        moved.append(by_bsr[len(moved)])
    target = ""
    for volume in moved:
        free = {array: facts["capacity"][array] - on(array, "size") for array in facts["capacity"]}
        room = [
            array
            for array in free
            if facts["size"][volume] <= free[array]
            and on(array, "load") + facts["load"][volume] <= 75
        ]
        place[volume] = max(room, key=lambda array: Fraction(75 - on(array, "load"), free[array]))
        target = target or place[volume]
    return [moved[0], target] if level == "hard" else moved


@lru_cache
def slow(layout: str, disks: int) -> Slow:
    return Slow(layout, disks)


def asked(level: str, count: int) -> list[Question]:
    found: list[Question] = []
    for seed in range(-(-count // 1000)):
        found += quiz(Request(min(1000, count - 1000 * seed), seed, level))
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_every_answer_is_that_of_the_slow_reference(level: str) -> None:
    kinds: Counter[str] = Counter()
    layouts: Counter[str] = Counter()
    for question in asked(level, -(-QUESTIONS // len(LEVELS))):
        if question.kind == "dswap":
            assert list(question.draft.answer) == displaced(question.draft.facts, level), question
            kinds[question.kind] += 1
            continue
        assert question.layout is not None
        assert question.disks is not None
        told = [] if question.draft.answer == ("none",) else list(map(int, question.draft.answer))
        expected = slow(question.layout, question.disks).answer(question.kind, question.draft.facts)
        assert told == expected, question
        kinds[question.kind] += 1
        layouts[question.layout] += 1
    assert set(layouts) == set(LAYOUTS_OF[level])
    assert len(kinds) == (4 if level == "easy" else len(EVERY_KIND))
    assert min(kinds.values()) >= 10


def test_the_reference_notices_a_wrong_answer() -> None:
    for question in quiz(Request(20, level="hard")):
        if question.layout is None or question.disks is None:
            continue
        reference_of = slow(question.layout, question.disks)
        facts = dict(question.draft.facts)
        if "chunk" in facts and question.kind == "place":
            facts["chunk"] += 1
            assert reference_of.answer("place", facts) != list(map(int, question.draft.answer))


def test_a_question_depends_on_seed_level_and_number_only() -> None:
    few, many = quiz(Request(3, seed=5)), quiz(Request(30, seed=5))
    assert few == many[:3]
    assert quiz(Request(30, seed=6)) != many
    assert len({question.draft.text for question in many}) >= 25


def test_a_sheet_without_answers_does_not_have_them() -> None:
    (question,) = quiz(Request(1))
    assert {"answer", "why"} & set(question.as_dict(answers=False)) == set()
    assert question.as_dict(answers=True)["answer"] == list(question.draft.answer)


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_on_one_layout(kind: str) -> None:
    found = quiz(Request(5, layout="rdp", disks=6, kind=kind, level="hard"))
    assert {(q.layout, q.disks, q.kind) for q in found} == {("rdp", 6, kind)}


def test_dswap_is_asked_at_every_level_if_it_is_named() -> None:
    for level in LEVELS:
        for question in quiz(Request(30, kind="dswap", level=level)):
            assert (question.kind, question.layout, question.disks) == ("dswap", None, None)
            assert list(question.draft.answer) == displaced(question.draft.facts, level)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(0), "0 questions are out of range"),
        (Request(1001), "1001 questions are out of range"),
        (Request(level="cruel"), "there is no level 'cruel'"),
        (Request(kind="riddle"), "there is no kind 'riddle'"),
        (Request(disks=0), "0 disks are out of range"),
        (Request(disks=13), "13 disks are out of range: a quiz has 1 to 12"),
        (Request(layout="raidx-copy"), "has no fixed stripes"),
        (Request(layout="raid0", kind="rebuild"), "no medium question of this kind"),
        (Request(layout="raid1", kind="place"), "no medium question of this kind"),
        (Request(layout="raid5", kind="dswap"), "can be asked about raid5; leave out --kind"),
        (Request(disks=4, kind="dswap"), "can be asked about any layout on 4 disks"),
        (Request(disks=1, level="hard"), "on 1 disks"),
    ],
)
def test_impossible_quizzes_are_one_line(request_: Request, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        quiz(request_)
    assert "\n" not in str(caught.value)


def test_a_width_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(LayoutError, match="nearest: 5 or 7"):
        quiz(Request(layout="xcode", disks=6))


def test_answers_are_checked_as_people_write_them() -> None:
    questions = quiz(Request(3, seed=1))
    first, second, _ = (" ".join(question.draft.answer) for question in questions)
    marks = check_answers(
        questions, parse_answers(f"1: {first.replace(' ', ', ').upper()}\n\n2: {second} 99\n")
    )
    assert [mark["right"] for mark in marks] == [True, False, False]
    for text, words in (
        ("four", "is no answer"),
        ("1: 2\n1: 3", "answered twice"),
        ("99999999999: 1", "is no answer"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_answers(text)
    with pytest.raises(UsageError, match="there is no question 4"):
        check_answers(questions, {4: ("1",)})
