"""Arrays of every layout with redundancy, filled, whose resync after a crash takes long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError
from tests.support.spy import SpyRig, noise, spying

CHUNK = 4096
LAYOUTS = {  # how many members
    "raid5": 4,
    "raid4": 4,
    "raid1": 2,
    "raidx-parity": 4,
    "raidx-copy": 3,
    "rdp": 6,
    "evenodd": 5,
    "xcode": 5,
    "pcode": 6,
    "upc": 6,
}
PARITIES = [name for name in LAYOUTS if name not in ("raid1", "raidx-copy")]
TWO_PARITIES = ["rdp", "evenodd", "xcode", "pcode", "upc"]


@asynccontextmanager
async def filled(name: str, journal: str = "partial", **options: Any) -> AsyncIterator[SpyRig]:
    """Run an array of *name*, filled and flushed, whose resync will take its time."""
    options = {"chunk_bytes": CHUNK, "stripes": 60, **options}
    async with spying(name, LAYOUTS[name], **options) as rig:
        await rig.array.set("journal", journal)
        await rig.array.set("speed_max", "4KiB")
        await rig.put(0, noise(len(rig.model), 1))
        await rig.array.flush()
        yield rig


async def sectors(array: Array, old: bytes) -> tuple[int, int]:
    """Return how many chunks read as something else than *old*, and how many not at all."""
    with suppress(RaidxError):
        if bytes(await array.read(0, len(old))) == old:
            return 0, 0
    wrong = refused = 0
    for at in range(0, len(old), CHUNK):
        try:
            wrong += bytes(await array.read(at, CHUNK)) != old[at : at + CHUNK]
        except RaidxError:
            refused += 1
    return wrong, refused
