"""save-metadata and restore-metadata on member files; real files, no mount."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.array_lock import ArrayLock
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.errors import Reason
from tests.support.command import checked, checksums, raidx

NAMES = ("a", "b", "c")
CONTENT = bytes(range(1, 256)) * 2000


async def _write() -> None:
    with Disks() as disks:
        async with open_array(disks.attach(NAMES)) as array:
            await array.write(0, CONTENT)


async def _read() -> bytes:
    with Disks(read_only=True) as disks:
        async with open_array(disks.attach(NAMES), read_only=True) as array:
            return bytes(await array.read(0, len(CONTENT)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an array at rest, its file, and members without a front."""
    monkeypatch.chdir(tmp_path)
    checked(tmp_path, "create --layout raid5 --size 4MiB a b c")
    trio.run(_write)
    checked(tmp_path, "save-metadata a b c saved.json")
    for name in NAMES:
        with (tmp_path / name).open("r+b") as member:
            member.write(bytes(128 << 10))
    return tmp_path


def reason_of(folder: Path, line: str) -> str:
    """Return why a command line fails; nothing may have changed."""
    before = checksums(folder)
    done = raidx(folder, f"{line} --json")
    assert done.status
    assert checksums(folder) == before
    return str(json.loads(done.stdout)["error"]["reason"])


def test_first_it_is_shown_then_written(folder: Path) -> None:
    before = checksums(folder)
    text = checked(folder, "restore-metadata saved.json c b a")
    assert "nothing was written: add --yes" in text
    assert checksums(folder) == before
    document = json.loads(checked(folder, "restore-metadata saved.json c b a --yes --json"))
    assert document["changed"]
    assert [each["role"] for each in document["members"]] == [2, 1, 0]
    assert document["stripes_checked"] > document["stripes_wrong"] == 0
    assert trio.run(_read) == CONTENT
    assert reason_of(folder, "restore-metadata saved.json a b c --yes") == Reason.ALREADY


def test_what_is_lost_is_said_where_members_are_looked_at(folder: Path) -> None:
    assert "restore-metadata" in raidx(folder, "examine a").stderr
    assert "restore-metadata" in raidx(folder, "check a b c").stderr


def test_members_in_use_and_no_files_are_refused(folder: Path) -> None:
    with Disks() as disks:
        disks.attach(["b"])
        assert reason_of(folder, "restore-metadata saved.json a b c --yes") == Reason.IN_USE
    assert reason_of(folder, "restore-metadata none.json a b c --yes") == Reason.FILE
    assert reason_of(folder, "restore-metadata a a b c --yes") == Reason.DAMAGED
    assert reason_of(folder, "restore-metadata saved.json 1=a b c --yes") == Reason.ARGUMENT
    assert reason_of(folder, "restore-metadata saved.json 7=a b c --yes") == Reason.NO_SUCH_MEMBER


def test_a_running_array_is_refused_though_its_members_are_free(folder: Path) -> None:
    uuid = json.loads((folder / "saved.json").read_text())["configuration"]["array_uuid"]

    lock = ArrayLock(uuid, "disk", "elsewhere", shared=False)
    try:
        assert reason_of(folder, "restore-metadata saved.json a b c --yes") == Reason.IN_USE
        assert reason_of(folder, "restore-metadata saved.json a b c") == Reason.IN_USE
    finally:
        lock.release()


def test_the_last_word_is_a_file_and_no_member(folder: Path) -> None:
    checked(folder, "restore-metadata saved.json a b c --yes")
    assert reason_of(folder, "save-metadata a b c") == Reason.EXISTS
    assert reason_of(folder, "save-metadata a") == Reason.ARGUMENT
