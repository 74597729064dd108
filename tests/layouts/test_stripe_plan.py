"""Plans against a direct model: carry a plan out on random stripes and compare every cell.

The oracle knows nothing of plans: it holds the stripe's true cells as integers, applies the write
and computes each parity anew from its support.
"""

from __future__ import annotations

import random
from functools import reduce
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import Code, Unrecoverable
from raidx_fuse.layouts.numbers import cell_range
from raidx_fuse.layouts.planning.stripe_plan import (
    BandPlan,
    bands_of,
    cells_of,
    plan_around,
    read_plan,
    rebuild_plan,
    unwritten_cells,
    write_plans,
)
from raidx_fuse.layouts.registry import make_code

CODES = {
    f"{name}-{width}": make_code(name, width)
    for name, width in [
        ("raid0", 3),
        ("raid1", 3),
        ("raid4", 4),
        ("raid5", 3),
        ("raid5", 7),
        ("rdp", 6),
        ("evenodd", 7),
        ("xcode", 5),
        ("pcode", 6),
        ("upc", 6),
    ]
}


def truth(code: Code, data: list[int]) -> list[int]:
    """Return all cells of a stripe whose data cells hold *data*."""
    parity = [reduce(xor, (data[c] for c in cells_of(mask)), 0) for mask in code.support]
    return data + parity


def carry_out(plan: BandPlan, cells: list[int], new: dict[int, int], lost: int) -> list[int]:
    """Return the members' cells after *plan*; lost ones stay as they were (nobody writes them)."""
    for cell in plan.reads:
        assert not lost >> cell & 1, "a plan reads a lost cell"
    after = list(cells)
    for cell in plan.writes:
        assert not lost >> cell & 1, "a plan writes a lost cell"
        after[cell] = new[cell]
    for output in plan.outputs:
        assert not lost >> output.cell & 1
        assert set(output.old) <= set(plan.reads)
        values = [cells[c] for c in output.old] + [new[c] for c in output.new]
        after[output.cell] = reduce(xor, values, 0)
    return after


@settings(max_examples=300)
@given(st.sampled_from(sorted(CODES)), st.integers(0, 2**32))
def test_every_plan_leaves_a_true_stripe(name: str, seed: int) -> None:
    code = CODES[name]
    rng = random.Random(seed)
    lost_columns = rng.sample(range(code.columns), rng.randint(0, code.tolerance))
    lost = sum(code.column_masks[column] for column in lost_columns)
    unwritten_data = rng.getrandbits(code.data_count) if rng.random() < 0.5 else 0
    unwritten = unwritten_cells(code, unwritten_data)
    data = [0 if unwritten_data >> c & 1 else rng.getrandbits(64) for c in range(code.data_count)]
    cells = truth(code, data)
    # What lies on the members where nobody wrote is garbage that no plan may use.
    members = [rng.getrandbits(64) if unwritten >> c & 1 else v for c, v in enumerate(cells)]
    touched = rng.randrange(1, 1 << code.data_count)
    new: dict[int, int] = {cell: rng.getrandbits(64) for cell in cells_of(touched)}
    after_data = [new.get(c, data[c]) for c in range(code.data_count)]
    expected = truth(code, after_data)
    for plan in write_plans(code, touched, lost, unwritten):
        if plan is None:
            continue
        assert not plan.read_mask & unwritten, "a plan reads an unwritten cell"
        after = carry_out(plan, members, new, lost)
        dead_after = unwritten_cells(code, unwritten_data & ~touched)
        for cell, value in enumerate(expected):
            if not (lost | dead_after) >> cell & 1:
                assert after[cell] == value, f"{plan.kind}: cell {cell}"


@settings(max_examples=600)
@given(st.sampled_from(sorted(CODES)), st.integers(0, 2**32))
def test_a_plan_around_unreadable_cells_is_found_while_the_code_gives_them_back(
    name: str, seed: int
) -> None:
    """Else what is only hard to read would be given up."""
    code = CODES[name]
    rng = random.Random(seed)
    out = rng.sample(range(code.columns), rng.randint(0, code.tolerance))
    count = rng.randint(0, len(out))
    lost = sum(code.column_masks[column] for column in out[:count])
    around = sum(code.column_masks[column] for column in out[count:])
    around &= rng.getrandbits(code.all_mask.bit_length())
    unwritten_data = rng.getrandbits(code.data_count) if rng.random() < 0.5 else 0
    touched = rng.randrange(1, 1 << code.data_count)
    zeros = unwritten_cells(code, unwritten_data) & ~touched
    data = [0 if unwritten_data >> c & 1 else rng.getrandbits(64) for c in range(code.data_count)]
    cells = truth(code, data)
    new: dict[int, int] = {cell: rng.getrandbits(64) for cell in cells_of(touched)}
    plan = plan_around(code, touched, lost, zeros, around)
    assert plan is not None
    assert not plan.read_mask & (lost | around | zeros)
    after = carry_out(plan, cells, new, lost)
    expected = truth(code, [new.get(cell, value) for cell, value in enumerate(data)])
    for parity, support in enumerate(code.support):
        cell = code.data_count + parity
        if support & touched and not lost >> cell & 1:
            assert after[cell] == expected[cell]


@settings(max_examples=300)
@given(st.sampled_from(sorted(CODES)), st.integers(0, 2**32))
def test_reading_and_rebuilding_give_the_true_cells(name: str, seed: int) -> None:
    code = CODES[name]
    rng = random.Random(seed)
    lost_columns = rng.sample(range(code.columns), rng.randint(0, code.tolerance))
    lost = sum(code.column_masks[column] for column in lost_columns)
    unwritten_data = rng.getrandbits(code.data_count) if rng.random() < 0.5 else 0
    unwritten = unwritten_cells(code, unwritten_data)
    cells = truth(
        code,
        [0 if unwritten_data >> c & 1 else rng.getrandbits(64) for c in range(code.data_count)],
    )
    wanted = rng.randrange(1, 1 << code.data_count)
    plan = read_plan(code, wanted, lost, unwritten)
    got = {cell: cells[cell] for cell in plan.reads}
    got |= {o.cell: reduce(xor, (cells[c] for c in o.old), 0) for o in plan.outputs}
    assert not plan.read_mask & (lost | unwritten)
    for cell in cells_of(wanted & ~unwritten):
        assert got[cell] == cells[cell]
    outputs = rebuild_plan(code, lost, lost, unwritten)
    assert {o.cell for o in outputs} == set(cells_of(lost & ~unwritten))
    unknown = lost | unwritten
    for output in outputs:
        assert reduce(xor, (cells[c] for c in output.old), 0) == cells[output.cell]
        assert not any(unknown >> c & 1 for c in output.old)
        unknown &= ~(1 << output.cell)  # the next ones may use it
    if lost_columns:  # one of several lost columns: nothing of the others is there to use
        part = code.column_masks[lost_columns[0]]
        for output in rebuild_plan(code, part, lost, unwritten):
            assert reduce(xor, (cells[c] for c in output.old), 0) == cells[output.cell]
            assert not any((lost | unwritten) >> c & 1 for c in output.old)


@given(
    st.sampled_from([64, 4096]),
    st.integers(0, 5),
    st.integers(1, 6),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1),
)
def test_bands_cover_each_touched_byte_once(
    chunk: int, first: int, more: int, at: float, to: float
) -> None:
    last = first + more - 1
    start, end = int(at * chunk), max(1, int(to * chunk))
    if first == last and end <= start:
        start, end = end - 1, start + 1
    seen: set[tuple[int, int]] = set()
    parts = [
        (cell, start if cell == first else 0, end if cell == last else chunk)
        for cell in cell_range(first, last + 1)
    ]
    for low, high, mask in bands_of(parts):
        for cell in cells_of(mask):
            for byte in (low, high - 1):
                assert first * chunk + start <= cell * chunk + byte < last * chunk + end
            assert (cell, low) not in seen
            seen.update((cell, byte) for byte in range(low, high))
    assert len(seen) == last * chunk + end - first * chunk - start


def test_a_full_stripe_reads_nothing_and_a_small_write_two_chunks() -> None:
    code = CODES["raid5-7"]
    _, rcw = write_plans(code, code.data_mask, 0, 0)
    assert rcw is not None
    assert (rcw.kind, rcw.reads) == ("full", ())
    rmw, rcw = write_plans(code, 1, 0, 0)
    assert rmw is not None
    assert rcw is not None
    assert (rmw.pre_reads, rcw.pre_reads) == (2, 5)


def test_the_first_write_of_a_stripe_reads_nothing() -> None:
    code = CODES["upc-6"]
    rmw, _ = write_plans(code, 1, 0, code.all_mask)
    assert rmw is not None
    assert rmw.reads == ()


def test_new_data_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(Unrecoverable):
        write_plans(CODES["raid0-3"], 0b001, 0b001, 0)


@pytest.mark.parametrize("name", ["raid5-7", "rdp-6", "evenodd-7", "upc-6"])
def test_a_plan_is_named_by_what_it_reads(name: str) -> None:
    code = CODES[name]
    named = set()
    for touched in (1 << cell for cell in range(code.data_count)):
        for lost in (0, *code.column_masks):
            for plan in write_plans(code, touched, lost, 0):
                if plan is None or not plan.reads:
                    continue
                changed = touched | sum(1 << output.cell for output in plan.outputs)
                assert plan.kind == ("rmw" if plan.read_mask & changed else "rcw")
                named.add((bool(lost), plan.kind))
    assert named == {(False, "rmw"), (False, "rcw"), (True, "rmw"), (True, "rcw")}


def test_a_write_to_the_lost_member_of_raid5_is_a_reconstruct_write() -> None:
    code = CODES["raid5-7"]
    for cell in range(code.data_count):
        for plan in write_plans(code, 1 << cell, 1 << cell, 0):
            assert plan is not None
            assert plan.kind == "rcw"
        other = (cell + 1) % code.data_count
        for plan in write_plans(code, 1 << cell, 1 << other, 0):
            assert plan is not None
            assert plan.kind == "rmw"
