"""The daemon's commands for growths and restripes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from raidx_fuse.cli.output import Output
from raidx_fuse.cli.status_text import dry_run_text
from raidx_fuse.errors import RaidxError, Reason, SignatureFoundError, TooSmallError, UsageError
from tests.daemon.conftest import Desk
from tests.support.reasons import because


async def test_redundancy_is_given_up_only_when_accepted(desk: Desk) -> None:
    with pytest.raises(UsageError, check=because(Reason.LOSES_REDUNDANCY)):
        await desk.ask("reshape", members=[], layout="raid0")
    begun = await desk.ask("reshape", members=[], layout="raid0", lose_redundancy=True)
    ended = await desk.ask("job-wait", job=begun["job"])
    assert ended["state"] == "done"
    assert (await desk.ask("status"))["redundancy_left"] == 0


async def test_newcomers_that_do_not_join_are_released(desk: Desk) -> None:
    with pytest.raises(SignatureFoundError):
        await desk.ask("replace-disk", old="0", new="used")
    with pytest.raises(UsageError):
        await desk.ask("replace-disk", old="9", new="fresh")
    assert desk.shelf.opened == {}
    await desk.ask("fail-disk", member="1")
    await desk.array.write(0, bytes(desk.array.size_bytes))
    await desk.ask("set", key="speed_max", value="1KiB")
    await desk.ask("replace-disk", old="0", new="fresh")  # a copy: that is no second loss
    with pytest.raises(RaidxError, check=because(Reason.JOB_RUNNING)):
        await desk.ask("replace-disk", old="1", new="other")
    assert desk.shelf.released == [desk.shelf.opened["other"]]
    (job,) = (await desk.ask("status"))["jobs"]
    await desk.ask("job-cancel", job=job["id"])
    assert (await desk.ask("status"))["state"] == "degraded"
    await desk.ask("replace-disk", old="1", new="used", overwrite_signature=True)


@pytest.mark.rig("upc", 4)
async def test_growth_is_refused_in_one_honest_line(desk: Desk) -> None:
    able = "only raid0, raid4, raid5, rdp, evenodd can"
    with pytest.raises(RaidxError, match=f"fewest chunks: {able}") as refused:
        await desk.ask("add-disk", members=["n"])
    assert refused.value.exit_status == 1
    assert "--method restripe" in str(refused.value)
    with pytest.raises(UsageError, match="as 'parity'"):
        await desk.ask("add-disk", members=["n"], role="parity")
    assert desk.shelf.opened == {}


@pytest.mark.rig("raid4")
async def test_growth_is_told_before_it_is_done_and_steered_while_it_is(desk: Desk) -> None:
    array, size = desk.array, desk.array.size_bytes
    desk.array.grow_operation.on_size.append(lambda: desk.volume.resize(array.size_bytes))
    dry = await desk.ask("add-disk", members=["a", "b"], dry_run=True)
    assert dry["does"] == "grows from 4 to 6 members"
    assert (dry["size_before"], dry["size_after"]) == (size, size * 5 // 3)
    # 2 of 5 of the written blocks move, give or take an incomplete region.
    assert dry["bytes_read"] == dry["bytes_written"] == dry["bytes_moved"] // 2
    assert abs(dry["bytes_read"] - size // 2 * 2 / 5) <= 6 * 4096
    assert not dry["redundancy_reduced"]
    assert desk.shelf.opened == {}
    begun = await desk.ask("add-disk", members=["a", "b"])
    assert (begun["size_before"], begun["size_after"]) == (size, size * 5 // 3)
    paused = await desk.ask("job-pause", job=begun["job"])
    assert paused["paused"]
    status = await desk.ask("status")
    assert status["state"] == "growing"
    assert "resume" in status["action"]
    with pytest.raises(RaidxError, check=because(Reason.JOB_RUNNING)):
        await desk.ask("add-disk", members=["c"])
    await desk.ask("job-resume", job=begun["job"])
    ended = await desk.ask("job-wait", job=begun["job"])
    assert ended["state"] == "done"
    assert ended["done"] == dry["bytes_read"]
    status = await desk.ask("status")
    assert (status["state"], status["size"]) == ("clean", size * 5 // 3)
    assert desk.volume.size_bytes == size * 5 // 3


@pytest.mark.rig("raid4")
async def test_growth_refuses_what_it_cannot_do_and_gives_the_newcomers_back(desk: Desk) -> None:
    before = desk.array.member_set.config
    with pytest.raises(UsageError, match="255"):
        await desk.ask("add-disk", members=[f"m{n}" for n in range(252)], dry_run=True)
    for twice in ({"members": ["a", "b", "a,size=1GiB"]}, {"members": ["a"], "surrogate": "a"}):
        with pytest.raises(UsageError, match="a is named twice"):
            await desk.ask("add-disk", **twice, dry_run=True)
    with pytest.raises(SignatureFoundError):
        await desk.ask("add-disk", members=["a", "used"])
    assert desk.shelf.released == [desk.shelf.opened["a"]]
    desk.rig.member_bytes //= 2
    with pytest.raises(TooSmallError):
        await desk.ask("add-disk", members=["small"])
    assert desk.shelf.released[-1] is desk.shelf.opened["small"]
    assert desk.array.member_set.config == before
    await desk.ask("fail-disk", member="1")
    with pytest.raises(RaidxError, check=because(Reason.DEGRADED)):
        await desk.ask("add-disk", members=["b"])


@pytest.mark.rig("raid4")
async def test_a_cancelled_growth_gives_its_member_back_when_it_is_undone(desk: Desk) -> None:
    size = desk.array.size_bytes
    desk.array.grow_operation.on_release.append(desk.shelf.released.append)
    await desk.ask("set", key="speed_max", value="64KiB")
    begun = await desk.ask("add-disk", members=["a"])
    await trio.sleep(1.0)
    answer = await desk.ask("job-cancel", job=begun["job"])
    assert answer["going_back"]
    assert answer["state"] == "running"  # it takes as long as it went
    ended = await desk.ask("job-wait", job=begun["job"])
    assert ended["state"] == "cancelled"
    assert desk.shelf.released == [desk.shelf.opened["a"]]
    status = await desk.ask("status")
    assert (status["state"], status["size"], len(status["members"])) == ("clean", size, 4)


async def test_a_restripe_is_told_before_it_is_done_and_steered_while_it_is(desk: Desk) -> None:
    array, size = desk.array, desk.array.size_bytes
    desk.array.restripe_operation.on_size.append(lambda: desk.volume.resize(array.size_bytes))
    before = bytes(await array.read(0, size))
    dry = await desk.ask("reshape", members=["a"], layout="raid4", dry_run=True)
    assert dry["does"] == "moves all chunks from raid5 on 4 members to raid4 on 5"
    assert (dry["size_before"], dry["size_after"]) == (size, size * 4 // 3)
    assert dry["bytes_written"] == round(dry["bytes_read"] * 5 / 4) > 0
    assert (dry["redundancy_reduced"], dry["bytes_logged"]) == (False, 0)
    dry = await desk.ask("reshape", members=[], layout="raid0", dry_run=True)
    assert (dry["redundancy_reduced"], dry["redundancy_left"]) == (True, 0)
    assert dry["redundancy_reduced_seconds"] is None
    assert dry["redundancy"] == {"now": 1, "worst": 0, "end": 0}
    assert "redundancy: lost for good; no further loss" in dry_run_text(dry, Output()).plain
    with pytest.raises(UsageError, match="fewer lost members: 0, not 1; accept this with"):
        await desk.ask("reshape", members=[], layout="raid0")
    dry = await desk.ask("reshape", members=[], layout="raid4", dry_run=True)
    assert dry["bytes_logged"] == 2 * dry["bytes_written"], "places overlap: by the journal"
    assert desk.shelf.opened == {}
    begun = await desk.ask("reshape", members=["a"], layout="raid4")
    assert (begun["layout_before"], begun["layout_after"]) == ("raid5", "raid4")
    assert (begun["members_before"], begun["members_after"]) == (4, 5)
    await desk.ask("job-pause", job=begun["job"])
    status = await desk.ask("status")
    assert (status["state"], status["redundancy_left"]) == ("restriping", 1)
    assert "resume" in status["action"]
    for write in (False, True):
        assert (await desk.ask("explain", offset=0, length=8192, write=write))["stripes"]
    dry = await desk.ask("replace-disk", old="4", new="b", dry_run=True)
    assert dry["bytes_moved"] > 0
    with pytest.raises(RaidxError, check=because(Reason.JOB_RUNNING)):
        await desk.ask("reshape", members=[], layout="raid0")
    await desk.ask("job-resume", job=begun["job"])
    ended = await desk.ask("job-wait", job=begun["job"])
    assert ended["state"] == "done"
    status = await desk.ask("status")
    assert (status["state"], status["size"]) == ("clean", size * 4 // 3)
    assert (status["layout"], status["layout_parameters"]) == ("raid4", {})
    assert desk.volume.size_bytes == size * 4 // 3
    assert bytes(await array.read(0, size)) == before


async def test_a_restripe_that_does_not_begin_gives_the_newcomers_back(desk: Desk) -> None:
    with pytest.raises(SignatureFoundError):
        await desk.ask("reshape", members=["a", "used"])
    assert desk.shelf.released == [desk.shelf.opened["a"]]
    with pytest.raises(UsageError, check=because(Reason.ALREADY)):
        await desk.ask("reshape", members=[])
    assert (await desk.ask("status"))["state"] == "clean"


async def test_a_removal_is_told_before_it_is_done(desk: Desk) -> None:
    array = desk.array
    size = array.size_bytes
    with pytest.raises(UsageError, match=r"raid5 on 3 members holds .* volume resize"):
        await desk.ask("remove-disk", member="3", dry_run=True)
    begun = await desk.ask("add-disk", members=["a", "b"])
    await desk.ask("job-wait", job=begun["job"])
    with pytest.raises(UsageError, match="raid5 on 5 members hold"):
        await desk.ask("remove-disk", member="5", dry_run=True)
    array.member_set.change(lambda c: replace(c, size_bytes=size))  # as by create --image-size
    dry = await desk.ask("remove-disk", member="5", dry_run=True)
    assert dry["does"] == "shrinks from 6 to 4 members, the last ones leave"
    # 2 of 6 of the written cells of raid5, which has four in a stripe, move back.
    assert dry["bytes_read"] == dry["bytes_written"]
    assert abs(dry["bytes_written"] - size // 2 * 4 / 3 * 2 / 6) <= 8 * 4096
    begun = await desk.ask("remove-disk", member="5")
    assert (begun["members_before"], begun["members_after"]) == (6, 4)
    ended = await desk.ask("job-wait", job=begun["job"])
    assert ended["state"] == "done"
    assert array.member_set.config.width == 4
