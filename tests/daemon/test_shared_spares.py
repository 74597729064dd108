"""Spares that arrays of a mount share: a spare goes to the array that lacks one, and fits it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.shared_spares import LOOK_S, SharedSpares
from raidx_fuse.errors import RaidxError
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import Rig

MIB = 1 << 20


class Two:
    """A raid5, *needy*, and a raid1, *giver*, of one mount; *told* is what was told."""

    def __init__(self, needy: Rig, giver: Rig) -> None:
        self.needy, self.giver = needy.array, giver.array
        self.told: list[str] = []
        arrays = [self.needy, self.giver]
        self.shared = SharedSpares(arrays, lambda array, path, text: self.told.append(text))

    def spares(self) -> list[str]:
        """Return the spares of the giver."""
        return sorted(member.path for member in self.giver.member_set.spares.values())


@asynccontextmanager
async def two_arrays() -> AsyncIterator[Two]:
    needy, giver = Rig("raid5", 4, stripes=2048), Rig("raid1", 2)
    await needy.create()
    await giver.create()
    try:
        two = Two(needy, giver)
        for path, size in (("small", 4), ("large", 64), ("fits", 32)):
            await two.giver.add_spare(RamMember(size * MIB, name=path))
        yield two
    finally:
        await giver.close()
        await needy.close()


two = pytest.fixture(two_arrays)


async def test_the_smallest_spare_that_fits_goes_to_the_array_that_lacks_one(two: Two) -> None:
    await two.needy.fail_disk(2)
    await two.shared.look()
    assert two.told == [], "spares are not shared unless that is set"
    await two.giver.set("spares.shared", "on")
    two.needy.nursery.start_soon(two.shared.run)
    await trio.sleep(20 * LOOK_S)
    assert two.told == [f"spare fits of {two.giver.name} has joined"]
    assert not two.needy.member_set.lost
    assert two.spares() == ["large", "small"]


async def test_an_array_keeps_spares_that_it_may_need_itself(two: Two) -> None:
    await two.giver.set("spares.shared", "on")
    await two.shared.look()
    assert len(two.giver.member_set.spares) == 3, "no array lacks one"
    two.giver.membership.hold_spares()
    await two.giver.fail_disk(0)
    await two.needy.fail_disk(2)
    await two.shared.look()
    assert two.told == []


async def test_a_spare_is_not_given_away_while_it_gets_a_role(two: Two) -> None:
    """New members are spares for a moment; so are those that are about to replace others."""
    await two.giver.set("spares.shared", "on")
    await two.needy.fail_disk(2)
    async with two.giver.membership.attaching, trio.open_nursery() as nursery:
        nursery.start_soon(two.shared.look)
        await trio.sleep(1)
        (fits,) = (
            uuid for uuid, member in two.giver.member_set.spares.items() if member.path == "fits"
        )
        job = {"member_uuid": fits, "next_stripe": 0, "starts": 0}
        two.giver.member_set.change(lambda config: config.with_job("replace:0", job))
        two.giver.membership.attaching.release()
        await trio.sleep(1)
        assert two.spares() == ["fits", "large", "small"]
        await two.giver.membership.attaching.acquire()
    two.giver.member_set.change(lambda config: config.without_job("replace:0"))


async def test_a_spare_that_does_not_join_is_given_back_and_not_tried_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one lost silently that cannot come back: the mount lets it go."""
    refusing = {two.needy}

    def refused_by(array: Array) -> Callable[[Member], Awaitable[object]]:
        joins = array.add_spare

        async def join(member: Member) -> object:
            if array in refusing:
                raise RaidxError("no room")
            return await joins(member)

        return join

    for array in (two.needy, two.giver):
        monkeypatch.setattr(array, "add_spare", refused_by(array))
    await two.giver.set("spares.shared", "on")
    await two.needy.fail_disk(2)
    await two.shared.look()
    assert two.told == []
    assert two.spares() == ["fits", "large", "small"]
    refusing.add(two.giver)
    let_go: list[str] = []
    two.giver.on_release.append(lambda member: let_go.append(member.path))
    await two.shared.look()
    assert two.told == ["spare large has left, and is lost: no room"]
    assert let_go == ["large"]
    await two.shared.look()
    assert two.spares() == ["fits", "small"]
