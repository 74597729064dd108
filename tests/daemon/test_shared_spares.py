"""Spares that arrays of a mount share: a spare goes to the array that lacks one, and fits it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.shared_spares import LOOK_S, SharedSpares
from raidx_fuse.errors import RaidxError
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from tests.daemon.conftest import Shelf
from tests.support.arrays import Rig

MIB = 1 << 20


class Sizes(Shelf):
    """A shelf on which the name of a member says its MiB: "12-any"; *refusals* opens fail."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.refusals = 0

    async def open(self, path: str, **options: object) -> Member:
        if self.refusals:
            self.refusals -= 1
            raise RaidxError(f"{path} cannot be opened")
        return RamMember(int(path.partition("-")[0]) * MIB, name=path)


class Two:
    """A raid5, *needy*, and a raid1, *giver*, of one mount; *told* is what was told."""

    def __init__(self, needy: Rig, giver: Rig) -> None:
        self.shelf = Sizes(needy)
        self.needy, self.giver = needy.array, giver.array
        assert self.needy is not None
        assert self.giver is not None
        arrays = [ArrayCommands(array, [], self.shelf) for array in (self.needy, self.giver)]
        self.told: list[str] = []
        self.shared = SharedSpares(arrays, lambda array, path, text: self.told.append(text))
        self.asked, self.giving = arrays


@asynccontextmanager
async def two_arrays() -> AsyncIterator[Two]:
    needy, giver = Rig("raid5", 4, stripes=2048), Rig("raid1", 2)
    await needy.create()
    await giver.create()
    try:
        two = Two(needy, giver)
        for path in ("4-small", "64-large", "32-fits"):
            await two.giving.add_disk([path], role="spare")
        yield two
    finally:
        await giver.close()
        await needy.close()


two = pytest.fixture(two_arrays)


async def test_the_smallest_spare_that_fits_goes_to_the_array_that_lacks_one(two: Two) -> None:
    await two.asked.fail_disk("2")
    await two.shared.look()
    assert two.told == [], "spares are not shared unless that is set"
    await two.giver.set("spares.shared", "on")
    two.needy.nursery.start_soon(two.shared.run)
    await trio.sleep(20 * LOOK_S)
    assert two.told == [f"spare 32-fits of {two.giver.name} has joined"]
    assert not two.needy.member_set.lost
    assert [m.path for m in two.giver.member_set.spares.values()] == ["4-small", "64-large"]


async def test_an_array_keeps_spares_that_it_may_need_itself(two: Two) -> None:
    await two.giver.set("spares.shared", "on")
    await two.shared.look()
    assert len(two.giver.member_set.spares) == 3, "no array lacks one"
    two.giver.membership.hold_spares()
    await two.giving.fail_disk("0")
    await two.asked.fail_disk("2")
    await two.shared.look()
    assert two.told == []


async def test_a_spare_that_does_not_join_is_given_back_and_not_tried_again(two: Two) -> None:
    await two.giver.set("spares.shared", "on")
    await two.asked.fail_disk("2")
    two.shelf.refusals = 1
    await two.shared.look()
    assert two.told == []
    paths = sorted(member.path for member in two.giver.member_set.spares.values())
    assert paths == ["32-fits", "4-small", "64-large"]
    two.shelf.refusals = 2  # it cannot come back either
    await two.shared.look()
    assert two.told == ["spare 64-large has left, and joined no array: 64-large cannot be opened"]
    await two.shared.look()
    assert len(two.told) == 1
