"""Tables of sums: the bytes of FORMAT.md, and what damage, another place and another role do."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import numpy as np
import pytest
from crc32c import crc32c

from raidx_fuse.format.regions import PAGE_BYTES, SUMS_PER_PAGE, SUMS_PER_SECTOR
from raidx_fuse.format.sum_table import (
    RUN_PAGES_MAX,
    decode_sums,
    encode_sums,
    places_of,
    runs_fit,
    seed_of,
    sum_of,
    sums_of,
)

SECTOR = 512


def crc32c_by_bits(content: bytes) -> int:
    """Return the CRC-32C of *content* by its definition, independent of the library."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def table(pages: int, seed: int = 5) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.random.default_rng(seed).integers(1, 1 << 32, pages * SUMS_PER_PAGE, np.uint32)


@pytest.mark.parametrize(("page", "seed", "role"), [(0, 0, 0), (7, 123456789, 3), (1 << 31, 9, 1)])
def test_a_sum_is_what_the_format_says(page: int, seed: int, role: int) -> None:
    content = random.Random(page).randbytes(PAGE_BYTES)
    place = (page * 2654435761 + seed + role * 2246822519) % (1 << 32)
    wanted = crc32c_by_bits(content) ^ place or 1
    assert sum_of(content, page, seed_of(seed, role)) == wanted
    many = sums_of([content], np.array([page], np.uint32), seed_of(seed, role))
    assert many.tolist() == [wanted]


def test_a_sum_of_zero_is_stored_as_one() -> None:
    content = bytes(PAGE_BYTES)
    seed = sum_of(content, 0, 0)  # with it, CRC and place are equal
    assert sum_of(content, 0, seed) == 1
    assert sums_of([content], np.zeros(1, np.uint32), seed).tolist() == [1]


def test_a_sector_has_126_sums_their_generation_and_their_check() -> None:
    values = table(2)
    content = encode_sums(values, 3, 77, 5)
    assert len(content) == 2 * PAGE_BYTES
    sector = content[9 * SECTOR : 10 * SECTOR]
    sums = values[9 * SUMS_PER_SECTOR : 10 * SUMS_PER_SECTOR]
    assert sector[:508] == struct.pack("<127I", *sums.tolist(), 5)
    assert struct.unpack("<I", sector[508:])[0] == sum_of(sector[:508], 3 * 8 + 9, 77)
    found = decode_sums(content, 3, 77)
    assert not found.bad
    assert found.generations.tolist() == [5] * 16
    assert (found.sums.reshape(-1) == values).all()


def test_sectors_that_were_never_written_are_zeros_and_valid() -> None:
    found = decode_sums(bytes(PAGE_BYTES), 0, 77)
    assert not found.bad
    assert not found.generations.any()
    assert not found.sums.any()


def test_one_wrong_bit_costs_the_sums_of_its_sector_only() -> None:
    values = table(1)
    for bit in random.Random(1).sample(range(PAGE_BYTES * 8), 50):
        content = bytearray(encode_sums(values, 0, 77, 5))
        content[bit // 8] ^= 1 << bit % 8
        found = decode_sums(content, 0, 77)
        sector = bit // 8 // SECTOR
        assert found.bad == [sector]
        assert not found.sums[sector].any()
        assert not found.generations[sector]
        others = np.delete(found.sums, sector, axis=0)
        assert (others == np.delete(values.reshape(8, -1), sector, axis=0)).all()


@pytest.mark.parametrize(("first", "seed"), [(1, 77), (0, seed_of(77, 1)), (0, 78)])
def test_sectors_of_another_place_role_or_array_are_bad(first: int, seed: int) -> None:
    found = decode_sums(encode_sums(table(1), 0, 77, 5), first, seed)
    assert found.bad == list(range(8))
    assert not found.sums.any()


def test_many_pages_are_compared_by_one_crc_in_whatever_runs_they_lie() -> None:
    rng = random.Random(3)
    numbers = np.arange(9, 9 + RUN_PAGES_MAX, dtype=np.uint32)
    content = bytearray(rng.randbytes(RUN_PAGES_MAX * PAGE_BYTES))

    for cuts in ([], [1], [100], [12, 13, 200]):
        for count in (RUN_PAGES_MAX, 201, 1):
            bounds = [0, *(cut for cut in cuts if cut < count), count]
            runs = [slice(a, b) for a, b in pairwise(bounds)]
            firsts = [9 + run.start + 1000 * at for at, run in enumerate(runs)]
            seeds = [77 + at for at in range(len(runs))]
            counts = [run.stop - run.start for run in runs]
            pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
            known = [
                sums_of(pages[run], numbers[run] + np.uint32(1000 * at), 77 + at)
                for at, run in enumerate(runs)
            ]
            places = places_of(firsts, seeds, counts)
            elsewhere = places_of([firsts[0] + 1, *firsts[1:]], seeds, counts)
            of_another = places_of(firsts, [*seeds[:-1], 1], counts)
            size = count * PAGE_BYTES
            assert runs_fit(crc32c(content[:size]), known, places)
            assert not runs_fit(crc32c(content[:size]), known, elsewhere)
            assert not runs_fit(crc32c(content[:size]), known, of_another)
            for _ in range(10):
                at, bit = rng.randrange(size), 1 << rng.randrange(8)
                content[at] ^= bit
                assert not runs_fit(crc32c(content[:size]), known, places)
                content[at] ^= bit
            if count > 1:  # the same bits, wrong in two pages, do not cancel out
                for at in (17, 17 + (count - 1) * PAGE_BYTES):
                    content[at] ^= 8
                assert not runs_fit(crc32c(content[:size]), known, places)
                for at in (17, 17 + (count - 1) * PAGE_BYTES):
                    content[at] ^= 8
            known[-1][0] = 0
            assert not runs_fit(crc32c(content[:size]), known, places), "it has no sum"
