"""`raidx destroy` and `raidx resize`, and the names that a running array goes by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forks import forked
from tests.support.waiting import await_that

pytestmark = pytest.mark.mount


class Shell:
    """Runs `raidx` in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def raidx(self, line: str, status: int = 0) -> str:
        """Return what a command line prints on both streams; check its exit *status*."""
        done = forked(line.split(), self.folder, 120)
        assert done.status == status, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def json(self, line: str) -> Any:
        return json.loads(self.raidx(f"{line} --json"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell in a folder with a mounted array of a, b and c, called kar."""
    (tmp_path / "mnt").mkdir()
    found = Shell(tmp_path)
    found.raidx("create --layout raid5 --size 8MiB --name kar a b c")
    found.raidx("mount a b c mnt")
    yield found
    found.raidx("umount mnt --if-exists")


def test_a_running_array_has_many_names_and_another_size(shell: Shell) -> None:
    uuid = shell.json("status mnt")["uuid"]
    for name in ("kar", "mnt/kar", "a"):
        assert shell.json(f"status {name}")["uuid"] == uuid, name
    for name in ("mnt/kar", "b", uuid[:8]):
        assert "speed_min" in shell.raidx(f"get {name} speed_min"), name
    assert "kar" in shell.raidx("volume list kar")
    for name in ("kar", "b", uuid):
        assert {each["uuid"] for each in shell.json(f"events {name}")["events"]} == {uuid}, name
    assert "no array is mounted" in shell.raidx("get nosuch", 1)

    image = shell.folder / "mnt/kar"
    whole = image.stat().st_size
    with image.open("r+b") as file:
        file.seek(whole - 4096)
        file.write(b"x" * 4096)
    assert "--lose-data" in shell.raidx("resize kar 4MiB", 2)
    assert shell.json("resize kar 4MiB -n --lose-data")["loses"] > 0
    assert image.stat().st_size == whole
    shell.raidx("resize kar 4MiB --lose-data")
    assert image.stat().st_size == 4 << 20
    assert "do not fit" in shell.raidx("resize kar 1GiB", 1)
    await_that(lambda: not shell.json("array list kar")["arrays"][0]["wiping"])  # of what was cut
    assert shell.json("resize kar max")["size"] == whole
    assert image.stat().st_size == whole
    assert image.read_bytes()[-4096:] == bytes(4096)
    assert "is not a size" in shell.raidx("resize kar more", 2)


def test_destroying_a_mounted_array_leaves_members_that_nobody_finds(shell: Shell) -> None:
    assert "add --lose-data" in shell.raidx("destroy kar", 2)
    would = shell.json("destroy mnt --dry-run")
    assert [Path(each["path"]).name for each in would["members"]] == ["a", "b", "c"]
    assert (would["dry_run"], would["changed"], would["left"]) == (True, False, [])
    with (shell.folder / "mnt/kar").open("rb"):
        assert "is in use" in shell.raidx("destroy kar --lose-data", 1)
    assert shell.json("status kar")["state"] == "clean"
    done = shell.json("destroy a b c --lose-data")  # in use: they stand for their mount
    assert done["changed"]
    assert done["mountpoint"] == str(shell.folder / "mnt")
    assert not shell.json("scan .")["arrays"]
    assert not (shell.folder / "mnt/kar").exists()
    again = shell.json("destroy a b c --lose-data --if-exists")
    assert (again["changed"], again["array"]) == (False, None)
    assert "no array" in shell.raidx("destroy a --lose-data", 2)
    shell.raidx("create --layout raid1 --size 8MiB a b")  # they are free


def test_destroying_an_array_at_rest_names_what_is_not_there(shell: Shell) -> None:
    shell.raidx("umount mnt")
    (shell.folder / "c").rename(shell.folder / "elsewhere")
    shell.raidx("create --layout raid1 --size 8MiB --name other x y")
    assert "several arrays" in shell.raidx("destroy a x --lose-data", 2)
    said = shell.raidx("destroy a b --lose-data")
    assert "not there" in said
    assert f"{shell.folder}/c" in said
    assert [each["name"] for each in shell.json("scan .")["arrays"]] == ["kar", "other"]
    assert shell.json("destroy elsewhere --lose-data --if-exists")["changed"]
    assert [each["name"] for each in shell.json("scan .")["arrays"]] == ["other"]
