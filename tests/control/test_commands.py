"""The daemon's commands on a real array of RAM members, in virtual time, without a mount."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raidx_fuse.commands import Commands
from raidx_fuse.errors import RaidxError, SignatureFoundError, UsageError
from raidx_fuse.members.base import Member
from raidx_fuse.testing.arrays import Rig
from raidx_fuse.testing.virtual import run
from raidx_fuse.volume import Volume

MOUNTPOINT = "/mnt/array"


class Report:
    """What a mount would report."""

    def as_dict(self) -> dict[str, Any]:
        """Return the mount point and one protection."""
        return {"mountpoint": MOUNTPOINT, "protections": {}, "bugs": 0}


class Shelf:
    """Hands out members by name; "used" carries a signature, "absent" must be created."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.opened: dict[str, Member] = {}
        self.released: list[Member] = []

    async def open(
        self, path: str, *, overwrite_signature: bool, create_bytes: int | None
    ) -> Member:
        """Return a fresh member."""
        await self.check(
            path, overwrite_signature=overwrite_signature, may_create=create_bytes is not None
        )
        self.opened[path] = self.rig.new_member()
        return self.opened[path]

    async def check(self, path: str, *, overwrite_signature: bool, may_create: bool) -> int | None:
        """Refuse what cannot be used."""
        if path == "used" and not overwrite_signature:
            raise SignatureFoundError("used carries an ext4 file system")
        if path == "absent" and not may_create:
            raise RaidxError("absent: no such file")
        return None

    def release(self, member: Member) -> None:
        """Note that a member is not wanted."""
        self.released.append(member)


class Desk:
    """The commands of a rig's array; *ask* sends one as the control socket does."""

    def __init__(self, rig: Rig) -> None:
        assert rig.array is not None
        self.rig = rig
        self.array = rig.array
        self.shelf = Shelf(rig)
        array = rig.array
        self.volume = Volume(
            "disk", array.size_bytes, read=array.read, write=array.write, flush=array.flush
        )
        self.commands = Commands(array, [self.volume], self.shelf)
        self.commands.mounted(Report())

    async def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        return await self.commands.handle(name, arguments)


def with_desk(
    scene: Callable[[Desk], Awaitable[None]], layout: str = "raid5", width: int = 4
) -> None:
    """Play *scene* on an array of *width* RAM members, half of it written."""

    async def play() -> None:
        rig = Rig(layout, width)
        array = await rig.create()
        try:
            await array.write(0, bytes(range(256)) * (array.size_bytes // 512))
            await scene(Desk(rig))
        finally:
            await rig.close()

    run(play)


def test_status_is_the_arrays_with_the_mount_and_its_images() -> None:
    async def scene(desk: Desk) -> None:
        status = await desk.ask("status")
        assert status["state"] == "clean"
        assert status["redundancy_left"] == 1
        assert status["mountpoint"] == MOUNTPOINT
        size = desk.array.size_bytes
        assert status["volumes"] == [{"name": "disk", "size": size, "path": f"{MOUNTPOINT}/disk"}]
        assert [member["role"] for member in status["members"]] == [0, 1, 2, 3]
        assert status["action"] is None

    with_desk(scene)


def test_fail_then_replace_rebuilds_and_says_what_to_do_meanwhile() -> None:
    async def scene(desk: Desk) -> None:
        before = bytes(await desk.array.read(0, desk.array.size_bytes))
        assert (await desk.ask("fail-disk", member="2"))["role"] == 2
        status = await desk.ask("status")
        assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
        assert status["action"] == (
            f"replace member 2: raidx replace-disk {MOUNTPOINT} 2 NEW_MEMBER"
        )
        answer = await desk.ask("replace-disk", old="2", new="fresh")
        ended = await desk.ask("job-wait", job=answer["job"])
        assert (ended["kind"], ended["state"]) == ("rebuild", "done")
        assert ended["done"] == ended["total"] > 0
        assert (await desk.ask("status"))["state"] == "clean"
        assert bytes(await desk.array.read(0, desk.array.size_bytes)) == before
        assert desk.shelf.released == []

    with_desk(scene)


def test_a_spare_is_taken_in_used_and_let_go() -> None:
    async def scene(desk: Desk) -> None:
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

    with_desk(scene)


def test_two_spares_for_two_vacant_roles_are_rebuilt_in_one_go() -> None:
    async def scene(desk: Desk) -> None:
        before = bytes(await desk.array.read(0, desk.array.size_bytes))
        for role in (1, 4):
            await desk.ask("fail-disk", member=str(role))
        await desk.ask("add-disk", members=["s", "t"], role="spare")
        await trio.sleep(60)
        (job,) = (await desk.ask("job-list"))["jobs"]
        assert (job["kind"], job["state"], job["roles"]) == ("rebuild", "done", [1, 4])
        assert (await desk.ask("status"))["state"] == "clean"
        assert bytes(await desk.array.read(0, desk.array.size_bytes)) == before

    with_desk(scene, "upc", 6)


def test_a_second_replacement_waits_its_turn_as_a_spare() -> None:
    async def scene(desk: Desk) -> None:
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

    with_desk(scene, "upc", 6)


def test_newcomers_that_do_not_join_are_released() -> None:
    async def scene(desk: Desk) -> None:
        with pytest.raises(SignatureFoundError):
            await desk.ask("replace-disk", old="0", new="used")
        with pytest.raises(UsageError):
            await desk.ask("replace-disk", old="9", new="fresh")
        assert desk.shelf.opened == {}
        await desk.ask("fail-disk", member="1")
        with pytest.raises(RaidxError, match="cannot"):
            await desk.ask("replace-disk", old="0", new="fresh")  # a second loss
        assert desk.shelf.released == [desk.shelf.opened["fresh"]]
        assert (await desk.ask("status"))["state"] == "degraded"
        await desk.ask("replace-disk", old="1", new="used", overwrite_signature=True)

    with_desk(scene)


def test_growth_is_refused_in_one_honest_line() -> None:
    async def scene(desk: Desk) -> None:
        with pytest.raises(RaidxError, match="fewest moves: only raid0, raid4 can") as refused:
            await desk.ask("add-disk", members=["n"])
        assert refused.value.exit_status == 1
        with pytest.raises(UsageError, match="as 'parity'"):
            await desk.ask("add-disk", members=["n"], role="parity")
        assert desk.shelf.opened == {}

    with_desk(scene)


def test_dry_runs_tell_the_cost_and_change_nothing() -> None:
    async def scene(desk: Desk) -> None:
        before = desk.array.store.config
        replace = await desk.ask("replace-disk", old="2", new="fresh", dry_run=True)
        written = replace["bytes_written"]
        assert 0 < written <= desk.array.core.layout.member_chunks * 4096
        assert replace["bytes_read"] == 3 * written  # single parity: every other member
        assert replace["bytes_moved"] == 4 * written
        assert replace["rate_source"] == "assumed"
        assert replace["redundancy_reduced"]
        assert replace["redundancy_reduced_seconds"] == replace["seconds"] > 0
        fail = await desk.ask("fail-disk", member="2", dry_run=True)
        assert (fail["bytes_moved"], fail["redundancy_reduced_seconds"]) == (0, None)
        add = await desk.ask("add-disk", members=["n"], role="spare", dry_run=True)
        assert not add["redundancy_reduced"]
        for member, words in (("9", "no role 9"), ("zzzz", "no member")):
            with pytest.raises(UsageError, match=words):
                await desk.ask("fail-disk", member=member, dry_run=True)
        with pytest.raises(SignatureFoundError):
            await desk.ask("replace-disk", old="2", new="used", dry_run=True)
        with pytest.raises(RaidxError, match="no such file"):
            await desk.ask("add-disk", members=["absent"], role="spare", dry_run=True)
        assert desk.array.store.config == before
        assert desk.shelf.opened == {}

    with_desk(scene)


def test_a_dry_run_estimate_is_what_the_rebuild_then_moves() -> None:
    async def scene(desk: Desk) -> None:
        told = await desk.ask("replace-disk", old="2", new="fresh", dry_run=True)
        answer = await desk.ask("replace-disk", old="2", new="fresh")
        ended = await desk.ask("job-wait", job=answer["job"])
        assert ended["total"] == told["bytes_written"]

    with_desk(scene)


def test_fail_is_refused_when_it_would_lose_data_also_in_a_dry_run() -> None:
    async def scene(desk: Desk) -> None:
        for dry_run in (True, False):
            with pytest.raises(RaidxError, match="cannot be spared"):
                await desk.ask("fail-disk", member="0", dry_run=dry_run)

    with_desk(scene, "raid0", 2)


def test_scrub_and_its_job() -> None:
    async def scene(desk: Desk) -> None:
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
            with pytest.raises(UsageError, match="no job 99"):
                await desk.ask(name, job=99)
        with pytest.raises(UsageError, match="not possible"):
            await desk.ask("job-limit", job=again, minimum=-1)

    with_desk(scene)


def test_settings() -> None:
    async def scene(desk: Desk) -> None:
        everything = (await desk.ask("get"))["settings"]
        assert everything["parity.policy"] == "traditional"
        assert await desk.ask("set", key="speed_max", value="1M") == {
            "settings": {"speed_max": 1 << 20}
        }
        assert await desk.ask("get", key="speed_max") == {"settings": {"speed_max": 1 << 20}}
        with pytest.raises(UsageError, match="parity"):
            await desk.ask("set", key="parity.polcy", value="rmw")

    with_desk(scene)


def test_statistics_of_an_interval_are_those_of_its_requests_alone() -> None:
    async def scene(desk: Desk) -> None:
        whole = await desk.ask("stats")
        assert whole["array"]["writes"] == 1
        await desk.array.core.journal.drain()  # its lazy placement is no request of the interval
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

    with_desk(scene)


def test_explain_says_what_a_write_would_do() -> None:
    async def scene(desk: Desk) -> None:
        plan = await desk.ask("explain", offset=0, length=512, write=True)
        assert (plan["operation"], plan["writes"]) == ("write", 2)
        with pytest.raises(UsageError):
            await desk.ask("explain", offset=-1)

    with_desk(scene)


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
def test_requests_that_do_not_fit_are_refused(
    name: str, arguments: dict[str, Any], words: str
) -> None:
    async def scene(desk: Desk) -> None:
        with pytest.raises(UsageError, match=words):
            await desk.commands.handle(name, arguments)

    with_desk(scene)


def test_growth_is_told_before_it_is_done_and_steered_while_it_is() -> None:
    async def scene(desk: Desk) -> None:
        array, size = desk.array, desk.array.size_bytes
        desk.array.grower.on_size.append(lambda: desk.volume.resize(array.size_bytes))
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
        with pytest.raises(RaidxError, match="a grow is under way"):
            await desk.ask("add-disk", members=["c"])
        await desk.ask("job-resume", job=begun["job"])
        ended = await desk.ask("job-wait", job=begun["job"])
        assert ended["state"] == "done"
        assert ended["done"] == dry["bytes_read"]
        status = await desk.ask("status")
        assert (status["state"], status["size"]) == ("clean", size * 5 // 3)
        assert desk.volume.size_bytes == size * 5 // 3

    with_desk(scene, "raid4")


def test_growth_refuses_what_it_cannot_do_and_gives_the_newcomers_back() -> None:
    async def scene(desk: Desk) -> None:
        before = desk.array.store.config
        with pytest.raises(UsageError, match="255"):
            await desk.ask("add-disk", members=[f"m{n}" for n in range(252)], dry_run=True)
        for twice in ({"members": ["a", "b", "a,size=1GiB"]}, {"members": ["a"], "surrogate": "a"}):
            with pytest.raises(UsageError, match="a is named twice"):
                await desk.ask("add-disk", **twice, dry_run=True)
        with pytest.raises(SignatureFoundError):
            await desk.ask("add-disk", members=["a", "used"])
        assert desk.shelf.released == [desk.shelf.opened["a"]]
        desk.rig.member_bytes //= 2
        with pytest.raises(UsageError, match="use a larger one"):
            await desk.ask("add-disk", members=["small"])
        assert desk.shelf.released[-1] is desk.shelf.opened["small"]
        assert desk.array.store.config == before
        await desk.ask("fail-disk", member="1")
        with pytest.raises(RaidxError, match="a degraded array does not grow"):
            await desk.ask("add-disk", members=["b"])

    with_desk(scene, "raid4")


def test_a_cancelled_growth_gives_its_member_back_when_it_is_undone() -> None:
    async def scene(desk: Desk) -> None:
        size = desk.array.size_bytes
        desk.array.grower.on_release.append(desk.shelf.release)
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

    with_desk(scene, "raid4")


def test_a_restripe_is_told_before_it_is_done_and_steered_while_it_is() -> None:
    async def scene(desk: Desk) -> None:
        array, size = desk.array, desk.array.size_bytes
        desk.array.restriper.on_size.append(lambda: desk.volume.resize(array.size_bytes))
        before = bytes(await array.read(0, size))
        dry = await desk.ask("reshape", members=["a"], layout="raid4", dry_run=True)
        assert dry["does"] == "moves everything from raid5 on 4 members to raid4 on 5"
        assert (dry["size_before"], dry["size_after"]) == (size, size * 4 // 3)
        assert dry["bytes_written"] == round(dry["bytes_read"] * 5 / 4) > 0
        assert (dry["redundancy_reduced"], dry["bytes_logged"]) == (False, 0)
        dry = await desk.ask("reshape", members=[], layout="raid0", dry_run=True)
        assert (dry["redundancy_reduced"], dry["redundancy_left"]) == (True, 0)
        assert dry["redundancy_reduced_seconds"] == dry["seconds"] > 0
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
        with pytest.raises(RaidxError, match="a restripe is under way"):
            await desk.ask("reshape", members=[], layout="raid0")
        await desk.ask("job-resume", job=begun["job"])
        ended = await desk.ask("job-wait", job=begun["job"])
        assert ended["state"] == "done"
        status = await desk.ask("status")
        assert (status["state"], status["size"]) == ("clean", size * 4 // 3)
        assert (status["layout"], status["layout_parameters"]) == ("raid4", {})
        assert desk.volume.size_bytes == size * 4 // 3
        assert bytes(await array.read(0, size)) == before

    with_desk(scene)


def test_a_restripe_that_does_not_begin_gives_the_newcomers_back() -> None:
    async def scene(desk: Desk) -> None:
        with pytest.raises(SignatureFoundError):
            await desk.ask("reshape", members=["a", "used"])
        assert desk.shelf.released == [desk.shelf.opened["a"]]
        with pytest.raises(UsageError, match="already"):
            await desk.ask("reshape", members=[])
        assert (await desk.ask("status"))["state"] == "clean"

    with_desk(scene)
