"""A rig whose members hang, and callers that go on until they are served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.closing import entered
from tests.support.spy import SpyRig, noise

CHUNK = 4096
TIMEOUT_S = 2.0
OVER_S = 2 * TIMEOUT_S  # a hang has been noticed
CLOSED_S = 10 * OVER_S


class DeepRig(SpyRig):
    """A rig whose members work on *depth* operations at once, as disks do."""

    depth = 4

    def new_member(self, role: int | None = None) -> FaultMember:
        """Return a fresh member."""
        member = super().new_member(role)
        member.depth = self.depth
        return member


@asynccontextmanager
async def running(
    layout: str, width: int, depth: int = 4, **options: Any
) -> AsyncIterator[DeepRig]:
    """Make members and an array, and close it in the end, whatever hangs."""
    rig = DeepRig(layout, width, chunk_bytes=CHUNK, **options)
    rig.depth = depth
    await rig.create()
    try:
        yield rig
    finally:
        began_s = trio.current_time()
        await rig.close()
        assert trio.current_time() - began_s < CLOSED_S


async def hanging(layout: str, width: int, mode: str = "partial", **options: Any) -> DeepRig:
    """Return a rig as `prepare` leaves it, which is closed when the test ends."""
    rig = await entered(running(layout, width, **options))
    await prepare(rig, mode)
    return rig


async def landed() -> None:
    """Return when writes that were held have landed."""
    await trio.sleep(0.1)


async def prepare(rig: SpyRig, mode: str = "partial") -> None:
    """Write the whole image, all of it in its place; hangs are noticed soon."""
    await rig.array.set("io.timeout_s", str(TIMEOUT_S))
    await rig.array.set("journal", mode)
    await rig.put(0, noise(len(rig.model), 99))
    await rig.in_place()


async def refused(step: Callable[[], Awaitable[None]], within_s: float = OVER_S) -> RaidxError:
    """Return the error of *step*, which ends soon."""
    with trio.fail_after(within_s), pytest.raises(RaidxError) as caught:
        await step()
    return caught.value


async def write_until_taken(rig: SpyRig, offset: int, data: bytes, tries_s: float = 60) -> None:
    """Write *data* repeatedly until it is acknowledged."""
    with trio.fail_after(tries_s):
        while True:
            try:
                await rig.put(offset, data)
                return
            except RaidxError:
                await trio.sleep(0.5)


async def flush_until_done(rig: SpyRig) -> None:
    """Flush repeatedly until it succeeds."""
    with trio.fail_after(60):
        while True:
            try:
                await rig.array.flush()
                return
            except RaidxError:
                await trio.sleep(0.5)
