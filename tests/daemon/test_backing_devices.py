"""What a path stands on, by tables of the kernel that are made up; the real ones: tests/mount."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from raidx_fuse.daemon import backing_devices, member_files
from raidx_fuse.daemon.backing_devices import refuse_own
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.errors import BusyError, RaidxError, Reason, UsageError
from raidx_fuse.fuse import mountpoint as mountpoints
from raidx_fuse.fuse.mountpoint import Mount
from raidx_fuse.members.threads import in_thread
from tests.support.reasons import because

OWN = (0, 4000)
Tables = Callable[..., None]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Return a function that has tmp_path lie on a mount of *source*, and adds block devices.

    A device is "MAJ:MIN" with its slaves, or the path of a loop device's image.
    """
    sys = tmp_path / "sys"
    sys.mkdir()
    monkeypatch.setattr(backing_devices, "_DEVICES", sys)
    status = os.stat(tmp_path)
    here = (os.major(status.st_dev), os.minor(status.st_dev))
    own = Mount("/mnt/own", OWN, "fuse.raidx", "disk", 0, 1, "")

    def set_up(fs_type: str, source: str, options: str = "", **devices: str | list[str]) -> None:
        descriptor = os.open(tmp_path, os.O_PATH)
        number = backing_devices._mount_id(descriptor)
        os.close(descriptor)
        mount = Mount(str(tmp_path), here, fs_type, source, 0, number, options)
        monkeypatch.setattr(mountpoints, "mounts", lambda: iter([own, mount]))
        for name, below in devices.items():
            folder = sys / name.replace("_", ":")[1:]
            folder.mkdir()
            if isinstance(below, str):
                (folder / "loop").mkdir()
                (folder / "loop" / "backing_file").write_text(below + "\n")
            for slave in below if isinstance(below, list) else ():
                (folder / "slaves" / slave).mkdir(parents=True)
                (folder / "slaves" / slave / "dev").write_text(slave + "\n")

    set_up.here = f"d{here[0]}_{here[1]}"  # type: ignore[attr-defined]
    return set_up


def refused(path: Path, members_of: Callable[[str], list[str]] = lambda _: []) -> str:
    with pytest.raises(UsageError, check=because(Reason.IN_USE)) as caught:
        refuse_own(str(path), OWN, members_of)
    return str(caught.value)


def test_a_path_in_the_mount_is_refused_without_being_asked(tables: Tables) -> None:
    tables("tmpfs", "tmpfs")
    refused(Path("/mnt/own/disk"))
    refused(Path("/mnt/own/new/file"))
    refuse_own("/mnt/own-not/disk", OWN, lambda _: [])


def test_stacks_of_devices_are_followed_and_rings_end(tables: Tables, tmp_path: Path) -> None:
    here = tables.here  # type: ignore[attr-defined]
    path = tmp_path / "file"
    path.touch()
    stack = {here: ["9:0"], "d9_0": ["8:1", "8:2", "9:0"], "d8_1": [], "d8_2": "/mnt/own/disk"}
    tables("ext4", "/dev/md0", **stack)
    assert "(through" in refused(path)
    assert "(through" in refused(tmp_path / "not-there-yet")


def test_what_stands_on_other_things_is_taken(tables: Tables, tmp_path: Path) -> None:
    here = tables.here  # type: ignore[attr-defined]
    path = tmp_path / "file"
    path.touch()
    stack = {here: ["9:0"], "d9_0": ["8:1", "8:2"], "d8_1": [], "d8_2": "/gone (deleted)"}
    tables("ext4", "/dev/md0", **stack)
    refuse_own(str(path), OWN, lambda _: [])


def test_a_file_system_without_a_device_is_followed_by_its_mount(
    tables: Tables, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.touch()
    tables("overlay", "overlay", "rw,lowerdir=/a:/b,upperdir=/mnt/own/upper,workdir=/w")
    refused(path)
    tables("fuse.other", "/mnt/own/disk")
    refused(path)
    tables("tmpfs", "tmpfs")
    refuse_own(str(path), OWN, lambda _: [])


def test_another_array_is_asked_what_it_stands_on(tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    tables("fuse.raidx", "other")
    assert f"(through {tmp_path})" in refused(path, lambda _: ["/x", "/mnt/own/disk"])
    refuse_own(str(path), OWN, lambda _: ["/x", str(path)])

    def dead(_: str) -> list[str]:
        raise RaidxError("the daemon is gone")

    with pytest.raises(RaidxError, match="the daemon is gone"):
        refuse_own(str(path), OWN, dead)


async def test_disks_refuse_it_in_open_and_check(tables: Tables) -> None:
    tables("tmpfs", "tmpfs")
    with Disks() as opened:
        opened.mounted(OWN, lambda _: [])
        for name in ("/mnt/own/disk", "/mnt/own/disk,model=hdd"):
            with pytest.raises(UsageError, check=because(Reason.IN_USE)):
                await opened.open(name, overwrite_signature=True, create_bytes=1 << 20)
            with pytest.raises(UsageError, check=because(Reason.IN_USE)):
                await opened.check(name, overwrite_signature=True, may_create=True)


def test_a_dead_server_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked about the path hangs: the command ends in time, others go on meanwhile."""
    gate = threading.Event()
    real = os.stat

    def stat(path: object, *args: object, **named: object) -> os.stat_result:
        if str(path).endswith("/dead"):
            gate.wait(20)
            raise OSError(5, "Input/output error")
        return real(path, *args, **named)

    monkeypatch.setattr(os, "stat", stat)
    real_call = in_thread
    monkeypatch.setattr(
        member_files, "in_thread", lambda *args, **named: real_call(*args, **named, limit_s=0.2)
    )

    async def main() -> None:
        worst_s = 0.0

        async def tick() -> None:
            nonlocal worst_s
            while True:
                begin_s = time.monotonic()
                await trio.sleep(0.01)
                worst_s = max(worst_s, time.monotonic() - begin_s)

        with Disks() as opened:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick)
                for call in (
                    opened.open(f"{tmp_path}/dead", overwrite_signature=False, create_bytes=4096),
                    opened.check(f"{tmp_path}/dead", overwrite_signature=False, may_create=True),
                ):
                    with pytest.raises(RaidxError, check=because(Reason.NO_ANSWER)):
                        await call
                nursery.cancel_scope.cancel()
        assert worst_s < 2

    try:
        trio.run(main)
    finally:
        gate.set()


async def test_a_member_under_another_name_is_named(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    first.write_bytes(bytes(1 << 20))
    os.link(first, second)
    third.symlink_to(first)
    with Disks() as opened:
        opened.attach([str(first)])
        for name in (second, third):
            with pytest.raises(BusyError, match=rf"in use by this array already, as {first}$"):
                await opened.open(str(name), overwrite_signature=True, create_bytes=None)
            with pytest.raises(BusyError, check=because(Reason.ALREADY)):
                await opened.check(str(name), overwrite_signature=True, may_create=False)
    with Disks() as others, pytest.raises(UsageError, match="is given twice"):
        others.attach([str(first), str(second)])
