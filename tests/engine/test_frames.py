"""How many functions a request enters, from the volume to its answer: a bound that holds anywhere.

The times of a request differ from machine to machine; the functions that it enters do not. Counted
are functions of the product that begin (not coroutines that continue), of one request to a raid5 of
4 RAM members with chunks of 64 KiB, when everything is warm. `pytest -s` prints them. A bound is
what the commit that last changed it needed, on CPython 3.11, which enters a function for each
comprehension, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import raidx_fuse
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.pool.array_volumes import open_volumes

PAGE = 4096
CHUNK = 64 << 10
PRODUCT = str(Path(raidx_fuse.__file__).parent) + os.sep
BOUNDS = {
    "partial": {"read": 13, "write": 52, "first": 157, "checkpoint": 342, "degraded": 74},
    "none": {"read": 9, "write": 25, "first": 241, "degraded": 70},
}


async def entered(request: Callable[[], Awaitable[object]]) -> int:
    """Return how many functions of the product *request* enters."""
    count = 0

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT):
            # The argument of RESUME is 0 at the beginning of a function (CPython: dis).
            count += not code.co_code[frame.f_lasti + 1] & 3

    sys.setprofile(note)
    try:
        await request()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("journal", BOUNDS)
async def test_a_request_enters_no_more_functions_than_before(journal: str) -> None:
    members = [RamMember(64 << 20, name=f"ram{n}") for n in range(4)]
    await create_array(members, "raid5", chunk_bytes=CHUNK, name="frames", now_s=0)
    found: dict[str, int] = {}
    async with open_array(members) as array, open_volumes(array) as volumes:
        await array.set("journal", journal)
        (volume,) = volumes.volumes
        layout = array.context.layout

        async def read(page: int) -> None:
            await volume.read(page * PAGE, PAGE)

        async def write(page: int) -> None:
            await volume.write(page * PAGE, bytes(PAGE))

        await volume.write(0, bytes(8 << 20))
        for page in range(200):
            await write(page)
        await trio.sleep(10)  # all is at its place
        for page in range(200):
            await read(page)
        found["read"] = await entered(lambda: read(40))
        for page in range(100, 120):
            await write(page)
        found["write"] = await entered(lambda: write(130))
        await write((20 << 20) // PAGE)
        found["first"] = await entered(lambda: write((24 << 20) // PAGE))
        if journal != "none":
            await trio.sleep(10)
            await array.context.journal.drain()
            await write(7)
            found["checkpoint"] = await entered(array.context.journal.place)
        await array.fail_disk(1)
        lost = next(n for n in range(100) if layout.place(*layout.locate(n))[0] == 1)
        page = lost * CHUNK // PAGE
        for warm in range(5):
            await read(page + warm)
        found["degraded"] = await entered(lambda: read(page + 9))
    print(journal, found)
    bounds = BOUNDS[journal]
    assert found.keys() == bounds.keys()
    assert {name: count for name, count in found.items() if count > bounds[name]} == {}
