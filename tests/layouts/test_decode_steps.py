"""Decode steps: followed one by one, they give back what a slow implementation encoded."""

from __future__ import annotations

from itertools import combinations

import pytest

from raidx_fuse.layouts.codes.gf2 import bits
from raidx_fuse.layouts.planning.decode_steps import chains_of, decode_steps
from raidx_fuse.layouts.registry import make_code
from tests.support.slow_codes import slow_code


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("rdp", 6),
        ("rdp", 5),
        ("evenodd", 5),
        ("evenodd", 7),
        ("xcode", 5),
        ("pcode", 6),
        ("upc", 6),
    ],
)
def test_whoever_follows_the_steps_gets_the_lost_cells_back(name: str, width: int) -> None:
    code, slow = make_code(name, width), slow_code(name, width)
    content = slow.encode([3**i + 5 * i + 1 for i in range(len(slow.data))])
    equations = {frozenset(equation) for equation in slow.equations}
    for columns in [*combinations(range(width), 2), *((column,) for column in range(width))]:
        lost = code.columns_mask(frozenset(columns))
        steps = code.recover(columns[0]) if len(columns) == 1 else code.schedule(lost, lost)
        desk: dict[int, int] = {}  # what has been read or computed
        for step in decode_steps(code, steps, lost):
            assert not set(step.reads) & set(desk), "each cell is read once"
            desk |= {cell: content[code.cells[cell]] for cell in step.reads}
            total = 0
            for cell in (*step.reads, *step.kept, *step.computed):
                total ^= desk[cell]
            desk[step.cell] = total
            assert total == content[code.cells[step.cell]]
            used = {step.cell, *step.reads, *step.kept, *step.computed}
            if len(step.chains) == 1:
                assert frozenset(code.cells[cell] for cell in used) in equations
        assert set(bits(lost)) <= set(desk)


def test_two_lost_data_disks_of_rdp_are_a_zig_zag_between_rows_and_diagonals() -> None:
    code = make_code("rdp", 6)
    lost = code.columns_mask(frozenset({0, 1}))
    steps = decode_steps(code, code.schedule(lost, lost), lost)
    assert all(len(step.chains) == 1 for step in steps)
    rows = [step.chains[0] < 4 for step in steps]
    assert rows == [False, True] * 4
    assert [step.computed for step in steps[1:]] == [(step.cell,) for step in steps[:-1]]


def test_an_equation_names_the_chains_that_it_is_the_sum_of() -> None:
    code = make_code("evenodd", 5)
    for chosen in combinations(range(len(code.chain_masks)), 3):
        total = 0
        for number in chosen:
            total ^= code.chain_masks[number]
        assert chains_of(code, total) == chosen
