"""The tail of one table of sums, as a running array knows it (format/sum_tail.py has the bytes).

    save       few sums of a page of the table changed: they go to the next sectors of the tail
    turn       there is no room: each page of the table of which the tail has sums is written, with
               a higher generation -> flush -> the tail begins again at its first sector
    start      the sums of all sectors are laid over the pages of the table as these are loaded

A sector counts by its generation, not by where a use of the tail ends, so a cut loses none that was
flushed, and those that were not are any mixture, as pages of a table are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.format.regions import SUMS_PER_PAGE, SUMS_PER_SECTOR
from raidx_fuse.format.sum_table import SECTORS_PER_PAGE, Values
from raidx_fuse.format.sum_tail import TailSectors

Pages = NDArray[np.int64]


_ENTRY_BYTES = 16  # page, sum, generation


def _last(pages: Pages, sums: Values, generations: Values) -> tuple[Pages, Values, Values]:
    """Return of each of *pages*, which ascend, the last one."""
    last = np.ones(len(pages), np.bool_)
    last[:-1] = pages[1:] != pages[:-1]
    return pages[last], sums[last], generations[last]


@dataclass(slots=True, eq=False)
class Tail:
    """A tail with room for so many sectors (*sectors_max*); without room, there is none.

    Attributes: *is_known* (it was read); *position* (of the next sector); *generation* (the highest
    of the tail, and of the pages of the table that are in memory, at least); *since* (sectors with
    a lower one have nothing that counts); *is_due* (it must turn at the next save); *spoilt* (those
    to be made empty then); *reading* (held by the task that reads it).
    """

    sectors_max: int
    is_known: bool = False
    position: int = 0
    generation: int = 1
    since: int = 0
    is_due: bool = False
    spoilt: list[int] = field(default_factory=list)
    reading: trio.Lock = field(default_factory=trio.Lock)
    # Its sums (ascending pages, sums, generations) in parts; of one page, the last part's counts.
    _parts: list[tuple[Pages, Values, Values]] = field(default_factory=list)

    def take(self, copies: Sequence[TailSectors], others: Sequence[TailSectors] = ()) -> bool:
        """Take what the *copies* on the members have; return False if some of it is lost.

        That is so if a sector is bad in all of them. The *others*, of members that are not rebuilt
        yet, do not count, but lack what they do not have.
        """
        self.is_known = True
        if not copies:
            return True
        newest = np.maximum.reduce([copy.generations for copy in copies])
        self.since = int(max(copy.since.max() for copy in copies))
        live = (newest >= self.since) & (newest > 0)
        taken = np.zeros(len(newest), np.bool_)
        lost = np.ones(len(newest), np.bool_)
        parts: list[tuple[Pages, Values, Pages]] = []
        for copy in copies:
            bad = np.zeros(len(newest), np.bool_)
            bad[copy.bad] = True
            lost &= bad
            self.spoilt += [at for at in copy.bad if at not in self.spoilt]
            chosen = ((copy.generations == newest) & live & ~taken)[copy.sector_of]
            taken |= copy.generations == newest
            parts.append((copy.pages[chosen], copy.sums[chosen], copy.sector_of[chosen]))
        pages, sums, sectors = (np.concatenate(some) for some in zip(*parts, strict=True))
        has_sums = np.bincount(sectors, minlength=len(newest)) > 0
        self.is_due = bool(self.spoilt) or any(
            (has_sums & (copy.generations != newest)).any() for copy in (*copies, *others)
        )
        if live.any():
            last = np.flatnonzero(newest == newest.max())[-1]
            self.position = int(last) + 1
        if newest.any():
            self.generation = int(newest.max()) + 1
        order = np.lexsort((sectors, newest[sectors], pages))
        self._parts = [_last(pages[order], sums[order], newest[sectors][order])]
        return not lost.any()

    def add(self, pages: Pages, sums: Values, sectors: int) -> None:
        """Note that *sectors* more have the *sums* of *pages*, which ascend."""
        self.position += sectors
        parts = self._parts
        parts.append((pages, sums, np.full(len(pages), self.generation, np.uint32)))
        while len(parts) > 1 and 2 * len(parts[-1][0]) >= len(parts[-2][0]):
            later, before = parts.pop(), parts.pop()
            pages = np.concatenate((before[0], later[0]))
            order = np.argsort(pages, kind="stable")
            sums = np.concatenate((before[1], later[1]))
            generations = np.concatenate((before[2], later[2]))
            parts.append(_last(pages[order], sums[order], generations[order]))

    def tables(self) -> set[int]:
        """Return the pages of the table of which it has sums."""
        return {
            number
            for part in self._parts
            for number in np.unique(part[0] // SUMS_PER_PAGE).tolist()
        }

    @property
    def has_sums(self) -> bool:
        """Whether there are any in it."""
        return any(len(pages) for pages, _, _ in self._parts)

    @property
    def memory_bytes(self) -> int:
        """How much memory its sums take."""
        return sum(len(pages) * _ENTRY_BYTES for pages, _, _ in self._parts)

    def lay_over(self, sums: Values, newest: Values, first: int) -> None:
        """Lay the tail's sums over those of whole pages of the table from page *first* on.

        *newest* are the generations of their sectors; those with a higher one stay as they are.
        """
        begin = first * SUMS_PER_PAGE
        end = begin + len(newest) // SECTORS_PER_PAGE * SUMS_PER_PAGE
        for pages, values, generations in self._parts:
            low, high = np.searchsorted(pages, (begin, end)).tolist()
            at = pages[low:high] - begin
            counts = generations[low:high] >= newest[at // SUMS_PER_SECTOR]
            sums.reshape(-1)[at[counts]] = values[low:high][counts]

    def resize(self, sectors: int) -> None:
        """Have room for so many *sectors*; nothing that counts is in those that go."""
        self.sectors_max, self.position = sectors, min(self.position, sectors)

    def note_generation(self, generation: int) -> None:
        """Note that the table has this *generation*: what the tail gets must not be below it."""
        self.generation = max(self.generation, generation)

    def new_generation(self) -> int:
        """Return a generation that is higher than all that were used."""
        self.generation += 1
        return self.generation

    @property
    def is_unused(self) -> bool:
        """Whether nothing is in any of its sectors."""
        return not (self.position or self.spoilt)

    def has_room(self, sectors: int) -> bool:
        """Return whether so many *sectors* more have room."""
        return self.position + sectors <= self.sectors_max

    def begin_anew(self) -> None:
        """Begin again, behind an empty sector: the table has all that the tail had, durably."""
        self.since, self.position, self.is_due, self.spoilt = self.generation, 1, False, []
        self._parts = []
