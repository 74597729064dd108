"""The configuration and the members change while an operation waits: no change is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.jobs.rebuild import Rebuild
from tests.support.reasons import because
from tests.support.spy import spied
from tests.support.unlike import UnlikeRig

CHUNK = 4096


async def test_a_role_that_becomes_larger_while_a_growth_ends_keeps_the_count_of_bundles() -> None:
    """The superblocks count the new bundles before the layout opens them: a configuration that is
    described by the layout between the two counts them no more, and a remount loses their content.
    """
    rig = UnlikeRig("raidx-copy", 2, (30, 24, 28, 26))
    array = await rig.create(0.5)
    rebundle: Any = array.rebundle
    announce = rebundle._announce
    larger: list[Any] = []

    async def announce_and_be_overtaken(cells: range, bundles: int) -> None:
        await announce(cells, bundles)
        if not larger:
            larger.append(rig.disk(60))
            rig.members += larger
            nursery.start_soon(array.replace_disk, 1, larger[0])
            await trio.sleep(1)

    rebundle._announce = announce_and_be_overtaken
    async with trio.open_nursery() as nursery:
        await array.grow([disk := rig.disk(40)])
        rig.members.append(disk)
        await rig.settle()
    assert larger
    await rig.settle()
    layout = rig.bundles
    assert array.member_set.config.params["bundles"] == layout.stripes
    data = random.Random(1).randbytes(array.size_bytes)
    await rig.put(0, data)
    await rig.remount()


async def test_a_growth_whose_end_fails_opens_the_bundles_that_superblocks_may_count() -> None:
    rig = UnlikeRig("raidx-copy", 2, (30, 24, 28, 26))
    array = await rig.create()
    rebundle: Any = array.rebundle
    announce = rebundle._announce

    async def announce_and_fail(cells: range, bundles: int) -> None:
        await announce(cells, bundles)
        raise RaidxError("the superblocks are written, but something else went wrong")

    rebundle._announce = announce_and_fail
    await array.grow([disk := rig.disk(40)])
    rig.members.append(disk)
    await rig.settle()
    assert array.member_set.config.params["bundles"] == rig.bundles.stripes
    await rig.check()
    await rig.remount()


def remove_spares_at_a_drain(array: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members without a role leave whenever the log has been emptied."""
    drain = array.context.journal.drain

    async def drain_and_be_overtaken(*args: Any) -> None:
        await drain(*args)
        for uuid in list(array.member_set.spares):
            await array.remove_disk(uuid)

    monkeypatch.setattr(array.context.journal, "drain", drain_and_be_overtaken)


@pytest.mark.parametrize("layout", ["raid4", "raidx-copy"])
async def test_a_new_member_that_is_removed_before_it_has_its_role_ends_the_growth(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await spied(layout, 4, chunk_bytes=CHUNK, stripes=200)
    array = rig.array
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    remove_spares_at_a_drain(array, monkeypatch)
    with pytest.raises(RaidxError, check=because(Reason.MEMBER_FAILED)):
        await array.grow([rig.new_member()])
    monkeypatch.undo()
    assert len(array.member_set.config.members) == 4
    assert not array.jobs.running()
    await rig.compare()
    await rig.reopen()
    await rig.compare()


async def test_a_spare_that_is_removed_before_it_has_its_role_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=200)
    array = rig.array
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    await array.add_spare(rig.new_member())
    remove_spares_at_a_drain(array, monkeypatch)
    await array.fail_disk(1)
    await trio.sleep(5)
    assert array.member_set.config.record(1).state == "failed"
    assert array.member_set.queues[1] is None
    assert not array.jobs.running()
    await rig.compare()


async def test_a_spare_takes_the_role_that_a_refused_replacement_leaves_vacant() -> None:
    """While the role was promised to the replacement, the spare had to wait."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=200)
    array = rig.array
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    await array.fail_disk(1)
    broken = rig.new_member()
    broken.error(("write",))
    refused = False

    async def replace() -> None:
        nonlocal refused
        with pytest.raises(RaidxError):
            await array.replace_disk(1, broken)
        refused = True

    async with trio.open_nursery() as nursery, array.membership.attaching:
        nursery.start_soon(replace)
        await trio.sleep(1)
        rig.members[1] = rig.new_member()
        await array.add_spare(rig.members[1])
        assert not refused
    await trio.sleep(60)
    assert array.member_set.config.record(1).state == "active"
    assert not array.member_set.spares
    await rig.compare()


async def test_a_member_that_fails_while_its_rebuild_ends_stays_failed() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=200)
    array = rig.array
    await rig.put(0, random.Random(1).randbytes(len(rig.model)))
    await array.fail_disk(1)
    job = (await array.replace_disk(1, new := rig.new_member()))["job"]
    rig.members[1] = new
    rebuild = next(each for each in array.jobs.running() if each.job_id == job)
    assert isinstance(rebuild, Rebuild)
    save = rebuild.save

    async def save_and_fail() -> None:
        await save()
        array.member_set.fail(1, "it broke while the last checkpoint was written")

    rebuild.save = save_and_fail  # type: ignore[method-assign]
    await rebuild.finished.wait()
    assert array.member_set.config.record(1).state == "failed"
    assert array.member_set.lost == {1}
    await rig.put(0, random.Random(2).randbytes(len(rig.model)))
    await rig.reopen()
    assert rig.array.member_set.lost == {1}
    await rig.compare()
