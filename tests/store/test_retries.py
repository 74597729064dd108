"""Retries: a failed operation is tried once more, then the member fails; the same on every path."""

from __future__ import annotations

from typing import Literal

import pytest

from raidx_fuse.errors import MemberError
from raidx_fuse.settings import MODES
from tests.support.spy import SpyRig, noise, placed, spied

CHUNK = 4096
Kind = Literal["read", "write", "flush"]

PACE = pytest.mark.parametrize("slow", [False, True], ids=["at-once", "queued"])
PATHS = pytest.mark.parametrize(
    ("length", "slow"),
    [
        *((512, False), (CHUNK, True), (2 * CHUNK, False)),
        *((3 * CHUNK, False), (3 * CHUNK, True), (12 * CHUNK, True)),
    ],
)


def states(rig: SpyRig) -> list[str]:
    """Return the states of all roles."""
    config = rig.array.member_set.config
    return [config.record(role).state for role in range(config.width)]


async def use(rig: SpyRig, kind: Kind, length: int) -> None:
    """Do something that asks every member to do *kind*, until it is in place."""
    stripes = 4  # the parity goes once around
    for at in range(0, stripes * 3 * CHUNK, length):
        if kind == "read":
            assert await rig.get(at, length) == rig.model[at : at + length]
        else:
            await rig.put(at, noise(length, at))
    await rig.in_place()


@PATHS
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_broken_member_is_asked_twice_and_never_again(
    kind: Kind, mode: str, length: int, slow: bool
) -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, slow=slow, journal=mode)
    rig.array.member_set.unreadable.limit(0)  # else single pages are mended
    rig.members[1].error((kind,))
    await use(rig, kind, length)
    assert states(rig) == ["active", "failed", "active", "active"]
    # A read of four stripes asks it for two places that are no neighbours.
    places = 2 if kind == "read" and length == 12 * CHUNK else 1
    assert rig.members[1].injected["error"] == 2 * places
    await rig.compare()


@PATHS
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_hiccup_is_made_up_for_by_one_retry(
    kind: Kind, mode: str, length: int, slow: bool
) -> None:
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, slow=slow, journal=mode)
    for errors, member in enumerate(rig.members, 1):
        member.error((kind,), count=1)
        await use(rig, kind, length)
        assert sum(other.injected["error"] for other in rig.members) == errors
    assert states(rig) == ["active"] * 4
    await rig.compare()


@PACE
async def test_a_flush_is_tried_twice(slow: bool) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    await rig.put(0, noise(9 * CHUNK))
    rig.members[2].error(("flush",))
    await rig.array.flush()
    assert rig.members[2].injected["error"] == 2
    assert states(rig)[2] == "failed"


@PACE
async def test_each_request_to_a_bad_area_that_cannot_be_spared_asks_twice(slow: bool) -> None:
    rig = await placed("raid0", 2, chunk_bytes=CHUNK, slow=slow, journal="partial")
    rig.array.member_set.unreadable.limit(0)
    start = rig.data.offset
    rig.members[0].error(("read",), offset_bytes=start, length_bytes=CHUNK)
    for number in range(1, 4):
        with pytest.raises(MemberError):
            await rig.get(100, 512)
        assert rig.members[0].injected["error"] == 2 * number
    assert await rig.get(2 * CHUNK, 512) == rig.model[2 * CHUNK : 2 * CHUNK + 512]
