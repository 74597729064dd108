"""Requests of a load, in blocks of numpy columns, in the order of arrival.

A load is any iterable of `Block`s. Blocks are made while the load is used, so that a week of
requests is never in memory as a whole. The other modules take and return such iterables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SECTOR_BYTES = 512
BLOCK_REQUESTS = 16384


class Request(NamedTuple):
    """One request: arrival time in seconds from the load's start, direction, and byte range."""

    at_s: float
    is_write: bool
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive requests as four columns of equal length; *at_s* is ascending."""

    at_s: Floats
    is_write: Bools
    offset_bytes: Ints
    length_bytes: Ints

    def __len__(self) -> int:
        return len(self.at_s)

    def take(self, which: slice | Bools) -> Block:
        """Return the requests of an index range or a mask."""
        return Block(
            self.at_s[which],
            self.is_write[which],
            self.offset_bytes[which],
            self.length_bytes[which],
        )


Load = Iterable[Block]


def requests_of(load: Load) -> Iterator[Request]:
    """Yield the requests of *load* one by one, as plain Python numbers."""
    for block in load:
        columns: list[list[Any]] = [
            block.at_s.tolist(),
            block.is_write.tolist(),
            block.offset_bytes.tolist(),
            block.length_bytes.tolist(),
        ]
        yield from map(Request._make, zip(*columns, strict=True))


def block_of(requests: Iterable[tuple[float, bool, int, int]]) -> Block:
    rows = list(requests)
    at_s, is_write, offset, length = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Block(
        np.array(at_s, dtype=np.float64),
        np.array(is_write, dtype=np.bool_),
        np.array(offset, dtype=np.int64),
        np.array(length, dtype=np.int64),
    )
