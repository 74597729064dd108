"""What administrators meet: members in place of mounts, stale ones, dead daemons, other users."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray, run
from tests.support.waiting import await_that

pytestmark = [pytest.mark.mount]


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    array.create("raid5", 4, "8MiB")
    array.mount()
    write(array)
    return array


def write(array: RealArray) -> None:
    with array.image.open("r+b") as image:
        image.write(b"content" * 1000)
        image.flush()
        os.fsync(image.fileno())


def test_a_member_of_a_running_array_tells_of_the_array(raid5: RealArray) -> None:
    told = raid5.ask("status", raid5.members[2])
    assert (told["state"], told["mountpoint"]) == ("clean", str(raid5.mnt))
    assert [member["state"] for member in told["members"]] == ["active"] * 4
    raid5.raidx("status", "--check", raid5.members[2])


@pytest.mark.parametrize("how", ["failed", "left at home"])
def test_a_member_found_stale_takes_its_role_again(raid5: RealArray, how: str) -> None:
    if how == "failed":
        raid5.fail(3)
    raid5.unmount()
    if how == "left at home":
        raid5.raidx("mount", *raid5.members[:3], raid5.mnt)
        write(raid5)
        raid5.unmount()
    raid5.mount()
    if how == "failed":  # only by the user's command
        assert raid5.status()["state"] == "degraded"
        raid5.raidx("replace-disk", "ARRAY", "3", raid5.members[3], "--wait")
    else:  # by itself
        raid5.raidx("job", "ARRAY", "wait")
    assert raid5.status()["state"] == "clean"
    raid5.scrub()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_allow_other_lets_others_open_the_image(make_array: Callable[..., RealArray]) -> None:
    array = make_array()
    pwd.getpwnam("nobody")
    for folder in (array.folder.parent, array.folder):
        folder.chmod(0o755)
    shell = shutil.which("setpriv") or pytest.skip("setpriv is not installed")
    as_nobody = (shell, "--reuid=nobody", "--clear-groups", "dd", "status=none", "count=1")

    def refused(*words: str, options: Sequence[str] = ()) -> bool:
        array.mount(*options)
        done = run(*as_nobody, *words, check=False)
        array.unmount()
        return done.returncode != 0

    array.create("raid5", 3, "8MiB")
    reads = ("of=/dev/null", f"if={array.image}")
    writes = (f"of={array.image}", "if=/dev/zero", "conv=notrunc")
    assert refused(*reads)
    assert not refused(*reads, options=["--allow-other"])
    assert refused(*writes, options=["--allow-other"]), "who may write is said by --mode"
    assert not refused(*writes, options=["--allow-other", "--mode", "666"])
    assert refused(*reads, options=["--allow-other", "--mode", "600"])
    assert refused(*writes, options=["--allow-other", "--mode", "666", "--read-only"])
    assert "--allow-other" in array.refused(
        "mount", *array.members, array.mnt, "--mode", "600", status=2
    )


def test_a_failure_reaches_the_hook_and_a_crash_is_told_at_the_next_mount(
    raid5: RealArray, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\nsleep 600\n')
    hook.chmod(0o755)
    raid5.raidx("set", "ARRAY", f"events.program={hook}")
    raid5.fail(2)
    write(raid5)  # while the hook hangs
    said = tmp_path / "said"
    await_that(lambda: said.exists() and said.read_text().endswith("\n"), "the hook is run")
    assert said.read_text() == f"Fail {raid5.mnt} {raid5.members[2]}\n"
    raid5.raidx("set", "ARRAY", "events.program=off")
    raid5.send(signal.SIGKILL)
    raid5.clear()
    raid5.raidx("mount", *raid5.members[:2], raid5.members[3], raid5.mnt)
    raid5.unmount()
    kept = raid5.ask("events", raid5.mnt)["events"]
    commands = [each["message"] for each in kept if each["event"] == "Command"]
    assert commands[0] == f"set: key=events.program, value={hook}", "and no program was run for it"
    assert commands[1:] == ["fail-disk: member=2", "set: key=events.program, value=off"]
    told = [each["event"] for each in kept if each["event"] != "Command"]
    assert told[:3] == ["NewArray", "Fail", "DegradedArray"]
    assert told[3:5] == ["NewArray", "Recovered"]
    assert told[-1] == "ArrayStopped"
