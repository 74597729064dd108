"""Content that can be checked when it is read back, sector by sector.

Each sector of 512 bytes holds words of 8 bytes: its number and its version, both XORed with a key
from the seed, then a hash of the two. A sector that is read back is right if it is one whole
version of itself, and this version is

- not older than the newest version that was acknowledged when the read began;
- not newer than the newest version that was sent when the read ended.

Concurrent writes may take effect in either order, so the older of them stays possible. Sectors that
were never written are not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.lab.loads.request import SECTOR_BYTES

_WORDS = SECTOR_BYTES // 8
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request under way: its sectors *first* to *end* - 1, and what was known when it began.

    A write has its *version* and, as *floor*, the oldest version that it may race with. A read has
    *oldest*: for each sector, the oldest version that it may return.
    """

    first: int
    end: int
    version: int = 0
    floor: int = 0
    oldest: Any = None


class Content:
    """Makes the content of writes and checks that of reads. Ranges must be whole sectors."""

    def __init__(self, size_bytes: int, seed: int = 0) -> None:
        sectors = size_bytes // SECTOR_BYTES
        self._sent = np.zeros(sectors, dtype=np.uint32)  # only pages that are used take memory
        self._floor = np.zeros(sectors, dtype=np.uint32)
        self._key = np.uint64(seed * 2 + 1)
        self._version = 0
        self._writing: dict[int, Ticket] = {}
        self.checked_bytes = 0
        self.wrong: list[str] = []

    def write(self, offset_bytes: int, length_bytes: int) -> tuple[Ticket, bytes]:
        """Begin a write; return its ticket and its content."""
        first, end = offset_bytes // SECTOR_BYTES, (offset_bytes + length_bytes) // SECTOR_BYTES
        self._version += 1
        version = self._version
        racing = (t.version for t in self._writing.values() if t.first < end and first < t.end)
        ticket = Ticket(first, end, version, min(racing, default=version))
        self._writing[version] = ticket
        self._sent[first:end] = version
        return ticket, self._pattern(first, np.full(end - first, version, np.uint64)).tobytes()

    def written(self, ticket: Ticket, acknowledged: bool = True) -> None:
        """End a write. After a write that was not *acknowledged* its sectors are not checked."""
        del self._writing[ticket.version]
        if acknowledged:
            floor = self._floor[ticket.first : ticket.end]
            np.maximum(floor, ticket.floor, out=floor)
        else:  # a part may be written, or be written later: these sectors are unknown from now on
            self._sent[ticket.first : ticket.end] = self._floor[ticket.first : ticket.end] = 0

    def read(self, offset_bytes: int, length_bytes: int) -> Ticket:
        """Begin a read; return its ticket."""
        first, end = offset_bytes // SECTOR_BYTES, (offset_bytes + length_bytes) // SECTOR_BYTES
        return Ticket(first, end, oldest=self._floor[first:end].copy())

    def judge(self, ticket: Ticket, data: Any) -> bool:
        """End a read that returned *data*; return whether it is right, and note it if not."""
        words: Words = np.frombuffer(data, dtype="<u8").reshape(-1, _WORDS)
        known = ticket.oldest > 0
        if not known.any():
            return True
        version = words[:, 1] ^ self._key
        newest = self._sent[ticket.first : ticket.end]
        good = (version >= ticket.oldest) & (version <= newest)
        good &= (words == self._pattern(ticket.first, version)).all(axis=1)
        # A write that failed meanwhile has made its sectors unknown.
        good |= ~known | (newest == 0)
        self.checked_bytes += int(known.sum()) * SECTOR_BYTES
        if good.all():
            return True
        at = int(np.flatnonzero(~good)[0])
        self.wrong.append(
            f"image offset {(ticket.first + at) * SECTOR_BYTES}: expected write "
            f"{ticket.oldest[at]} to {newest[at]}, found {self._what(ticket.first + at, words[at])}"
        )
        return False

    def ranges_written(self) -> list[tuple[int, int]]:
        """Return (offset, length), in bytes, of every run of acknowledged sectors."""
        known = np.flatnonzero(self._floor)
        if not len(known):
            return []
        breaks = np.flatnonzero(np.diff(known) > 1) + 1
        return [
            (int(run[0]) * SECTOR_BYTES, len(run) * SECTOR_BYTES) for run in np.split(known, breaks)
        ]

    def _pattern(self, first: int, version: Words) -> Words:
        sector = np.arange(first, first + len(version), dtype=np.uint64)
        number = np.arange(_WORDS, dtype=np.uint64) * _STEP
        seed = (sector * _MIX[0] ^ version * _MIX[1]) + self._key
        words: Words = seed[:, None] + number[None, :]
        words = (words ^ (words >> _SHIFTS[0])) * _MIX[0]
        words = (words ^ (words >> _SHIFTS[1])) * _MIX[1]
        words ^= words >> _SHIFTS[2]
        words[:, 0] = sector ^ self._key
        words[:, 1] = version ^ self._key
        return words

    def _what(self, sector: int, words: Words) -> str:
        version = int(words[1] ^ self._key)
        if not words.any():
            return "zeros"
        if int(words[0] ^ self._key) != sector:
            return "something else"
        torn = not (words == self._pattern(sector, np.array([version], np.uint64))[0]).all()
        return f"{'a torn ' if torn else ''}write {version}"
