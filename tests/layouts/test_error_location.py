"""Error location: every wrong cell and member is named; two wrong members never name a third."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.error_location import SECTOR_BYTES, Bytes, Place, locate
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.registry import make_code

SIZE = 2 * SECTOR_BYTES
# full and shortened, p = 5 and 7; the last is plain voting
CODES = [
    *(("rdp", width) for width in (4, 5, 6, 7, 8)),
    *(("evenodd", width) for width in (5, 6, 7, 8, 9)),
    *(("xcode", 5), ("xcode", 7), ("pcode", 4), ("pcode", 6), ("upc", 4), ("upc", 6)),
    ("raid1", 3),
]
Lies = dict[Place, Bytes]


@lru_cache(maxsize=32)
def chains_of(code: Code) -> list[list[Place]]:
    """Return the chains with the column first in each place."""
    return [[(Role(column), row) for row, column in chain] for chain in code.chains]


def blamed(code: Code, lies: Lies) -> Lies:
    """Return what is located when cells lie by *lies*: content is linear, so zeros will do."""
    chains = chains_of(code)
    syndromes = [np.zeros(SIZE, dtype=np.uint8) for _ in chains]
    for chain, syndrome in zip(chains, syndromes, strict=True):
        for place in chain:
            if place in lies:
                syndrome ^= lies[place]
    return locate(chains, syndromes)


def same(found: Lies, lies: Lies) -> bool:
    return found.keys() == lies.keys() and all((found[p] == lies[p]).all() for p in lies)


def lie(rng: np.random.Generator, start: int = 0, size: int = SIZE) -> Bytes:
    """Return an error in *size* bytes from *start* on."""
    error = np.zeros(SIZE, dtype=np.uint8)
    error[start : start + size] = rng.integers(1, 256, size)
    return error


def places_of(code: Code) -> list[Place]:
    return [(Role(column), row) for row, column in code.cells]


def pairs_of(code: Code) -> list[tuple[Place, Place]]:
    """Return pairs of cells: all of them, or of large codes about a hundred, evenly drawn."""
    pairs = list(combinations(places_of(code), 2))
    return pairs[:: -(-len(pairs) // 120)]


@pytest.mark.parametrize(("name", "width"), CODES)
def test_every_single_cell_is_located(name: str, width: int) -> None:
    code = make_code(name, width)
    rng = np.random.default_rng(width)
    for place in places_of(code):
        for start, size in ((0, SIZE), (700, 1), (SECTOR_BYTES - 3, 6)):
            lies = {place: lie(rng, start, size)}
            assert same(blamed(code, lies), lies)


@pytest.mark.parametrize(("name", "width"), CODES)
def test_a_member_whose_whole_strip_lies_is_located(name: str, width: int) -> None:
    code = make_code(name, width)
    rng = np.random.default_rng(width)
    for column in range(width):
        cells = [place for place in places_of(code) if place[0] == column]
        for lying in (cells, cells[: max(2, len(cells) // 2)]):
            lies = {place: lie(rng) for place in lying}
            assert same(blamed(code, lies), lies)


@pytest.mark.parametrize(("name", "width"), CODES)
def test_two_members_that_lie_in_one_sector_blame_nobody(name: str, width: int) -> None:
    code = make_code(name, width)
    rng = np.random.default_rng(width)
    for one, other in pairs_of(code):
        if one[0] == other[0]:
            continue
        assert not blamed(code, {one: lie(rng), other: lie(rng)})
        assert not blamed(code, {one: lie(rng, 3, 1), other: lie(rng, 90, 2)})


@pytest.mark.parametrize(("name", "width"), CODES)
def test_two_members_that_lie_in_different_sectors_are_both_located(name: str, width: int) -> None:
    code = make_code(name, width)
    rng = np.random.default_rng(width)
    for one, other in pairs_of(code):
        lies = {one: lie(rng, 5, 100), other: lie(rng, SECTOR_BYTES, SECTOR_BYTES)}
        assert same(blamed(code, lies), lies)


@pytest.mark.parametrize(("name", "width"), CODES)
def test_two_members_with_the_very_same_lie(name: str, width: int) -> None:
    """No code of two losses can tell them from one cell of a third; several cells it must not say.

    Three copies cannot either: two equal liars are the majority.
    """
    code = make_code(name, width)
    error = lie(np.random.default_rng(width))
    for one, other in pairs_of(code):
        found = blamed(code, {one: error, other: error})
        if found:
            assert one[0] == other[0] or len(found) == 1
    if name == "raid1":
        assert set(blamed(code, {(1, 0): error, (2, 0): error})) == {(0, 0)}


@pytest.mark.parametrize(("name", "width"), [("raid5", 4), ("raid4", 3), ("raid1", 2)])
def test_one_parity_locates_nobody(name: str, width: int) -> None:
    code = make_code(name, width)
    for place in places_of(code):
        assert not blamed(code, {place: lie(np.random.default_rng(1))})


def test_without_a_lost_member_a_strip_is_not_located_but_ambiguity_is_seen() -> None:
    """One member gone, equations are half as many: every other member could explain a strip."""
    code = make_code("rdp", 6)
    chains = [chain for chain in chains_of(code) if all(column != 5 for column, _ in chain)]
    rng = np.random.default_rng(0)
    lies = {(1, row): lie(rng) for row in range(code.rows)}
    syndromes = [np.zeros(SIZE, dtype=np.uint8) for _ in chains]
    for chain, syndrome in zip(chains, syndromes, strict=True):
        for place in chain:
            if place in lies:
                syndrome ^= lies[place]
    assert locate(chains, syndromes) == {}
