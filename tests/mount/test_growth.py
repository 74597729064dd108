"""Growth under a mount: ext4 on a loop device from 4 to 5 to 7 members, while files are copied."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mount.conftest import RealArray

pytestmark = [pytest.mark.mount, pytest.mark.loop]

MEMBER_BYTES = "64MiB"
WAIT_S = 60.0
CAP_SYS_RESOURCE = 24


def run(*words: object) -> None:
    """Run a program; it must succeed."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=WAIT_S)


def enlarge(array: RealArray, device: str, where: Path) -> None:
    """Let ext4 use all of *device*; on-line where the kernel lets us."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "CapEff" in x)
    if int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1:
        run("resize2fs", device)
        return
    run("umount", where)
    run("fsck.ext4", "-fp", device)
    run("resize2fs", device)
    array.mount_loop(device)


def grow_of(array: RealArray) -> dict[str, Any]:
    """Return the newest growth."""
    return [job for job in array.jobs() if job["kind"] == "grow"][-1]


def await_share(array: RealArray, share: float) -> None:
    """Return when *share* of the growth is done."""
    deadline_s = time.monotonic() + WAIT_S
    while (job := grow_of(array))["done"] < share * job["total"]:
        assert time.monotonic() < deadline_s, job
        time.sleep(0.02)


def test_ext4_grows_while_it_is_written(
    array: RealArray,
    source_tree: Path,
    need: Callable[..., None],
    compare: Callable[[Path, Path], None],
) -> None:
    need("mkfs.ext4", "resize2fs", "losetup")
    tree = source_tree / "python"
    array.create("raid4", 4, MEMBER_BYTES).mount()
    device = array.loop(direct_io=True)
    run("mkfs.ext4", "-q", "-m", "0", device)
    where = array.mount_loop(device)
    shutil.copytree(tree / "email", where / "before")
    shutil.copytree(tree / "lib2to3", where / "before2")

    def copy(name: str) -> threading.Thread:
        thread = threading.Thread(target=shutil.copytree, args=(tree / "json", where / name))
        thread.start()
        return thread

    size = array.image.stat().st_size
    for added, width in ((1, 5), (2, 7)):
        array.raidx("set", "ARRAY", "speed_max=1MiB")
        new = [array.folder / f"more{width}-{n}.img" for n in range(added)]
        dry = array.ask("add-disk", "ARRAY", *new, "--create", "-n")
        assert dry["size_after"] > dry["size_before"] == size
        assert dry["bytes_moved"] > 0
        said = array.raidx("add-disk", "ARRAY", *new, "--create").stdout
        assert f"losetup -c {device} && resize2fs {device}" in said
        array.members += new
        thread = copy(f"during{width}")
        await_share(array, 0.3)
        assert array.status()["state"] == "growing"
        array.raidx("job", "ARRAY", "pause")
        assert array.image.stat().st_size == size
        array.raidx("job", "ARRAY", "resume")
        thread.join()
        if width == 5:
            array.fail(2)  # growth goes on without an old data disk
        array.raidx("set", "ARRAY", "speed_max=0")
        array.wait_jobs()
        job = grow_of(array)
        assert job["state"] == "done", job
        assert array.image.stat().st_size == dry["size_after"]
        run("losetup", "-c", device)
        enlarge(array, device, where)
        assert shutil.disk_usage(where).total > size
        size = dry["size_after"]
        compare(tree / "json", where / f"during{width}")
        compare(tree / "email", where / "before")
        if width == 5:
            array.replace(2, "--wait")
    shutil.copytree(tree / "lib2to3", where / "after")
    run("umount", where)
    run("fsck.ext4", "-fn", device)
    array.detach(device)
    array.scrub()
    array.unmount()
    array.mount()
    device = array.loop(direct_io=True, read_only=True)
    where = array.mount_loop(device, "-o", "ro")
    compare(tree / "email", where / "before")
    compare(tree / "lib2to3", where / "before2")
    compare(tree / "lib2to3", where / "after")


def test_a_killed_daemon_goes_on_growing_after_the_remount(array: RealArray) -> None:
    array.create("raid4", 4, MEMBER_BYTES).mount()
    content = bytes(range(256)) * (4 << 12)
    with array.image.open("r+b", buffering=0) as image:
        for _ in range(6):
            image.write(content)
    for kill in (True, False):
        array.raidx("set", "ARRAY", "speed_max=1MiB")
        new = array.folder / f"more{len(array.members)}.img"
        array.raidx("add-disk", "ARRAY", new, "--create")
        array.members.append(new)
        await_share(array, 0.3)
        if kill:
            array.send(signal.SIGKILL)
            array.clear()
        else:
            array.unmount()
        array.mount()
        assert grow_of(array)["state"] == "running"
        array.raidx("set", "ARRAY", "speed_max=0")
        array.wait_jobs()
        assert grow_of(array)["state"] == "done"
        assert array.read(6 * len(content)) == 6 * content
        array.scrub()
    # A growth that is cancelled gives the member back: its file, made for it, goes.
    size = array.image.stat().st_size
    array.raidx("set", "ARRAY", "speed_max=1MiB")
    new = array.folder / "unwanted.img"
    array.raidx("add-disk", "ARRAY", new, "--create")
    await_share(array, 0.2)
    assert "going back" in array.raidx("job", "ARRAY", "cancel").stdout
    array.raidx("set", "ARRAY", "speed_max=0")
    array.wait_jobs()
    assert grow_of(array)["state"] == "cancelled"
    assert not new.exists()
    assert array.image.stat().st_size == size
    assert array.read(6 * len(content)) == 6 * content
    array.scrub()
