"""`raidx lab`: what it refuses to touch and what it removes; mounted in tests/mount/test_lab.py."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from raidx_fuse.cli.commands.teach import scratch
from raidx_fuse.cli.main import main
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.fuse import mountpoint
from tests.support.command import run, run_json


@pytest.fixture(autouse=True)
def _fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoint, "check_fuse", lambda **_: None)

    def no_array(*_: object) -> None:
        raise AssertionError("no array is to be made here")

    monkeypatch.setattr(scratch, "_start", no_array)


def refused(*args: str | Path, status: int = 2) -> str:
    """Return the one line with which a command is refused."""
    done = CliRunner().invoke(main, ["lab", *map(str, args)])
    assert done.exit_code == status, (done.output, done.exception)
    (line,) = done.stderr.splitlines()
    return line


def made(folder: Path, **changed: object) -> Path:
    """Return *folder*, which looks like a lab without a mount."""
    folder.mkdir()
    lab = {"layout": "raid5", "disks": 3, "size_bytes": 1 << 24, "chunk_bytes": 1 << 16}
    more = {"length": None, "made_folder": True, "made_by": "raidx lab reset"}
    (folder / ".raidx-lab").write_text(json.dumps({**lab, **more, **changed}))
    return folder


def test_a_folder_that_it_did_not_make_is_refused(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "disk0.img").write_text("precious")
    assert "nothing in the folder is touched" in refused("reset", full)
    assert "there is no lab" in run("lab", "end", str(full))
    assert (full / "disk0.img").read_text() == "precious"
    assert os.listdir(full) == ["disk0.img"]
    file = tmp_path / "file"
    file.touch()
    assert "is not a folder" in refused("reset", file)
    (tmp_path / "link").symlink_to(full)
    assert "is not a folder" in refused("reset", tmp_path / "link")
    assert "cannot be made: No such file" in refused("reset", tmp_path / "no" / "where", status=1)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "any user may write" in refused("reset", shared)
    assert not list(shared.iterdir())
    taken = tmp_path / "taken"
    (taken / "mnt").mkdir(parents=True)
    assert "taken/mnt was not made by `raidx lab reset`" in refused("reset", taken)


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = os.geteuid()
    lab = made(tmp_path / "lab")
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert "belongs to another user" in refused("end", lab)
    assert "was not written by" in refused("reset", lab)


@pytest.mark.parametrize(
    "changed",
    [
        {"made_by": "somebody"},
        {"disks": "3"},
        {"disks": True},
        {"made_folder": 1},
        {"layout": None},
    ],
)
def test_a_marker_that_it_did_not_write_is_refused(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    lab = made(tmp_path / "lab", **changed)
    (lab / "disk0.img").touch()
    for verb in ("reset", "end"):
        assert "was not written by `raidx lab reset`" in refused(verb, lab)
    (lab / ".raidx-lab").write_bytes(b"\xff" * 9000)
    assert "was not written by" in refused("end", lab)
    assert (lab / "disk0.img").exists()


def test_the_end_removes_what_belongs_to_the_lab_and_names_the_rest(tmp_path: Path) -> None:
    lab = made(tmp_path / "lab")
    essay = tmp_path / "essay"
    essay.write_text("mine")
    for name in ("disk0.img", "disk16.img", "disk.img", "disk0.img.old", "text"):
        (lab / name).touch()
    (lab / "disk17.img").write_bytes(MAGIC)  # as a spare that was added in a lesson
    (lab / "disk18.img").write_bytes(bytes(SUPERBLOCK_SLOT_BYTES) + MAGIC)
    (lab / "disk1.img").symlink_to(essay)
    (lab / "disk5.img").mkdir()
    (lab / "mnt").mkdir()
    (lab / "mnt" / "note").touch()
    document = run_json("lab", "end", str(lab))
    left = ["disk.img", "disk0.img.old", "disk1.img", "disk16.img", "disk5.img", "mnt", "text"]
    assert document == {"folder": str(lab), "removed": True, "left_alone": left}
    assert sorted(os.listdir(lab)) == left
    assert essay.read_text() == "mine"
    assert "there is no lab" in run("lab", "end", str(lab))
    assert "nothing in the folder is touched" in refused("reset", lab)


def test_the_folder_goes_only_if_the_lab_made_it(tmp_path: Path) -> None:
    run("lab", "end", str(made(tmp_path / "new")))
    run("lab", "end", str(made(tmp_path / "given", made_folder=False)))
    assert os.listdir(tmp_path) == ["given"]


def test_wrong_parameters_and_a_busy_lab_touch_nothing(tmp_path: Path) -> None:
    lab = made(tmp_path / "lab")
    (lab / "disk0.img").touch()
    assert "nearest: 5 or 7" in refused("reset", lab, "--layout", "xcode", "--disks", "6")
    assert "out of range" in refused("reset", lab, "--disks", "65")
    assert "a chunk of 5000 bytes" in refused("reset", lab, "--chunk", "5000")
    assert "did you mean raidx-copy" in refused("reset", lab, "--layout", "raid10")
    descriptor = os.open(lab, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "another `raidx lab` is at work" in refused("end", lab, status=1)
    os.close(descriptor)
    assert (lab / "disk0.img").exists()
    assert not (tmp_path / "none").exists()
    assert "out of range" in refused("reset", tmp_path / "none", "--disks", "0")
    assert not (tmp_path / "none").exists()


def test_without_a_folder_it_lies_in_ram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "RAM", str(tmp_path))
    assert f"no lab in {tmp_path}/raidx-lab-{os.geteuid()}" in run("lab", "end")
    monkeypatch.setattr(scratch, "RAM", str(tmp_path / "none"))
    assert "name a FOLDER" in refused("end")
