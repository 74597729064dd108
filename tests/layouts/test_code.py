"""The chain algebra: derived tables, solving any loss, against references that share no code."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import xor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import Code, Unrecoverable, bits
from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths, make_code

CODES = [
    make_code(name, width)
    for name, info in LAYOUTS.items()
    if info.build is not None
    for width in allowed_widths(name, 9)
]


def fill(code: Code, data: list[int]) -> list[int]:
    """Return the value of every cell, parities by their chains alone, in an order that works."""
    values: dict[tuple[int, int], int] = dict(zip(code.data, data, strict=True))
    waiting = list(code.chains)
    while waiting:
        chain = next(c for c in waiting if all(cell in values for cell in c[1:]))
        values[chain[0]] = reduce(xor, (values[cell] for cell in chain[1:]))
        waiting.remove(chain)
    return [values[cell] for cell in code.cells]


def slow_rank(matrix: list[list[int]]) -> int:
    """Rank over GF(2) by schoolbook elimination on lists; shares nothing with
    layouts/codes/gf2.py.
    """
    rows = [row[:] for row in matrix]
    rank = 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for i, row in enumerate(rows):
            if i != rank and row[column]:
                rows[i] = [a ^ b for a, b in zip(row, rows[rank], strict=True)]
        rank += 1
    return rank


def decodable(code: Code, columns: tuple[int, ...]) -> bool:
    """Return, by rank alone, whether the chains determine every cell of the lost *columns*."""
    lost = [cell for cell in code.cells if cell[1] in columns]
    matrix = [[int(cell in chain) for cell in lost] for chain in code.chains]
    return slow_rank(matrix) == len(lost) if matrix else not lost


@st.composite
def filled_codes(draw: st.DrawFn) -> tuple[Code, list[int]]:
    code = draw(st.sampled_from(CODES))
    size = code.data_count
    data = draw(st.lists(st.integers(0, 255), min_size=size, max_size=size))
    return code, fill(code, data)


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.name}-{code.columns}")
def test_tolerance_is_what_the_rank_says(code: Code) -> None:
    for losses in range(1, code.columns + 1):
        verdicts = {decodable(code, c) for c in combinations(range(code.columns), losses)}
        assert verdicts == {True} if losses <= code.tolerance else False in verdicts


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"{code.name}-{code.columns}")
def test_derived_tables_agree_with_the_chains(code: Code) -> None:
    assert code.cells[: code.data_count] == code.data
    assert len(code.cells) == code.data_count + code.parity_count == len(set(code.cells))
    for i, cell in enumerate(code.cells):
        assert code.index[cell] == i
        assert (code.row_of[i], code.column_of[i]) == cell
        assert i in code.column_cells[cell[1]]
        assert code.column_masks[cell[1]] >> i & 1
    for chain, mask in zip(code.chains, code.chain_masks, strict=True):
        assert {code.cells[i] for i in bits(mask)} == set(chain)
    # a parity changes with a data cell exactly if a stripe with only that cell set says so
    for d in range(code.data_count):
        values = fill(code, [int(i == d) for i in range(code.data_count)])
        changed = tuple(i for i in range(code.data_count, len(values)) if values[i])
        assert code.affects[d] == changed
        assert changed == tuple(
            code.data_count + p for p, mask in enumerate(code.support) if mask >> d & 1
        )


@given(filled_codes(), st.data())
def test_any_lost_cells_are_solved_right_or_refused_right(
    filled: tuple[Code, list[int]], data: st.DataObject
) -> None:
    code, values = filled
    lost_cells = data.draw(st.sets(st.integers(0, len(values) - 1), max_size=2 * code.rows + 2))
    lost = sum(1 << cell for cell in lost_cells)
    wanted = sum(1 << cell for cell in lost_cells if data.draw(st.booleans()))
    matrix = [[chain >> cell & 1 for cell in sorted(lost_cells)] for chain in code.chain_masks]
    full = slow_rank(matrix) if lost_cells else 0
    # a cell is undetermined exactly if its unit vector is not in the span of the chains
    hopeless = 0
    for cell in bits(wanted):
        unit = [int(c == cell) for c in sorted(lost_cells)]
        hopeless |= (slow_rank([*matrix, unit]) - full) << cell
    if hopeless:
        with pytest.raises(Unrecoverable) as caught:
            code.solve(lost, wanted)
        assert caught.value.cells == hopeless
        return
    steps = code.solve(lost, wanted)
    assert [cell for cell, _ in steps] == [
        cell for cell in sorted(lost_cells) if wanted >> cell & 1
    ]
    for cell, mask in steps:
        assert mask & lost == 0
        assert reduce(xor, (values[i] for i in bits(mask)), 0) == values[cell]


@given(filled_codes(), st.data())
def test_schedule_uses_only_what_is_known_by_then(
    filled: tuple[Code, list[int]], data: st.DataObject
) -> None:
    code, values = filled
    columns = data.draw(st.frozensets(st.integers(0, code.columns - 1), max_size=code.tolerance))
    lost = code.columns_mask(columns)
    known = {i: value for i, value in enumerate(values) if not lost >> i & 1}
    for cell, mask in code.schedule(lost, lost):
        known[cell] = reduce(xor, (known[i] for i in bits(mask)), 0)
    assert [known[i] for i in range(len(values))] == values


def test_single_parity_reads_the_rest_of_the_chain() -> None:
    code = make_code("raid5", 5)
    assert code.solve(0b00100, 0b00100) == ((2, 0b11011),)
    with pytest.raises(Unrecoverable) as error:
        code.solve(0b00110, 0b00110)
    assert error.value.cells == 0b00110


def test_a_copy_is_read_from_one_place_only() -> None:
    code = make_code("raid1", 4)
    for lost in combinations(range(4), 3):
        mask = sum(1 << cell for cell in lost)
        survivor = 0b1111 ^ mask
        assert code.solve(mask, mask) == tuple((cell, survivor) for cell in lost)
    with pytest.raises(Unrecoverable):
        code.solve(0b1111, 0b1)


def test_without_chains_nothing_is_solved_but_nothing_is_refused_either() -> None:
    code = make_code("raid0", 3)
    assert code.solve(0b111, 0) == ()
    with pytest.raises(Unrecoverable):
        code.solve(0b001, 0b001)


@pytest.mark.parametrize(
    ("chains", "data"),
    [
        ((((0, 1), (0, 0)),), ((0, 0), (0, 1))),  # parity cell is also data
        ((((0, 1), (0, 0), (0, 0)),), ((0, 0),)),  # a chain repeats a cell
        ((((1, 1), (0, 0)),), ((0, 0),)),  # off the grid
        ((((0, 1), (0, 0), (0, 2)), ((0, 2), (0, 1))), ((0, 0),)),  # circle of parities
    ],
)
def test_chains_that_are_no_code_are_a_bug(
    chains: tuple[tuple[tuple[int, int], ...], ...], data: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(AssertionError):
        Code("bad", 1, 3, chains, data, 0)
