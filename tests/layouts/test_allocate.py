"""RAIDX bundles: the paper's figures, the maximum, and the fast table against the plain loop."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.planning import allocate as bundle_module
from raidx_fuse.layouts.planning.allocate import allocate, maximum

COUNTS = [7, 4, 5, 4]


@st.composite
def arrays(draw: st.DrawFn, chunks: int = 60) -> tuple[list[int], int]:
    """Draw chunk counts of 1 to 10 members and a bundle length that they allow."""
    counts = draw(st.lists(st.integers(0, chunks), min_size=1, max_size=10))
    return counts, draw(st.integers(1, len(counts)))


def greedy(counts: list[int], length: int, spare: int = 0) -> list[list[int]]:
    """Return the members of each bundle by the paper's loop, one bundle at a time."""
    left = [max(0, count - spare) for count in counts]
    bundles: list[list[int]] = []
    while True:
        order = sorted(range(len(left)), key=lambda member: -left[member])[:length]
        if not all(left[member] for member in order):
            return bundles
        for member in order:
            left[member] -= 1
        bundles.append(order)


def test_fig_1_lookup_arrays_of_the_disks() -> None:
    """Section III: bundle of each chunk of a disk in use, from 1."""
    table = allocate(COUNTS, 3)
    lookup = [(np.flatnonzero((table == disk).any(axis=1)) + 1).tolist() for disk in range(4)]
    assert lookup == [[1, 2, 3, 4, 5, 6], [1, 3, 4, 6], [1, 2, 3, 5, 6], [2, 4, 5]]


def test_fig_2_ten_bundles_of_two() -> None:
    bundles = allocate(COUNTS, 2).tolist()
    assert len(bundles) == 10
    assert bundles[:2] == [[0, 2], [0, 1]]


@pytest.mark.parametrize(
    ("counts", "length", "bundles"),
    [
        (COUNTS, 1, 20),  # RAIDX-zero: every chunk
        (COUNTS, 4, 4),  # L = D: the smallest disk
        ([10, 1, 1], 2, 2),  # one giant cannot pair with itself
        ([0, 5], 2, 0),
        ([3], 1, 3),
    ],
)
def test_special_cases(counts: list[int], length: int, bundles: int) -> None:
    assert maximum(counts, length) == bundles == len(allocate(counts, length))


@given(arrays())
def test_greedy_reaches_the_maximum(array: tuple[list[int], int]) -> None:
    counts, length = array
    bundles = allocate(counts, length).tolist()
    assert len(bundles) == maximum(counts, length)
    used = [sum(member in bundle for bundle in bundles) for member in range(len(counts))]
    assert all(u <= c for u, c in zip(used, counts, strict=True))
    assert all(len(set(bundle)) == length for bundle in bundles)


@given(arrays())
def test_the_bound_is_a_bound_and_is_tight(array: tuple[list[int], int]) -> None:
    """Largest B with sum(min(c_i, B)) >= L * B, found by trying all."""
    counts, length = array
    fits = [b for b in range(sum(counts) + 1) if sum(min(c, b) for c in counts) >= length * b]
    assert maximum(counts, length) == max(fits)


@given(arrays(400), st.integers(0, 2))
def test_the_fast_table_is_the_plain_loop(array: tuple[list[int], int], spare: int) -> None:
    counts, length = array
    assert allocate(counts, length, spare=spare).tolist() == greedy(counts, length, spare)


def test_a_limit_is_kept_also_where_the_chunks_end_within_a_period() -> None:
    """A growth counts as many bundles in the superblocks as it asked for."""
    for counts in product(range(5), repeat=3):
        for length in (1, 2):
            bundles = greedy(counts, length)
            for limit in range(len(bundles) + 1):
                made = allocate(counts, length, limit=limit).tolist()
                assert made == bundles[:limit], (counts, length, limit)


@given(arrays(), st.integers(0, 2))
def test_spare_chunks_stay_free(array: tuple[list[int], int], spare: int) -> None:
    counts, length = array
    table = allocate(counts, length, spare=spare)
    for member, count in enumerate(counts):
        assert np.count_nonzero(table == member) <= max(0, count - spare)


def test_millions_of_chunks_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 Mi chunks, one period worked out for thousands of bundles."""
    steps = 0
    one_step = bundle_module._next_bundle

    def counted(left: list[int], length: int) -> tuple[int, ...] | None:
        nonlocal steps
        steps += 1
        return one_step(left, length)

    counts = [5 << 18, (3 << 18) + 7, 2 << 18, (2 << 18) - 3]
    monkeypatch.setattr(bundle_module, "_next_bundle", counted)
    table = allocate(counts, 3)
    assert steps < 200
    assert len(table) == maximum(counts, 3)
    assert all(np.bincount(table.ravel(), minlength=4) <= counts)


@pytest.mark.parametrize(("counts", "length"), [(COUNTS, 0), (COUNTS, 5), ([3, -1], 1), ([], 1)])
def test_impossible_bundles_are_refused(counts: list[int], length: int) -> None:
    for make in (maximum, allocate):
        with pytest.raises(LayoutError):
            make(counts, length)
