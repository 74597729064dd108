"""The one skeleton of all changes of roles and layout: what it undoes, and what it leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import ArrayFailedError, MemberError
from raidx_fuse.jobs import reshape
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import Rig
from tests.support.growing import SmallRig, ram_of
from tests.support.load import ended, eventually, opened
from tests.support.restriping import SmallRig as RestripeRig
from tests.support.spy import restarted
from tests.support.unlike import UnlikeRig

Begin = Callable[[Rig, FaultMember], Awaitable[object]]


async def grow(rig: Rig, member: FaultMember) -> object:
    return await rig.array.grow([member])


async def restripe(rig: Rig, member: FaultMember) -> object:
    return await rig.array.restripe([member], None, {})


JOINING: dict[str, tuple[Callable[[], Rig], Begin]] = {
    "growth": (lambda: SmallRig("raid5", 4), grow),
    "copies": (lambda: SmallRig("raid1", 2), grow),
    "bundles": (lambda: UnlikeRig("raidx-parity", 3, (60, 50, 40, 50)), grow),
    "restripe": (lambda: RestripeRig("raid5", 4), restripe),
}


@pytest.mark.parametrize("kind", JOINING)
async def test_a_change_that_is_cancelled_leaves_no_member_behind(kind: str) -> None:
    make, begin = JOINING[kind]
    rig = await opened(make(), 0.5)
    array = rig.array
    before = array.member_set.config
    entry = await array.context.gate.enter()  # a request that keeps the gate from closing
    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin, rig, rig.new_member())
        await eventually(lambda: bool(array.member_set.spares))
        nursery.cancel_scope.cancel()
    entry.leave()
    assert not array.member_set.spares
    assert array.member_set.config.members == before.members
    assert not array.membership.attaching.locked()
    assert array.context.journal.forced is False
    rig.members.append(rig.new_member())
    await begin(rig, rig.members[-1])
    (job,) = array.jobs.running()
    await ended(rig, job)


# by layouts without redundancy: no member can be excluded
RELYING: dict[str, tuple[Callable[[], Rig], Begin]] = {
    "growth": (lambda: SmallRig("raid0", 3), grow),
    "restripe": (lambda: RestripeRig("raid0", 3), restripe),
}


@pytest.mark.parametrize("kind", RELYING)
async def test_a_change_in_force_that_superblocks_lack_goes_on_when_they_take_it(
    kind: str,
) -> None:
    """Without redundancy the member stays: the roles are changed, and nothing is acknowledged."""
    make, begin = RELYING[kind]
    rig = await opened(make(), 0.5)
    array = rig.array
    entry = await array.context.gate.enter()
    rig.members.append(rig.new_member())
    async with trio.open_nursery() as nursery:

        async def refused() -> None:
            with pytest.raises(ArrayFailedError, match="lacks the newest configuration"):
                await begin(rig, rig.members[-1])

        nursery.start_soon(refused)
        await eventually(lambda: bool(array.member_set.spares))
        rig.members[1].error(("write",), length_bytes=128 << 10)
        entry.leave()
    with pytest.raises(ArrayFailedError, match="lacks the newest configuration"):
        await array.flush()
    (job,) = array.jobs.running()
    if kind == "restripe":  # it pauses at what it cannot write
        await eventually(lambda: job.state == "paused")
    rig.members[1].clear()
    job.resume()
    await ended(rig, job)


@pytest.mark.parametrize("kind", RELYING)
async def test_a_change_whose_maps_a_member_does_not_take_is_not_relied_on_before_it_is_published(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job began at once, and overwrote what a start by the old superblocks would read."""
    make, begin = RELYING[kind]
    rig = await opened(make(), 0.5)
    rig.members.append(rig.new_member())

    async def refused(context: ArrayContext) -> None:
        raise MemberError("disk1", "write", 0, 5, "I/O error")

    monkeypatch.setattr(reshape, "_give_maps", refused)
    with pytest.raises(MemberError):
        await begin(rig, rig.members[-1])
    images = [bytes(ram_of(member).memory) for member in rig.members]
    async with restarted(images) as array:
        assert bytes(await array.read(0, len(rig.model))) == rig.model
    await rig.array.flush()  # published now, or this raises
    (job,) = rig.array.jobs.running()
    images = [bytes(ram_of(member).memory) for member in rig.members]
    async with restarted(images) as array:
        assert job.kind in {one.kind for one in array.jobs.running()}
        assert bytes(await array.read(0, len(rig.model))) == rig.model
    await ended(rig, job)
