"""Unreadable pages of one stripe that lie at different bytes of its cells: each can be recomputed.

No reader may ask for more at once than a page of such a stripe: whole cells could not be solved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from tests.engine.test_latent_errors import CHUNK, lose_page, lose_parity
from tests.support.arrays import parity_holds
from tests.support.spy import SpyRig, fill, spied


async def scatter(rig: SpyRig) -> None:
    """Fill the image; then lose a page of several cells, no two of a stripe at the same bytes."""
    await fill(rig)
    await rig.in_place()
    for chunk in range(0, 24, 3):
        lose_page(rig, chunk, 1)
        lose_page(rig, chunk + 1, 2)
    for stripe in range(1, 12, 4):
        lose_parity(rig, stripe, 3)


async def grows(rig: SpyRig) -> Mapping[str, Any]:
    rig.members.append(rig.new_member())
    return await rig.array.grow([rig.members[-1]])


async def piggybacks(rig: SpyRig) -> Mapping[str, Any]:
    rig.members.append(rig.new_member())
    return await rig.array.grow([rig.members[-1]], "piggyback")


async def restripes(rig: SpyRig) -> Mapping[str, Any]:
    rig.members.append(rig.new_member())
    return await rig.array.restripe([rig.members[-1]], None, {})


async def replaces(rig: SpyRig) -> Mapping[str, Any]:
    rig.members.append(rig.new_member())
    return await rig.array.replace_disk(1, rig.members[-1])


@pytest.mark.parametrize(
    ("layout", "width", "begin"),
    [
        ("raid4", 3, grows),
        ("raid4", 3, piggybacks),
        ("raid5", 3, grows),
        ("rdp", 4, grows),
        ("raid5", 3, restripes),
        ("raid5", 4, replaces),
        ("raidx-parity", 5, grows),
    ],
)
async def test_no_job_stops_at_them_and_no_member_fails(
    layout: str, width: int, begin: Any
) -> None:
    params = {"prime": 5} if layout == "rdp" else {}  # room for another member
    rig = await spied(layout, width, chunk_bytes=CHUNK, params=params)
    await scatter(rig)
    begun = await begin(rig)
    with trio.fail_after(600):  # virtual
        ended = await rig.array.jobs.wait(begun["job"])
    assert ended["state"] == "done"
    if begin is replaces:
        del rig.members[1]
    assert {r.state for r in rig.array.member_set.config.members} == {"active"}
    await rig.compare()  # what the image had; a growth adds to it
    await parity_holds(rig.array)
