"""Unlike disks under a mount: lost, restored, added and removed, under fio that verifies.

ext4 on a loop device over raidx-parity on five members of five sizes. Longer by RAIDX_TEST_SCALE.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.mount.real_array import SCALE, FioLoad, RealArray, compare, need, run

pytestmark = [pytest.mark.mount]

MIB = 1 << 20
SIZES_MIB = (48, 20, 32, 40, 28)
FIO_BYTES = 4 * MIB


def unlike(array: RealArray, *options: str) -> None:
    """Make raidx-parity of five members of five sizes and mount it."""
    array.members = [array.folder / f"disk{role}.img" for role in range(len(SIZES_MIB))]
    specs = [f"{p},size={n}MiB" for p, n in zip(array.members, SIZES_MIB, strict=True)]
    words = ["--layout", "raidx-parity", "--size", "1MiB", "--name", array.image.name]
    array.raidx("create", *words, *options, *specs)
    array.mount()


def ended(array: RealArray, kind: str) -> dict[str, Any]:
    """Wait for the jobs; return the newest of *kind*, which must be done."""
    array.wait_jobs()
    job = [job for job in array.jobs() if job["kind"] == kind][-1]
    assert job["state"] == "done", job
    return job


def roles(array: RealArray) -> dict[int, str]:
    return {m["role"]: m["state"] for m in array.status()["members"]}


@pytest.mark.loop
def test_ext4_lives_through_a_loss_two_new_disks_and_a_farewell(
    array: RealArray, source_tree: Path
) -> None:
    need("mkfs.ext4", "losetup", "fio")
    unlike(array, "--image-size", "56MiB")
    tree = source_tree / "python"
    system = array.file_system()
    system.make("-m", "0")
    where = system.where
    shutil.copytree(tree / "email", where / "before")
    array.call("set", key="restore.after", value="0")
    array.call("set", key="speed_min", value="64MiB")
    load = FioLoad(array.folder, where, int(FIO_BYTES * max(1.0, SCALE)))
    try:
        # A member goes, and nobody comes: the others take over what it held.
        array.call("fail-disk", member="2")
        while 2 in roles(array):
            assert not load.problems, load.problems
        restored = ended(array, "restore")
        assert restored["chunks_moved"] > 0
        status = array.status()
        assert (status["state"], status["redundancy_left"]) == ("clean", 1)
        assert sorted(roles(array)) == [0, 1, 3, 4]
        # Two unlike disks, at once: one takes the role that is vacant.
        new = [array.folder / "big.img", array.folder / "small.img"]
        specs = [f"{new[0]},size=64MiB", f"{new[1]},size=12MiB"]
        said = array.ask("add-disk", "ARRAY", *specs, "--create", "-n")
        added = array.ask("add-disk", "ARRAY", *specs, "--create")
        assert said["chunks_to_move"] == ended(array, "grow")["chunks_moved"]
        assert added["roles"] == [2, 5]
        assert array.image.stat().st_size == said["size_after"] == 56 * MIB
        # A disk is emptied and let go.
        before = array.ask("remove-disk", "ARRAY", "3", "-n")
        assert before["chunks_to_move"] > 0
        array.raidx("remove-disk", "ARRAY", "3", "--wait")
        assert ended(array, "evacuate")["chunks_moved"] > 0
        assert sorted(roles(array)) == [0, 1, 2, 4, 5]
        shutil.copytree(tree / "json", where / "after")
    finally:
        load.stop()
    compare(tree / "email", where / "before")
    compare(tree / "json", where / "after")
    run("umount", where)
    system.check()
    array.detach(system.device)
    array.scrub()
    array.unmount()
    # Nobody is needed who left; a disk that was let go is no member.
    array.members = [array.members[n] for n in (0, 1, 4)] + new
    array.mount()
    assert array.status()["state"] == "clean"
    device = array.loop(direct_io=True, read_only=True)
    where = array.mount_loop(device, "-o", "ro")
    compare(tree / "email", where / "before")
    compare(tree / "json", where / "after")
