"""Fixtures of the tests on real mounts: arrays (real_array.py), programs, what a machine can do.

Everything here runs as a user would, in processes of its own: programs, and `raidx` as forks of one
that is loaded (support/forks.py). A fixture takes everything down again, whatever a test left: file
systems, loop devices, daemons, mounts. The name of an array carries the number of the test process,
so that the next run can sweep what an aborted one has left.

Longer runs: RAIDX_TEST_SCALE=10 multiplies operations and bytes of fsx and fio.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint as mountpoints
from tests.mount.real_array import (
    RealArray,
    run,
    take_down_loop,
    take_down_mount,
)

SHM = Path("/dev/shm")
SHM_FREE_MIN_BYTES = 3 << 30
FSX_VERSION = "0.3.2"


@pytest.fixture(scope="session")
def fsx() -> str:
    """Return the path of fsx; cargo builds it once into the virtual environment."""
    folder = Path(sys.prefix) / "fsx"
    program = folder / "bin" / "fsx"
    if not program.exists():
        cargo = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo/bin")
        if cargo is None:
            pytest.skip("fsx is not built, and there is no cargo to build it")
        words = ["install", "fsx", "--version", FSX_VERSION, "--locked", "--root", folder]
        built = run(cargo, *words, timeout_s=500, check=False)
        if built.returncode:
            pytest.skip(f"cargo cannot build fsx: {built.stderr.strip().splitlines()[-1]}")
    return str(program)


# ---- real files ----


@pytest.fixture(scope="session")
def source_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source files of Python's standard library (some 25 MB)."""
    tree = tmp_path_factory.mktemp("sources")
    library = Path(sysconfig.get_path("stdlib"))
    skipped = shutil.ignore_patterns("site-packages", "dist-packages", "__pycache__", "*.so", "*.a")
    shutil.copytree(library, tree / "python", ignore=skipped, symlinks=True)
    return tree


@pytest.fixture(scope="session", autouse=True)
def sweep_aborted_runs() -> None:
    """Take down what test processes that are gone have left: mounts, groups, member files."""
    for mount in list(mountpoints.mounts()):
        if mount.fs_type == mountpoints.FUSE_TYPE and _is_gone(mount.source, "test"):
            for device, _ in mountpoints.loop_devices(mount.path):
                take_down_loop(device)
            take_down_mount(mount.path)
    for groups in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for group in Path(groups).glob("raidx-test-*"):
            if _is_gone(group.name, "raidx-test-"):
                with contextlib.suppress(OSError):
                    group.rmdir()
    for folder in SHM.glob("raidx-test-*"):
        if _is_gone(folder.name, "raidx-test-"):
            shutil.rmtree(folder, ignore_errors=True)


def _is_gone(name: str, prefix: str) -> bool:
    """Return whether *name* is *prefix* and the number of a process that has ended."""
    pid = name.removeprefix(prefix).partition("-")[0]
    return pid.isdigit() and not Path(f"/proc/{pid}").exists()


def _place(tmp_path: Path) -> Path:
    """Return a folder for member files: in memory if there is much room, else on disk."""
    if not (SHM.is_dir() and os.access(SHM, os.W_OK)):
        return tmp_path
    if shutil.disk_usage(SHM).free < SHM_FREE_MIN_BYTES:
        return tmp_path
    return Path(tempfile.mkdtemp(prefix=f"raidx-test-{os.getpid()}-", dir=SHM))


@pytest.fixture
def make_array(tmp_path: Path) -> Iterator[Callable[..., RealArray]]:
    """Return a function that makes an array's folder, in memory or (*on_disk*) on disk."""
    arrays: list[RealArray] = []
    places = [tmp_path, _place(tmp_path)]

    def make(*, on_disk: bool = False) -> RealArray:
        arrays.append(RealArray(places[0 if on_disk else 1] / f"array{len(arrays)}"))
        return arrays[-1]

    try:
        yield make
    finally:
        for array in arrays:
            array.close()
        if places[1] != tmp_path:
            shutil.rmtree(places[1], ignore_errors=True)


@pytest.fixture
def array(make_array: Callable[..., RealArray]) -> RealArray:
    return make_array()
