"""The disks of the campaign hold an array to its laws, whether or not a cut would show it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from raidx_fuse.engine.changed_regions import ChangedRegions
from raidx_fuse.lab.crash.campaign import crash_workloads
from raidx_fuse.lab.crash.mounting import DiskLaws, acknowledged, arrays_of, writer_of
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.laws import Law, LawError
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.ram import RamMember
from raidx_fuse.pool.move import start_move
from raidx_fuse.store.member_set import MemberSet
from tests.crash.test_given_up import PARITY_LOST, given_up
from tests.support.spy import fill, noise, spying
from tests.support.two_arrays import created, ended, make, mounted, slow_move


def test_a_home_write_to_a_stripe_that_is_not_noted_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unnoted(_changes: ChangedRegions, _stripes: Sequence[Stripe]) -> None:
        pass

    assert given_up("partial", "write", 0, PARITY_LOST)
    monkeypatch.setattr(ChangedRegions, "before_write", unnoted)
    with pytest.raises(BaseException, match="is not noted while a member is away"):
        given_up("partial", "write", 0, PARITY_LOST)


def test_a_write_beyond_the_end_is_a_violation() -> None:
    with pytest.raises(AssertionError, match="goes beyond its end"):
        DiskLaws([]).judge(RamMember(1 << 20), (1 << 20) - 1, b"ab")


async def test_in_use_the_request_fails_and_an_event_can_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with spying("raid5", 3, chunk_bytes=4096, stripes=600) as rig:
        await rig.array.set("journal", "none")
        await fill(rig)
        await rig.in_place()
        await rig.array.context.dirty_bitmap.clean_quiet(all_regions=True)
        await rig.array.fail_disk(1)
        monkeypatch.setattr(ChangedRegions, "note", lambda _self, _stripes: None)
        with pytest.raises(LawError) as refused:
            await rig.array.write(0, noise(8192 * 100))
        assert refused.value.law is Law.NOTED
        assert rig.array.member_set.laws.said
        monkeypatch.undo()
        await rig.put(0, noise(8192 * 100))


@pytest.mark.parametrize("theme", ["disks", "pairs:stripe:unflushed"])
def test_an_acknowledgement_that_does_not_wait_for_superblocks_ends_the_run(
    theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_members: MemberSet) -> None:
        pass

    monkeypatch.setattr(MemberSet, "published", at_once)
    cell = Cell("raid5", "partial", theme=theme)
    tally = crash_workloads(cell, range(1), 1, stop_after=1)
    assert Law.PUBLISHED.value in tally.violations[0].what, "the array's own law"
    monkeypatch.setattr(MemberSet, "require_published", lambda _members, _what: None)
    tally = crash_workloads(cell, range(1), 60, stop_after=1)
    whats = [found.what for found in tally.violations]
    assert any("request on an unpublished configuration" in what for what in whats), whats


async def test_a_flush_of_a_volume_on_its_way_answers_for_both_arrays() -> None:
    pool = await mounted(await created())
    volume = await make(pool)
    await slow_move(pool)
    source, target = (volumes.array for volumes in pool.arrays)
    assert arrays_of(pool, volume) == [source, target]
    assert not writer_of(pool, volume), "either may have the bytes"
    source.member_set.publish_soon()
    with (
        pytest.raises(AssertionError, match="array fast acknowledges"),
        acknowledged(arrays_of(pool, volume)),
    ):
        await target.flush()
    with acknowledged(arrays_of(pool, volume)):
        await volume.flush()
    await ended(pool)


async def test_the_array_that_a_volume_has_left_answers_for_it_no_longer() -> None:
    """What its table still has to say concerns the next mount alone."""
    pool = await mounted(await created())
    volume = await make(pool)
    await start_move(pool, "mail", "slow")
    source, target = (volumes.array for volumes in pool.arrays)
    transfer = pool.transfers[volume.uuid]
    while not transfer.arrived:
        await trio.lowlevel.checkpoint()
    async with source.member_set._config_lock:  # no round of superblocks of it ends
        while not (transfer.is_over and source.member_set.unpublished):
            await trio.lowlevel.checkpoint()
        assert pool.transfers, "the table of the source still has the volume"
        assert arrays_of(pool, volume) == writer_of(pool, volume) == [target]
        with acknowledged(arrays_of(pool, volume)):
            await volume.flush()
        assert source.member_set.unpublished
    await ended(pool)
