"""Tables of sums as they lie on members: sectors of 126 sums, generation and check. See FORMAT.md.

A power cut leaves each sector old or new, so no sector is ever torn, and what fails its check is
rotten or belongs elsewhere. Of several copies of a sector, the one with the highest generation
counts: the others missed a write. A sector of zeros was never written.

    page of 4 KiB:  | 126 sums, generation, check | 126 sums, generation, check | ... 8 sectors

A number of place is mixed into sums and checks: what lies at another place, or is of another table
or another array, does not fit.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from crc32c import crc32c

from raidx_fuse.format.regions import (
    PAGE_BYTES,
    SECTOR_BYTES,
    SUMS_PER_PAGE,
    SUMS_PER_SECTOR,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Values: TypeAlias = "NDArray[np.uint32]"
SECTORS_PER_PAGE = SUMS_PER_PAGE // SUMS_PER_SECTOR
SECTOR_WORDS = SECTOR_BYTES // 4
CHECK_WORD = SECTOR_WORDS - 1
_PLACE = 2654435761  # odd, so that each page of a role has a number of its own
_TABLE = 2246822519
_MASK = 0xFFFFFFFF


def seed_of(seed: int, table: int) -> int:
    """Return the seed of the sums of *table*, a number, from that of the array."""
    return (seed + table * _TABLE) & _MASK


def sum_of(content: Any, number: int, seed: int) -> int:
    """Return the sum of *content* that is page (or sector) *number* of a role with *seed*."""
    return (crc32c(content) ^ (number * _PLACE + seed) & _MASK) or 1


def sums_of(contents: Any, numbers: Values, seed: int) -> Values:
    """Return `sum_of` for each of *contents*, whose *numbers* are an array of uint32."""
    return sums_from(
        np.fromiter(map(crc32c, contents), np.uint32, len(numbers)),
        numbers * np.uint32(_PLACE) + np.uint32(seed),
    )


def sums_from(crcs: Values, places: Values) -> Values:
    """Return the sums of pages by their CRCs and *places* (`places_of`)."""
    values: Values = np.maximum(crcs ^ places, np.uint32(1))
    return values


def places_of(firsts: Sequence[int], seeds: Sequence[int], counts: Sequence[int]) -> Values:
    """Return what the places of pages mix into their sums.

    They are runs of *counts* pages: the first of each is page *firsts* of a role with *seeds*.
    """
    if len(counts) == 1:
        return _steps(counts[0]) + np.uint32(firsts[0] * _PLACE + seeds[0] & _MASK)
    at, begins = 0, []
    for first, seed, count in zip(firsts, seeds, counts, strict=True):
        begins.append((first - at) * _PLACE + seed & _MASK)
        at += count
    return np.repeat(np.array(begins, np.uint32), counts) + _steps(at)


def _steps(count: int) -> Values:
    """Return what *count* pages in a row mix in more than the first of them."""
    if count <= RUN_PAGES_MAX:
        return _STEPS[:count]
    return np.arange(count, dtype=np.uint32) * np.uint32(_PLACE)


RUN_PAGES_MAX = 256  # of `runs_fit`
_STEPS = np.arange(RUN_PAGES_MAX, dtype=np.uint32) * np.uint32(_PLACE)
ZEROS_CRC = np.uint32(crc32c(bytes(PAGE_BYTES)))  # of a page


def runs_fit(crc: int, known: Sequence[Values], places: Values) -> bool:
    """Return whether pages end to end, whose CRC is *crc*, fit their *known* sums, all at once.

    The sums are in parts; there are at most RUN_PAGES_MAX pages. The CRC of pages end to end
    follows from theirs: crc(A B) = M(crc(A)) xor crc(B), where M is linear and depends on the
    length of B alone. A page without a sum, or with the sum 1, which stands for two, does not fit.
    """
    sums = known[0] if len(known) == 1 else np.concatenate(known)
    crcs = (sums ^ places).astype("<u4", copy=False).view(np.uint8)
    terms = _shifts().take(crcs + _rows()[-len(crcs) :])
    return crc == int(np.bitwise_xor.reduce(terms))


@cache
def _rows() -> NDArray[np.intp]:
    """Return where the rows of `_shifts` begin for the bytes of the CRCs of RUN_PAGES_MAX pages."""
    at = np.arange(RUN_PAGES_MAX * 4, dtype=np.intp)
    return (RUN_PAGES_MAX - 1 - at // 4) * 1024 + at % 4 * 256


@cache
def _shifts() -> Values:
    """Return the tables of M for 0, 1, 2, ... pages behind, flat: by byte of the CRC, its value."""
    zeros = bytes(PAGE_BYTES)
    columns = [crc32c(zeros, 1 << bit) ^ crc32c(zeros) for bit in range(32)]
    values = np.arange(256, dtype=np.uint32)
    once = np.zeros((4, 256), np.uint32)
    tables = np.empty((RUN_PAGES_MAX, 4, 256), np.uint32)
    for byte in range(4):
        tables[0, byte] = values << np.uint32(8 * byte)
        for bit in range(8):
            once[byte] ^= np.where(values >> bit & 1, columns[8 * byte + bit], 0).astype(np.uint32)
    for number in range(1, RUN_PAGES_MAX):
        before = tables[number - 1]
        tables[number] = once[0][before & 255] ^ once[1][before >> 8 & 255]
        tables[number] ^= once[2][before >> 16 & 255] ^ once[3][before >> 24]
    return tables.reshape(-1)


class Sectors(NamedTuple):
    """Sectors of a table: *sums* (n, SUMS_PER_SECTOR), *generations* (n), and which are *bad*.

    Those that are bad, or were never written, have no sums, and generation 0.
    """

    sums: Values
    generations: Values
    bad: list[int]


def encode_sums(values: Values, first: int, seed: int, generation: int | Values) -> bytes:
    """Return the bytes of pages of a table from page *first* on, with *values* (whole pages).

    *generation*: of all of them, or of each page.
    """
    sectors = np.empty((len(values) // SUMS_PER_SECTOR, SECTOR_WORDS), np.uint32)
    sectors[:, :SUMS_PER_SECTOR] = values.reshape(-1, SUMS_PER_SECTOR)
    if isinstance(generation, np.ndarray):
        generation = np.repeat(generation, SECTORS_PER_PAGE)
    sectors[:, SUMS_PER_SECTOR] = generation
    sectors[:, CHECK_WORD] = checks_of(sectors, first * SECTORS_PER_PAGE, seed)
    return sectors.astype("<u4", copy=False).tobytes()


def decode_sums(
    content: bytes | bytearray, first: int, seed: int, others: Collection[int] = ()
) -> Sectors:
    """Return the sectors in *content*, pages of a table from page *first* on.

    Sectors that fit one of the seeds *others* are what a table left that lay here before: as if
    they had never been written.
    """
    sectors, bad = checked_sectors(content, first * SECTORS_PER_PAGE, seed, others)
    return Sectors(sectors[:, :SUMS_PER_SECTOR], sectors[:, SUMS_PER_SECTOR], bad)


def checked_sectors(
    content: bytes | bytearray, first: int, seed: int, others: Collection[int]
) -> tuple[Values, list[int]]:
    """Return the words of the sectors in *content*, and which are bad; *first*: their first number.

    Those that are bad, or fit one of the seeds *others*, are zeros.
    """
    sectors = np.frombuffer(content, "<u4").reshape(-1, SECTOR_WORDS).astype(np.uint32)
    checks = checks_of(sectors, first, seed)
    wrong = bad = np.flatnonzero(checks != sectors[:, CHECK_WORD])
    if others and len(wrong):  # the place of a sector and its CRC give the seed that fits
        places = (wrong + first).astype(np.uint32) * np.uint32(_PLACE)
        crcs = checks[wrong] ^ (places + np.uint32(seed))
        seeds = (sectors[wrong, CHECK_WORD] ^ crcs) - places
        bad = wrong[~np.isin(seeds, np.fromiter(others, np.uint32))]
    sectors[wrong] = 0
    return sectors, bad.tolist()


def checks_of(sectors: Values, first: int, seed: int) -> Values:
    """Return the check of each of *sectors* from number *first* on; 0 for those never written."""
    used = np.flatnonzero(sectors[:, :CHECK_WORD].any(axis=1))
    numbers = (used + first).astype(np.uint32)
    contents = [memoryview(sectors[at]).cast("B")[: CHECK_WORD * 4] for at in used.tolist()]
    checks = np.zeros(len(sectors), np.uint32)
    checks[used] = sums_of(contents, numbers, seed)
    return checks
