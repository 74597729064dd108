"""What a command says to type next: with the names that were given, and before it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.format.pages import array_behind
from raidx_fuse.members.ram import RamMember
from tests.cli.conftest import Daemon
from tests.support.arrays import jobs_ended, ram_array
from tests.support.documents import job, status


def _refusal(action: str) -> ControlError:
    return ControlError("busy", kind="busy", exit_status=1, action=action)


def test_who_interrupts_a_wait_learns_that_the_job_goes_on(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raidx_fuse.cli.progress.time.sleep", interrupt)
    daemon.answers |= {"scrub": {"job": 7}, "job-list": {"jobs": [job(id=7, state="running")]}}
    result = daemon.run("scrub", "ARRAY", "--wait")
    assert result.exit_code == 130
    assert f"job 7 goes on: raidx job {daemon.mountpoint} wait 7" in result.stderr


def test_refusals_and_warnings_name_the_array_that_was_named(daemon: Daemon) -> None:
    daemon.answers["scrub"] = _refusal("wait: `raidx job ARRAY wait`, or raidx volume list MOUNT")
    said = daemon.run("scrub", "ARRAY").stderr
    assert f"raidx job {daemon.mountpoint} wait" in said
    assert f"raidx volume list {daemon.mountpoint}" in said
    warning = "members by larger ones, then: raidx resize ARRAY max"
    daemon.answers["status"] = status(mountpoint="/mnt/one", warnings=[warning])
    assert "raidx resize /mnt/one max" in " ".join(daemon.run("status", "ARRAY").stdout.split())


def test_the_scrub_that_fills_checksums_is_named(daemon: Daemon) -> None:
    daemon.answers |= {
        "set": {"settings": {"sums": "on"}},
        "job-list": {"jobs": [job(id=3, kind="scrub", state="running")]},
    }
    said = " ".join(daemon.run("set", "ARRAY", "sums=on").stdout.split())
    assert said.startswith("sums on job 3, a scrub, gives checksums to what was written before")
    assert daemon.run("set", "ARRAY", "sums=off").stdout.count("job") == 0


def test_clear_tells_the_counts_of_checksums_that_it_forgot(daemon: Daemon) -> None:
    counts = {"misfits": 1, "healed": 1, "wrong_sums": 0, "unverified": 2}
    daemon.answers["clear"] = {"members": [], "sums": counts}
    said = daemon.run("clear", "ARRAY").stdout
    assert said == "checksums: 1 misfit, 1 healed, 0 wrong sums, 2 unverified forgotten\n"


async def test_clear_forgets_the_counts_of_checksums(tmp_path: Path) -> None:
    members = await ram_array("raid5", 4, sums=True)
    async with open_array(members) as array:
        await array.write(0, bytes(range(256)) * 400)
        await array.context.journal.drain()
        first = array.member_set.config.regions.data.offset
        members[0].memory[first] ^= 1
        await array.jobs.wait(await array.start_scrub(repair=True))
        sums = array.member_set.sums
        assert sums is not None
        before: tuple[Any, ...] = sums.misfits, sums.healed
        assert before == (1, 1)
        assert sums.forget_counts()[:2] == before
        report = array.status()["sums"]
        assert (report["misfits"], report["healed"]) == (0, 0)


async def test_a_member_that_has_left_is_not_taken_for_one_that_lost_its_superblocks() -> None:
    members = await ram_array("raid5", 4, with_volume=False)
    new = RamMember(1 << 20, name="new")
    async with open_array(members) as array:
        await array.write(0, bytes(range(256)) * 400)
        await array.grow([new])
        await jobs_ended(array)
        assert await array_behind(new) is not None
        await array.remove_disk(4)
        await jobs_ended(array)
        assert array.member_set.config.width == 4
    assert await array_behind(new) is None
