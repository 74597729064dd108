"""The list of lost chunks as it is kept in the superblocks: differences, compressed.

Losses come in patterns (one role of many neighbouring stripes), so a hundred thousand of them fit
where a plain list would hold a few thousand.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from raidx_fuse.errors import RaidxError

ENCODED_BYTES_MAX = 40_000  # of the 64 KiB that a superblock has


def encode_chunks(chunks: Iterable[int]) -> dict[str, Any]:
    """Return chunk numbers as JSON values. Raises RaidxError when they do not fit."""
    numbers = np.array(sorted(chunks), dtype="<u8")
    steps = np.diff(numbers, prepend=np.uint64(0)).astype("<u8")
    text = base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode("ascii")
    if len(text) > ENCODED_BYTES_MAX:
        raise RaidxError(f"the list of {len(numbers)} lost chunks does not fit in a superblock")
    return {"count": len(numbers), "steps": text}


def decode_chunks(values: dict[str, Any]) -> set[int]:
    """Return the chunk numbers of `encode_chunks`."""
    if not values:
        return set()
    steps = np.frombuffer(zlib.decompress(base64.b64decode(values["steps"])), dtype="<u8")
    return {int(number) for number in np.cumsum(steps)}
