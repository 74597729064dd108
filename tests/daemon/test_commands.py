"""The daemon's commands on a real array of RAM members, in virtual time, without a mount."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.cli.output import Output
from raidx_fuse.cli.status_text import dry_run_text, job_amount
from raidx_fuse.errors import RaidxError, Reason, SignatureFoundError, TooSmallError, UsageError
from raidx_fuse.members.ram import RamMember
from tests.daemon.conftest import Desk
from tests.support.reasons import because
from tests.support.spy import restarted

MOUNTPOINT = "/mnt/array"


async def test_status_is_the_arrays_with_the_mount_and_its_images(desk: Desk) -> None:
    status = await desk.ask("status")
    assert status["state"] == "clean"
    assert status["redundancy_left"] == 1
    assert status["mountpoint"] == MOUNTPOINT
    size = desk.array.size_bytes
    assert status["volumes"] == [{"name": "disk", "size": size, "path": f"{MOUNTPOINT}/disk"}]
    assert [member["role"] for member in status["members"]] == [0, 1, 2, 3]
    assert status["action"] is None


async def test_the_chunk_map_is_small_and_half_full_as_the_array(desk: Desk) -> None:
    told = await desk.ask("chunk-map", parts=8)
    assert [member["role"] for member in told["members"]] == [0, 1, 2, 3]
    for member in told["members"]:
        assert member["written_percent"][:3] == [100] * 3
        assert member["written_percent"][-3:] == [0] * 3
    with pytest.raises(UsageError, match="257 parts of a member are out of range"):
        await desk.ask("chunk-map", parts=257)


async def test_fail_then_replace_rebuilds_and_says_what_to_do_meanwhile(desk: Desk) -> None:
    before = bytes(await desk.array.read(0, desk.array.size_bytes))
    assert (await desk.ask("fail-disk", member="2"))["role"] == 2
    status = await desk.ask("status")
    assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
    assert status["action"] == (f"replace member 2: raidx replace-disk {MOUNTPOINT} 2 NEW_MEMBER")
    await desk.ask("set", key="speed_max", value="4KiB")
    answer = await desk.ask("replace-disk", old="2", new="fresh")
    await desk.ask("job-cancel", job=answer["job"])
    action = (await desk.ask("status"))["action"]
    assert action.startswith("the rebuild of member 2 was aborted: unmount, then mount")
    await desk.ask("set", key="speed_max", value="0")
    answer = await desk.ask("replace-disk", old="2", new="another")
    ended = await desk.ask("job-wait", job=answer["job"])
    assert (ended["kind"], ended["state"]) == ("rebuild", "done")
    assert ended["done"] == ended["total"] > 0
    assert (await desk.ask("status"))["state"] == "clean"
    assert bytes(await desk.array.read(0, desk.array.size_bytes)) == before
    assert desk.shelf.released == []


async def test_a_spare_is_taken_in_used_and_let_go(desk: Desk) -> None:
    (added,) = (await desk.ask("add-disk", members=["s"], role="spare"))["added"]
    states = [member["state"] for member in (await desk.ask("status"))["members"]]
    assert states == ["active"] * 4 + ["spare"]
    await desk.ask("remove-disk", member=added["member_uuid"])
    assert len((await desk.ask("status"))["members"]) == 4
    await desk.ask("add-disk", members=["t"], role="spare")
    await desk.ask("fail-disk", member="0")
    await trio.sleep(60)
    status = await desk.ask("status")
    assert status["state"] == "clean"
    assert [job["kind"] for job in (await desk.ask("job-list"))["jobs"]] == ["rebuild"]


@pytest.mark.rig("upc", 6)
async def test_two_spares_for_two_vacant_roles_are_rebuilt_in_one_go(desk: Desk) -> None:
    before = bytes(await desk.array.read(0, desk.array.size_bytes))
    for role in (1, 4):
        await desk.ask("fail-disk", member=str(role))
    await desk.ask("add-disk", members=["s", "t"], role="spare")
    await trio.sleep(60)
    (job,) = (await desk.ask("job-list"))["jobs"]
    assert (job["kind"], job["state"], job["roles"]) == ("rebuild", "done", [1, 4])
    assert (await desk.ask("status"))["state"] == "clean"
    assert bytes(await desk.array.read(0, desk.array.size_bytes)) == before


@pytest.mark.rig("upc", 6)
async def test_a_second_replacement_waits_its_turn_as_a_spare(desk: Desk) -> None:
    before = bytes(await desk.array.read(0, desk.array.size_bytes))
    await desk.ask("set", key="speed_max", value="64KiB")
    for role in (1, 4):
        await desk.ask("fail-disk", member=str(role))
    first = await desk.ask("replace-disk", old="1", new="s")
    with pytest.raises(RaidxError, match="a rebuild is running") as refusal:
        await desk.ask("replace-disk", old="4", new="t")
    assert "--as spare" in str(refusal.value.action)
    await desk.ask("add-disk", members=["t"], role="spare")
    await desk.ask("set", key="speed_max", value="0")
    await desk.ask("job-wait", job=first["job"])
    await trio.sleep(60)
    jobs = (await desk.ask("job-list"))["jobs"]
    assert [(job["state"], job["roles"]) for job in jobs] == [("done", [1]), ("done", [4])]
    assert (await desk.ask("status"))["state"] == "clean"
    assert bytes(await desk.array.read(0, desk.array.size_bytes)) == before


async def test_a_member_that_is_back_is_caught_up_as_the_dry_run_says(desk: Desk) -> None:
    await trio.sleep(30)  # the log is at its home places, no region is dirty
    await desk.ask("fail-disk", member="1")
    await desk.array.write(4096, bytes(5000))
    whole = await desk.ask("replace-disk", old="1", new="fresh", dry_run=True)
    asked = await desk.ask("replace-disk", old="1", new="back", dry_run=True)
    assert asked["does"] == "lets back catch up in role 1"
    assert 0 < asked["bytes_written"] < whole["bytes_written"]
    begun = await desk.ask("replace-disk", old="1", new="back")
    assert begun["catches_up"] is True
    (job,) = (await desk.ask("status"))["jobs"]
    assert job["catches_up"] is True
    assert job_amount(job, Output()).startswith("catching up, ")
    done = await desk.ask("job-wait", job=begun["job"])
    assert done["done"] == asked["bytes_written"]


async def test_dry_runs_tell_the_cost_and_change_nothing(desk: Desk) -> None:
    before = desk.array.member_set.config
    copy = await desk.ask("replace-disk", old="2", new="fresh", dry_run=True)
    assert copy["does"] == "copies role 2 to fresh; its member stays in use until then"
    assert copy["bytes_read"] == copy["bytes_written"] > 0
    assert (copy["redundancy_reduced"], copy["redundancy_reduced_seconds"]) == (False, 0)
    assert copy["redundancy"] == {"now": 1, "worst": 1, "end": 1}
    fail = await desk.ask("fail-disk", member="2", dry_run=True)
    assert (fail["bytes_moved"], fail["redundancy_reduced_seconds"]) == (0, None)
    assert fail["redundancy"] == {"now": 1, "worst": 0, "end": 0}
    assert "reduced until the member is replaced" in dry_run_text(fail, Output()).plain
    add = await desk.ask("add-disk", members=["n"], role="spare", dry_run=True)
    assert not add["redundancy_reduced"]
    assert add["redundancy"] == {"now": 1, "worst": 1, "end": 1}
    assert desk.array.member_set.config == before
    await desk.ask("fail-disk", member="2")
    before = desk.array.member_set.config
    replace = await desk.ask("replace-disk", old="2", new="fresh", dry_run=True)
    written = replace["bytes_written"]
    assert 0 < written <= desk.array.context.layout.member_chunks * 4096
    assert replace["bytes_read"] == 3 * written  # single parity: every other member
    assert replace["bytes_moved"] == 4 * written
    assert replace["rate_source"] == "assumed"
    assert replace["redundancy_reduced"]
    assert replace["redundancy_reduced_seconds"] == replace["seconds"] > 0
    assert replace["redundancy"] == {"now": 0, "worst": 0, "end": 1}
    for member, words in (("9", "no role 9"), ("zzzz", "no member")):
        with pytest.raises(UsageError, match=words):
            await desk.ask("fail-disk", member=member, dry_run=True)
    with pytest.raises(SignatureFoundError):
        await desk.ask("replace-disk", old="2", new="used", dry_run=True)
    with pytest.raises(RaidxError, match="no such file"):
        await desk.ask("add-disk", members=["absent"], role="spare", dry_run=True)
    assert desk.array.member_set.config == before
    assert desk.shelf.opened == {}


async def test_a_dry_run_estimate_is_what_the_rebuild_then_moves(desk: Desk) -> None:
    told = await desk.ask("replace-disk", old="2", new="fresh", dry_run=True)
    answer = await desk.ask("replace-disk", old="2", new="fresh")
    ended = await desk.ask("job-wait", job=answer["job"])
    assert ended["total"] == told["bytes_written"]


@pytest.mark.rig("raid0", 2)
async def test_fail_is_refused_when_it_would_lose_data_also_in_a_dry_run(desk: Desk) -> None:
    for dry_run in (True, False):
        with pytest.raises(RaidxError, match="cannot be spared"):
            await desk.ask("fail-disk", member="0", dry_run=dry_run)


async def test_a_member_that_would_take_chunks_with_it_goes_only_with_the_users_word(
    desk: Desk,
) -> None:
    """After a crash without a journal, until the resync is done; the dry run says the same."""
    await desk.ask("set", key="journal", value="none")
    await desk.ask("set", key="speed_max", value="4KiB")
    await desk.array.write(0, bytes(range(256)) * (desk.array.size_bytes // 512))
    await desk.array.flush()
    rams = [member.inner for member in desk.rig.members]
    images = [bytes(ram.memory) for ram in rams if isinstance(ram, RamMember)]
    async with restarted(images) as array:
        after = type(desk)(desk.rig, array)
        new = {"old": "1", "new": "fresh"}
        for dry_run in (True, False):
            with pytest.raises(RaidxError, match="would be lost") as refusal:
                await after.ask("fail-disk", member="1", dry_run=dry_run)
            assert "--lose-data" in str(refusal.value)
            assert "\n" not in str(refusal.value)
        assert not array.member_set.lost
        told = await after.ask("fail-disk", member="1", lose_data=True, dry_run=True)
        assert told["chunks_at_stake"] > 0
        await after.ask("fail-disk", member="1", lose_data=True)
        assert (await after.ask("status"))["lost_chunks"] == told["chunks_at_stake"]
        await after.ask("replace-disk", **new)  # nothing more is lost by that


async def test_scrub_and_its_job(desk: Desk) -> None:
    job = (await desk.ask("scrub"))["job"]
    assert (await desk.ask("job-pause", job=job))["paused"]
    assert (await desk.ask("job-limit", job=job, minimum=1 << 20, maximum=0))["id"] == job
    await trio.sleep(10)
    (listed,) = (await desk.ask("job-list"))["jobs"]
    assert listed["state"] == "paused"
    assert (await desk.ask("status"))["action"] == (
        f"scrub is paused: raidx job {MOUNTPOINT} resume {job}"
    )
    await desk.ask("job-resume", job=job)
    ended = await desk.ask("job-wait", job=job)
    assert (ended["state"], ended["mismatches"], ended["uncorrected"]) == ("done", 0, 0)
    again = (await desk.ask("scrub", repair=True))["job"]
    assert (await desk.ask("job-cancel", job=again))["state"] in ("cancelled", "done")
    for name in ("job-pause", "job-resume", "job-cancel", "job-wait", "job-limit"):
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_JOB)):
            await desk.ask(name, job=99)
    with pytest.raises(UsageError, match="out of range"):
        await desk.ask("job-limit", job=again, minimum=-1)


async def test_settings(desk: Desk) -> None:
    everything = (await desk.ask("get"))["settings"]
    assert everything["parity.policy"] == "traditional"
    assert await desk.ask("set", key="speed_max", value="1M") == {
        "settings": {"speed_max": 1 << 20}
    }
    assert await desk.ask("get", key="speed_max") == {"settings": {"speed_max": 1 << 20}}
    with pytest.raises(UsageError, match="parity"):
        await desk.ask("set", key="parity.polcy", value="rmw")


async def test_statistics_of_an_interval_are_those_of_its_requests_alone(desk: Desk) -> None:
    whole = await desk.ask("stats")
    assert whole["array"]["writes"] == 1
    await desk.array.context.journal.drain()  # its lazy placement is no request of the interval
    await desk.array.flush()
    answers: list[dict[str, Any]] = []

    async def measure() -> None:
        answers.append(await desk.ask("stats", interval_s=10.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure)
        await trio.sleep(1)
        for _ in range(5):
            await desk.array.read(0, 4096)
    (answer,) = answers
    assert answer["interval_seconds"] == pytest.approx(10.0)
    assert (answer["array"]["reads"], answer["array"]["writes"]) == (5, 0)
    assert answer["array"]["read_bytes"] == 5 * 4096
    assert sum(member["reads"] for member in answer["members"]) == 5
    assert sum(member["write_bytes"] for member in answer["members"]) == 0
    assert all(0 <= member["utilisation"] <= 1 for member in answer["members"])
    total = await desk.ask("stats")
    assert total["array"]["reads"] == whole["array"]["reads"] + 5
    for wrong in (0, -1, 1e9):
        with pytest.raises(UsageError, match="interval"):
            await desk.ask("stats", interval_s=wrong)


async def test_explain_says_what_a_write_would_do(desk: Desk) -> None:
    plan = await desk.ask("explain", offset=0, length=512, write=True)
    assert (plan["operation"], plan["writes"]) == ("write", 2)
    with pytest.raises(UsageError):
        await desk.ask("explain", offset=-1)
    assert (await desk.ask("explain", stripe=1))["stripe"] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("reboot", {}, "no command 'reboot'"),
        ("status", {"loud": True}, "no argument 'loud'"),
        ("fail-disk", {}, "needs the argument 'member'"),
        ("fail-disk", {"member": 2}, "member cannot be 2"),
        ("fail-disk", {"member": "2", "dry_run": 1}, "dry_run cannot be 1"),
        ("add-disk", {"members": "n", "role": "spare"}, "members cannot be 'n'"),
        ("add-disk", {"members": [1], "role": "spare"}, "members cannot be"),
        ("job-wait", {"job": True}, "job cannot be True"),
        ("job-wait", {"job": None}, "job cannot be None"),
        ("stats", {"interval_s": "1"}, "interval_s cannot be '1'"),
        ("explain", {"offset": 1.5}, "offset cannot be 1.5"),
    ],
)
async def test_requests_that_do_not_fit_are_refused(
    name: str, arguments: dict[str, Any], words: str, desk: Desk
) -> None:
    with pytest.raises(UsageError, match=words):
        await desk.commands.handle(name, arguments)


# -- growth, restripe, removal ---------------------------------------------------------------------


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
    desk.rig.member_bytes //= 2
    with pytest.raises(TooSmallError):
        await desk.ask("replace-disk", old="0", new="small")
    assert desk.shelf.released == [desk.shelf.opened["small"]]
    desk.rig.member_bytes *= 2
    await desk.ask("replace-disk", old="0", new="fresh")  # a copy: that is no second loss
    with pytest.raises(RaidxError, check=because(Reason.JOB_RUNNING)):
        await desk.ask("replace-disk", old="1", new="other")
    assert "other" not in desk.shelf.opened
    (job,) = (await desk.ask("status"))["jobs"]
    await desk.ask("job-cancel", job=job["id"])
    assert (await desk.ask("status"))["state"] == "degraded"
    await desk.ask("replace-disk", old="1", new="used", overwrite_signature=True)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_cannot_begin_costs_nothing_and_opens_nothing(desk: Desk, dry_run: bool) -> None:
    await desk.ask("fail-disk", member="1")
    with pytest.raises(UsageError, check=because(Reason.ALREADY)):
        await desk.ask("fail-disk", member="1", dry_run=dry_run)
    await desk.ask("set", key="speed_max", value="1KiB")
    await desk.ask("replace-disk", old="1", new="fresh")
    (added,) = (await desk.ask("add-disk", members=["s"], role="spare"))["added"]
    with pytest.raises(UsageError, match="is a spare; remove it instead"):
        await desk.ask("replace-disk", old=added["member_uuid"], new="n", dry_run=dry_run)
    for command, words in (
        ("replace-disk", {"old": "0", "new": "n"}),
        ("add-disk", {"members": ["n"]}),
        ("reshape", {"members": ["n"]}),
    ):
        with pytest.raises(RaidxError, check=because(Reason.JOB_RUNNING)):
            await desk.ask(command, **words, dry_run=dry_run)
    assert "n" not in desk.shelf.opened


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.rig("raid0")
async def test_a_spare_is_of_no_use_without_redundancy(desk: Desk, dry_run: bool) -> None:
    with pytest.raises(RaidxError, match="a spare would be useless"):
        await desk.ask("add-disk", members=["n"], role="spare", dry_run=dry_run)
    assert desk.shelf.opened == {}


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


@pytest.mark.rig("raid0")
async def test_a_member_in_use_is_copied_though_nothing_else_has_its_content(desk: Desk) -> None:
    told = await desk.ask("replace-disk", old="2", new="fresh", dry_run=True)
    assert told["bytes_read"] == told["bytes_written"] == told["bytes_moved"] // 2 > 0
    assert told["redundancy"] == {"now": 0, "worst": 0, "end": 0}
    begun = await desk.ask("replace-disk", old="2", new="fresh")
    assert (await desk.ask("job-wait", job=begun["job"]))["done"] == told["bytes_written"]


@pytest.mark.rig("raid4")
async def test_growth_is_told_before_it_is_done_and_steered_while_it_is(desk: Desk) -> None:
    array, size = desk.array, desk.array.size_bytes
    desk.array.on_size.append(lambda: desk.volume.resize(array.size_bytes))
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
    desk.array.on_release.append(desk.shelf.released.append)
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
    desk.array.on_size.append(lambda: desk.volume.resize(array.size_bytes))
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
    with pytest.raises(RaidxError, match="the layout is changing"):
        await desk.ask("replace-disk", old="4", new="b", dry_run=True)
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
