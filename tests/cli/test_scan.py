"""`raidx scan`, and mounting by name or UUID: what is found, complete or not."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from raidx_fuse.cli.main import main
from raidx_fuse.daemon import scan as scan_module
from raidx_fuse.daemon.scan import Patience, members_of, scan_for
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.fuse import mountpoint
from tests.support.command import USAGE, checked, raidx
from tests.support.reasons import because
from tests.support.superblocks import resigned


def found(folder: Path, line: str) -> dict[str, Any]:
    arrays = json.loads(checked(folder, f"scan {line} --json"))["arrays"]
    return {array["name"]: array for array in arrays}


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """Return a folder with two arrays, one of them without a member, and other files."""
    (tmp_path / "mnt").mkdir()
    checked(tmp_path, "create --layout raid5 --size 4MiB --name first a b c")
    checked(tmp_path, "create --layout raid5 --size 4MiB --name second x y z")
    (tmp_path / "z").unlink()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("RAIDX is no superblock" * 10000)
    return tmp_path


def test_arrays_are_found_complete_or_not(disks: Path) -> None:
    arrays = found(disks, ".")
    assert set(arrays) == {"first", "second"}
    first, second = arrays["first"], arrays["second"]
    assert [Path(path).name for path in first["members"]] == ["a", "b", "c"]
    assert (first["state"], first["wanted"], first["problem"]) == ("clean", 3, None)
    assert (second["state"], len(second["members"]), second["wanted"]) == ("degraded", 2, 3)
    assert first["mountpoint"] is None
    assert found(disks, "x")["second"]["state"] == "failed"
    text = checked(disks, "scan .")
    assert "2 of 3" in text
    assert f"first: mount it: raidx mount {disks}/a {disks}/b {disks}/c MOUNTPOINT" in text
    (disks / "none").mkdir()
    assert checked(disks, "scan none") == "no array was found\n"
    assert raidx(disks, "scan nowhere").status == USAGE


def test_a_scratched_member_is_a_problem_beside_the_rest(disks: Path) -> None:
    with (disks / "a").open("r+b") as file:
        for at in (100, (64 << 10) + 100):
            file.seek(at)
            file.write(b"\xff" * 600)
    done = raidx(disks, "scan . --json")
    document = json.loads(done.stdout)
    ((path, problem),) = [(each["path"], each["problem"]) for each in document["problems"]]
    assert Path(path).name == "a"
    assert problem.startswith("no superblock is valid"), "the path is named beside it"
    assert {array["state"] for array in document["arrays"]} == {"degraded"}


def test_a_member_of_a_newer_raidx_is_not_passed_over(disks: Path) -> None:
    """A start without it would go back to what it excludes."""
    with (disks / "a").open("r+b") as file:
        for at in (0, 64 << 10):
            file.seek(at)
            slot = file.read(64 << 10)
            if any(slot):
                file.seek(at)
                file.write(resigned(slot, {10: b"\x07"}))
    first = found(disks, ".")["first"]
    assert sorted(Path(path).name for path in first["members"]) == ["a", "b", "c"]
    assert first["state"] == "failed"
    assert "a: format 1.7 is newer, this raidx knows 1.0" in first["problem"]
    for line in ("mount --name first --scan . mnt", "mount a b c mnt"):
        assert "use the raidx that wrote it" in raidx(disks, line).stderr


def test_all_disks_are_looked_at_without_a_path(
    disks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disks / "block"
    folder.mkdir()
    for name in ("sda", "loop3", "zram0", "nvme0n1"):
        (folder / name).mkdir()
    monkeypatch.setattr(scan_module, "BLOCK_DEVICES", folder)
    assert scan_module._candidates([], []) == ["/dev/nvme0n1", "/dev/sda"]


def test_a_name_must_be_of_one_array() -> None:
    arrays = [
        {"name": name, "uuid": uuid, "members": [uuid], "former": []}
        for name, uuid in (("a", "11"), ("b", "12"), ("b", "21"))
    ]
    assert members_of(arrays, name="a", uuid=None) == ["11"]
    assert members_of(arrays, name=None, uuid="2") == ["21"]
    for name, uuid, words in (("b", None, "name one by --uuid: 12, 21"), (None, "1", "2 arrays")):
        with pytest.raises(UsageError, match=words):
            members_of(arrays, name=name, uuid=uuid)
    with pytest.raises(UsageError, check=because(Reason.NO_SUCH_ARRAY)):
        members_of(arrays, name="c", uuid=None)


@pytest.mark.mount
def test_an_array_is_mounted_by_name_and_by_uuid(disks: Path) -> None:
    uuid = found(disks, ".")["first"]["uuid"]
    for line in ("--name first", f"--uuid {uuid[:8]}"):
        checked(disks, f"mount {line} --scan . mnt")
        try:
            now = found(disks, ".")["first"]
            assert (now["mountpoint"], now["state"]) == (str(disks / "mnt"), "clean")
            assert f"first: mounted on {disks}/mnt" in checked(disks, "scan .")
        finally:
            checked(disks, "umount mnt")
    for line in (
        "mount --name third --scan . mnt",
        "mount --name first --scan . a mnt",
        f"mount --name first --uuid {uuid} mnt",
        "mount a b c mnt --scan .",
    ):
        assert raidx(disks, line).status == USAGE, line
    shutil.copy(disks / "a", disks / "copy")
    assert "copy" in raidx(disks, "mount --name first --scan . mnt").stderr
    assert mountpoint.find(disks / "mnt") is None


async def test_members_are_waited_for_until_the_last_has_appeared(disks: Path) -> None:
    """`raidx mount --when-complete`: an array that lost a member before is complete without it."""
    said: list[str] = []
    (disks / "c").rename(disks.parent / "c")

    async def come() -> None:
        await trio.sleep(4.5)
        (disks.parent / "c").rename(disks / "c")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come)
        begin_s = trio.current_time()
        groups, _ = await scan_for([str(disks)], [("first", None)], Patience(math.inf, said.append))
    assert [Path(path).name for path in groups[0]] == ["a", "b", "c"]
    assert 4.5 <= trio.current_time() - begin_s < 6
    assert said == ["waiting for 1 of 3 members of first"], "once, not with each look"


async def test_the_wait_for_members_ends_as_asked(disks: Path) -> None:
    said: list[str] = []
    begin_s = trio.current_time()
    patience = Patience(30.0, said.append)
    groups, _ = await scan_for([str(disks)], [("first", None), ("second", None)], patience)
    assert [len(group) for group in groups] == [3, 2]
    assert 30 <= trio.current_time() - begin_s < 32
    with pytest.raises(UsageError, match="no array 'third' was found"):
        await scan_for([str(disks)], [("third", None)], patience)
    assert said == ["waiting for 1 of 3 members of second", "waiting for array 'third'"]


def test_what_a_mount_may_wait_for_is_said(disks: Path) -> None:
    for line, said in (
        ("mount --when-complete a b c mnt", "--when-complete goes with --name or --uuid only"),
        ("mount --degraded-after 3s --name first mnt", "goes with --when-complete only"),
        ("mount --name first --when-complete --degraded-after soon mnt", "is not a time"),
    ):
        done = raidx(disks, line)
        assert done.status == USAGE, line
        assert said in done.stderr, line


def test_udev_is_told_what_a_disk_is(disks: Path) -> None:
    """A name that could not stand in the name of a unit is left out."""
    lines = checked(disks, "scan --export a").splitlines()
    assert lines[1:] == ["RAIDX_LAYOUT=raid5", "RAIDX_NAME=first"]
    assert checked(disks, "scan --export empty").strip() == ""
    checked(disks, "rename a b c new@name")
    assert "NAME" not in checked(disks, "scan --export a")


@pytest.mark.mount
def test_the_arrays_of_the_machine_are_listed_mounted_or_not(
    disks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = scan_module.scan
    monkeypatch.setattr(scan_module, "scan", lambda _every: find([str(disks)]))
    checked(disks, "mount --name first --scan . mnt")
    try:
        lines = CliRunner().invoke(main, ["array", "list"]).stdout.splitlines()
        document = json.loads(CliRunner().invoke(main, ["array", "list", "--json"]).stdout)
    finally:
        checked(disks, "umount mnt")
    rows = {line.split()[0]: line.split() for line in lines}
    assert rows["first"][1:3] == ["raid5", "clean"]
    assert rows["first"][-1] == f"{disks}/mnt"
    assert rows["second"][1:3] == ["raid5", "degraded"]
    assert rows["second"][-2:] == ["second", "-"]
    places = {each["name"]: (each["mountpoint"], each["size"]) for each in document["arrays"]}
    assert places["second"] == (None, places["first"][1])
