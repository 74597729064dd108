"""Tails of tables of sums: the bytes of FORMAT.md, and what damage and another place do."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from raidx_fuse.format.sum_table import seed_of, sum_of
from raidx_fuse.format.sum_tail import ENTRIES_MAX, decode_tail, encode_tail, sectors_for

Pages = NDArray[np.int64]
Values = NDArray[np.uint32]
SECTOR = 512


def entries(pages: list[int]) -> tuple[Pages, Values]:
    sums = np.random.default_rng(len(pages)).integers(1, 1 << 32, len(pages), np.uint32)
    return np.array(pages, np.int64), sums


def test_a_sector_has_61_pages_their_sums_and_what_says_when_they_count() -> None:
    pages, sums = entries([*range(5, 65), 1 << 31, (1 << 33) + 7, (1 << 33) + 9])
    content = encode_tail(pages, sums, first=40, seed=77, generation=5, since=3)
    assert len(content) == SECTOR * 2 == SECTOR * sectors_for(pages)
    first, second = (struct.unpack("<128I", content[at : at + SECTOR]) for at in (0, SECTOR))
    assert (ENTRIES_MAX, first[:61], first[61:122]) == (
        61,
        (*pages[:61].tolist(),),
        (*sums[:61].tolist(),),
    )
    assert first[122:127] == (0, 3, 0, 61, 5)  # zero, since, high, count, generation
    assert second[:2] == (7, 9)
    assert second[2:61] == (0,) * 59
    assert second[122:127] == (0, 3, 2, 2, 5)
    for number, words in ((40, first), (41, second)):
        assert words[127] == sum_of(struct.pack("<127I", *words[:127]), number, 77)
    found = decode_tail(content, 40, 77)
    assert (found.pages == pages).all()
    assert (found.sums == sums).all()
    assert found.sector_of.tolist() == [0] * 61 + [1] * 2
    assert (found.generations.tolist(), found.since.tolist(), found.bad) == ([5, 5], [3, 3], [])


def test_no_entries_are_one_sector_and_none_was_written_where_all_is_zero() -> None:
    pages, sums = entries([])
    content = encode_tail(pages, sums, first=0, seed=1, generation=4, since=4)
    assert len(content) == SECTOR
    assert decode_tail(content, 0, 1).generations.tolist() == [4]
    nothing = decode_tail(bytes(2 * SECTOR), 0, 1)
    assert (nothing.generations.tolist(), nothing.bad, len(nothing.pages)) == ([0, 0], [], 0)


@pytest.mark.parametrize("count", [1, ENTRIES_MAX, ENTRIES_MAX + 1, 1000])
def test_a_damaged_sector_loses_its_own_entries_only(count: int) -> None:
    rng = random.Random(count)
    pages, sums = entries(sorted(rng.sample(range(1 << 20), count)))
    content = bytearray(encode_tail(pages, sums, first=9, seed=6, generation=2, since=1))
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    found = decode_tail(content, 9, 6)
    bad = at // SECTOR
    assert found.bad == [bad]
    assert found.generations[bad] == 0
    left = [n for n in range(count) if n // ENTRIES_MAX != bad]
    assert (found.pages == pages[left]).all()
    assert (found.sums == sums[left]).all()


@pytest.mark.parametrize("page", [1000, 1 << 31, 1 << 40, (1 << 64) - 1])
def test_a_sector_that_names_pages_that_the_table_does_not_have_is_bad(page: int) -> None:
    """Its check is right: somebody has made it, or the table was of a larger member."""
    low, sums = entries([7, page & 0xFFFFFFFF])
    good, more = entries([999])
    content = bytearray(encode_tail(low, sums, first=0, seed=5, generation=9, since=9))
    words = [*struct.unpack("<127I", content[:508])]
    words[124] = page >> 32
    body = struct.pack("<127I", *words)
    content[:] = body + struct.pack("<I", sum_of(body, 0, 5))
    content += encode_tail(good, more, first=1, seed=5, generation=2, since=1)
    found = decode_tail(content, 0, 5, pages_end=1000)
    assert (found.bad, found.generations.tolist(), found.pages.tolist()) == ([0], [0, 2], [999])


def test_sectors_of_another_place_or_table_do_not_count() -> None:
    pages, sums = entries([3])
    seeds = [seed_of(12, table) for table in range(3)]
    content = encode_tail(pages, sums, first=8, seed=seeds[0], generation=2, since=1)
    assert decode_tail(content, 9, seeds[0]).bad == [0]
    assert decode_tail(content, 8, seeds[1]).bad == [0]
    left = decode_tail(content, 8, seeds[1], {*seeds})
    assert (left.bad, left.generations.tolist(), len(left.pages)) == ([], [0], 0)
