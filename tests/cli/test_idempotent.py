"""``--if-missing`` and ``--if-exists``: scripts may run again; what differs is an error."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.daemon import paths
from raidx_fuse.fuse import mountpoint
from tests.cli.conftest import Daemon
from tests.support.command import FAILED, USAGE, checked, checksums, raidx
from tests.support.documents import member, status


def test_create_leaves_an_array_that_is_there(tmp_path: Path) -> None:
    line = "create --layout raid1 --size 4MiB --name home --if-missing a b"
    assert json.loads(checked(tmp_path, f"{line} --json"))["changed"] is True
    before = checksums(tmp_path)
    again = json.loads(checked(tmp_path, f"{line} --json"))
    assert (again["changed"], again["name"]) == (False, "home")
    assert checked(tmp_path, line) == "home is there already\n"
    for wrong in ("--name other", "--layout raid0"):
        refused = raidx(tmp_path, line.replace("--if-missing", f"--if-missing {wrong}"))
        assert refused.status == USAGE
        assert "these members are array home already, whose" in refused.stderr
    refused = raidx(tmp_path, line.replace(" a b", " a c"))  # one of them is a member of it
    assert (refused.status, refused.stdout) == (FAILED, "")
    assert checksums(tmp_path) == before


def test_create_names_checksums_that_differ(tmp_path: Path) -> None:
    line = "create --layout raid1 --size 16MiB --if-missing"
    checked(tmp_path, f"{line} a b")
    checked(tmp_path, f"{line} --sums on c d")
    for again in ("--sums off a b", "c d", "--sums on c d"):
        assert json.loads(checked(tmp_path, f"{line} --json {again}"))["changed"] is False
    for wrong, said in (
        ("--sums on a b", "whose setting sums is off, not on; `raidx set ARRAY sums=on`\n"),
        ("--sums off c d", "whose setting sums is on, not off; `raidx set ARRAY sums=off`\n"),
    ):
        refused = raidx(tmp_path, f"{line} {wrong}")
        assert (refused.status, refused.stdout) == (USAGE, "")
        assert said in refused.stderr


def test_volumes_and_members_that_are_as_wanted_are_left(daemon: Daemon) -> None:
    volume = {"name": "one", "uuid": "u-1", "size": 1 << 20, "array": "disk", "written": 0}
    daemon.answers["volume-list"] = {"volumes": [volume]}
    spare = member(-1, "spare")
    daemon.answers["status"] = status(members=[member(0), member(1), spare])

    def unchanged(*words: str) -> dict[str, Any]:
        document: dict[str, Any] = daemon.run_json(*words)
        assert document.pop("changed") is False
        return document

    create = ("volume", "create", "ARRAY", "one", "--if-missing", "--size")
    assert unchanged(*create, "1MiB") == volume
    refused = daemon.run(*create, "2MiB")
    assert refused.exit_code == USAGE
    assert f"raidx volume resize {daemon.mountpoint} one 2097152" in refused.stderr
    assert unchanged("volume", "delete", "ARRAY", "two", "--if-exists") == {"deleted": "two"}
    assert unchanged("remove-disk", "ARRAY", "/disks/new.img", "--if-exists")
    both = ("/disks/d0.img", spare["path"])
    assert unchanged("add-disk", "ARRAY", *both, "--if-missing") == {"members": [*both]}
    assert {name for name, _ in daemon.calls} == {"volume-list", "status"}


def test_what_is_not_as_wanted_is_done(daemon: Daemon) -> None:
    done = {"name": "two", "size": 1 << 20, "array": "disk"}
    daemon.answers |= {"volume-list": {"volumes": []}, "volume-create": done}
    daemon.answers |= {"volume-delete": {"deleted": "u-1", "free": 1, "loses": 0}}
    daemon.answers |= {"remove-disk": {"path": "/disks/d1.img"}, "add-disk": {"added": []}}
    line = ("volume", "create", "ARRAY", "two", "--size", "1MiB", "--if-missing")
    assert daemon.run_json(*line)["changed"] is True
    assert daemon.run_json("remove-disk", "ARRAY", "1", "--if-exists")["changed"] is True
    line = ("add-disk", "ARRAY", "/disks/d0.img", "/new", "--as", "spare", "--if-missing")
    assert daemon.run_json(*line)["changed"] is True
    daemon.answers["volume-list"] = {"volumes": [{"name": "one", "uuid": "u-1"}]}
    assert daemon.run_json("volume", "delete", "ARRAY", "u-1", "--if-exists")["changed"] is True


def test_mount_and_umount_of_what_is_so_already(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert daemon.run_json("umount", str(tmp_path), "--if-exists")["changed"] is False
    with socket.socket(socket.AF_UNIX) as killed:  # its daemon left the socket
        killed.bind(str(paths.own_files(tmp_path).socket))
    assert daemon.run_json("umount", str(tmp_path), "--if-exists")["changed"] is False
    assert daemon.run("umount", str(tmp_path)).exit_code == FAILED
    here = mountpoint.Mount(
        path=daemon.mountpoint,
        device=(0, 1),
        fs_type=mountpoint.FUSE_TYPE,
        source="disk",
        owner=None,
        mount_id=1,
        options="",
    )
    monkeypatch.setattr(mountpoint, "mounts", lambda: iter([here]))
    members = [each["path"] for each in status()["members"]]
    document = daemon.run_json("mount", "--if-missing", *reversed(members), "ARRAY")
    assert (document["changed"], document["name"]) == (False, "disk")
    refused = daemon.run("mount", "--if-missing", *members[:-1], "ARRAY")
    assert refused.exit_code == FAILED
    assert "other members than these are mounted on" in refused.stderr
