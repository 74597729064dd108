"""Discards of a file system: by an export they give space back, on the mount they harm nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.real_array import LoopFileSystem, RealArray, run
from tests.support.waiting import await_that

pytestmark = [pytest.mark.mount]
MIB = 1 << 20
START_S = 20.0


@contextmanager
def nbdfuse(folder: Path, uri: str) -> Iterator[Path]:
    """Show the export as a file in *folder*."""
    if shutil.which("nbdfuse") is None:
        pytest.skip("nbdfuse (libnbd-bin) is not installed")
    folder.mkdir()
    process = subprocess.Popen(["nbdfuse", str(folder / "disk"), uri])
    try:
        await_that(lambda: (folder / "disk").exists() or process.poll() is not None)
        assert process.poll() is None
        yield folder / "disk"
    finally:
        run("umount", folder, check=False)
        process.wait(START_S)


def fill(system: LoopFileSystem) -> bytes:
    """Put a file there that stays, and another one that is removed again."""
    kept = os.urandom(MIB)
    (system.where / "kept").write_bytes(kept)
    (system.where / "removed").write_bytes(os.urandom(16 * MIB))
    run("sync", "-f", system.where)
    (system.where / "removed").unlink()
    run("sync", "-f", system.where)
    return kept


def written_bytes(uri: str) -> int:
    extents = json.loads(run("nbdinfo", "--json", "--map", uri).stdout)
    return sum(extent["length"] for extent in extents if not extent["type"])


def test_ext4_over_nbdfuse_gives_space_back_by_fstrim(array: RealArray) -> None:
    place = array.folder / "nbd.sock"
    array.create("raid5", 4, "48MiB")
    array.mount("--nbd", f"unix:{place}")
    uri = f"nbd+unix:///?socket={place}"
    with nbdfuse(array.folder / "nbdfuse", uri) as disk:
        system = array.file_system(disk)
        system.make()
        kept = fill(system)
        before = written_bytes(uri)
        run("fstrim", system.where)
        assert written_bytes(uri) <= before - 15 * MIB
        system.again()
        assert (system.where / "kept").read_bytes() == kept
        system.take_down()
    array.scrub()


def test_fstrim_over_the_mounted_image_is_refused_and_stops_nothing(array: RealArray) -> None:
    array.create("raid5", 4, "48MiB").mount()
    system = array.file_system()
    system.make()
    kept = fill(system)
    refused = run("fstrim", system.where, check=False)
    assert refused.returncode
    assert "not supported" in refused.stderr
    (system.where / "after").write_bytes(kept)
    system.again()
    assert (system.where / "after").read_bytes() == kept
    run("mount", "-o", "remount,discard", system.where)
    (system.where / "after").unlink()
    run("sync", "-f", system.where)
    system.again()
    assert (system.where / "kept").read_bytes() == kept
    system.take_down()
    array.scrub()
