"""Superblocks from saved metadata: the front comes back, and what would harm is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.array.restore_metadata import FRONT_BYTES, Leave, Restoration, plan
from raidx_fuse.array.save_metadata import save
from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.format.saved_metadata import Saved, from_bytes, to_document, to_text
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import parity_holds, ram_array

CONTENT = random.Random(7).randbytes(300_000)
WIDTHS = {"raid0": 3, "raid1": 3, "raid5": 4, "rdp": 5, "raidx-copy": 4, "raidx-parity": 5}


async def filled(layout: str, **options: Any) -> list[RamMember]:
    """Return the members of a closed array with CONTENT."""
    members = await ram_array(layout, WIDTHS[layout], 2 << 20, **options)
    async with open_array(members) as array:
        await array.write(0, CONTENT)
    return members


async def saved_of(members: Sequence[Member]) -> Saved:
    """Return what the file has that `save-metadata` makes of *members* at rest."""
    async with open_array(members, read_only=True, start_degraded=True) as array:
        return from_bytes(to_text(to_document(await save(array, array.member_set.present(), 5))))


def lose_front(*members: RamMember, size: int = FRONT_BYTES) -> None:
    for member in members:
        member.memory[:size] = bytes(size)


async def restored(saved: Saved, members: Sequence[Member], **leave: Any) -> Restoration:
    found = await plan(saved, members, Leave(**leave))
    await found.carry_out()
    return found


async def refused(
    reason: Reason, saved: Saved, members: Sequence[RamMember], words: str = "", **leave: Any
) -> None:
    """Expect that nothing is written."""
    before = [bytes(member.memory) for member in members]
    with pytest.raises(RaidxError, match=words) as caught:
        await plan(saved, members, Leave(**leave))
    assert caught.value.reason == reason, caught.value
    assert [bytes(member.memory) for member in members] == before


async def has_content(members: Sequence[Member]) -> None:
    async with open_array(members) as array:
        assert bytes(await array.read(0, len(CONTENT))) == CONTENT
        if array.context.code.tolerance:
            await parity_holds(array)


@pytest.mark.parametrize("layout", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, 255])
async def test_lost_fronts_come_back_in_any_order(layout: str, count: int) -> None:
    members = await filled(layout)
    saved = await saved_of(members)
    lose_front(*members[:count])
    found = await restored(saved, members[::-1])
    assert found.from_members == (count < len(members))
    assert found.state == "clean"
    assert found.wrong == 0
    await has_content(members)
