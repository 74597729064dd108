"""Member files: created, protected, released and closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raidx_fuse.daemon.member_files import Disks, check_distinct
from raidx_fuse.errors import (
    BusyError,
    MemberError,
    RaidxError,
    Reason,
    SignatureFoundError,
    UsageError,
)
from tests.support.reasons import because

SIZE = 1 << 20


def used(path: Path) -> Path:
    """Make a file that carries a partition table."""
    content = bytearray(SIZE)
    content[446:462] = b"\x80" + bytes(3) + b"\x83" + bytes(11)
    content[510:512] = b"\x55\xaa"
    path.write_bytes(content)
    return path


async def test_a_missing_file_is_made_and_stays_with_its_member(tmp_path: Path) -> None:
    path = tmp_path / "new.img"
    with Disks() as disks:
        member = await disks.open(str(path), overwrite_signature=False, create_bytes=SIZE)
        assert (member.size_bytes, member.reads_zero) == (SIZE, True)
    assert path.stat().st_size == SIZE


async def test_a_file_made_for_a_member_that_does_not_join_is_removed(tmp_path: Path) -> None:
    path, old = tmp_path / "new.img", tmp_path / "old.img"
    old.write_bytes(bytes(SIZE))
    with Disks() as disks:
        for each in (path, old):
            member = await disks.open(str(each), overwrite_signature=False, create_bytes=SIZE)
            await disks.release(member)
    assert not path.exists()
    assert old.exists()


async def test_without_a_size_nothing_is_made(tmp_path: Path) -> None:
    with Disks() as disks:
        for call in (
            disks.open(f"{tmp_path}/x", overwrite_signature=False, create_bytes=None),
            disks.check(f"{tmp_path}/x", overwrite_signature=False, may_create=False),
        ):
            with pytest.raises(UsageError, check=because(Reason.FILE)):
                await call
    assert os.listdir(tmp_path) == []


async def test_a_signature_is_refused_by_open_and_check_unless_allowed(tmp_path: Path) -> None:
    path = str(used(tmp_path / "used.img"))
    with Disks() as disks:
        for call in (
            disks.open(path, overwrite_signature=False, create_bytes=SIZE),
            disks.check(path, overwrite_signature=False, may_create=True),
        ):
            with pytest.raises(SignatureFoundError, match=r"partition table; --overwrite-sig"):
                await call
        await disks.check(path, overwrite_signature=True, may_create=True)
        await disks.open(path, overwrite_signature=True, create_bytes=None)
    assert Path(path).read_bytes()[510:512] == b"\x55\xaa"


async def test_check_makes_no_file_and_sees_where_none_can_be(tmp_path: Path) -> None:
    with Disks() as disks:
        await disks.check(f"{tmp_path}/x", overwrite_signature=False, may_create=True)
        with pytest.raises(UsageError, check=because(Reason.FILE)):
            await disks.check(f"{tmp_path}/a/x", overwrite_signature=False, may_create=True)
    assert os.listdir(tmp_path) == []


def test_members_are_held_until_the_end_and_then_free(tmp_path: Path) -> None:
    path = tmp_path / "d.img"
    path.write_bytes(bytes(SIZE))
    for _ in range(2):
        with Disks() as disks:
            disks.attach([str(path)])
            with pytest.raises(BusyError), Disks() as others:
                others.attach([str(path)])
            with Disks(read_only=True, lock=False) as lookers:
                assert lookers.attach([str(path)])[0].read_only


async def test_a_failed_member_can_be_opened_again_once_its_writes_have_ended(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "disk.img")
    with Disks() as disks:
        member = await disks.open(path, overwrite_signature=False, create_bytes=SIZE)
        with pytest.raises(BusyError, check=because(Reason.ALREADY)):
            await disks.open(path, overwrite_signature=False, create_bytes=None)
        disks.note_failed(member)
        member.note_overdue(0, 512)
        with pytest.raises(BusyError, check=because(Reason.NO_ANSWER)):
            await disks.open(path, overwrite_signature=False, create_bytes=None)
        member.end_overdue(0, 512)
        again = await disks.open(path, overwrite_signature=False, create_bytes=None)
        assert again is not member
        await again.writev(0, [b"again"])
        with pytest.raises(BusyError, check=because(Reason.ALREADY)):
            await disks.open(path, overwrite_signature=False, create_bytes=None)


def test_opened_members_are_closed_when_a_later_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "d.img"
    path.write_bytes(bytes(SIZE))
    for _ in range(2):
        with pytest.raises(MemberError), Disks() as disks:
            disks.attach([str(path), f"{tmp_path}/missing"])


@pytest.mark.parametrize("second", ["d.img", "./d.img", "link.img", "d.img,model=hdd"])
def test_one_file_under_two_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.img").touch()
    os.symlink("d.img", "link.img")
    with pytest.raises(RaidxError, match="given twice"):
        check_distinct(["d.img", second])
