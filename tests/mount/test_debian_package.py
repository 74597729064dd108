"""The Debian package, installed and used in a root of its own: see package_root.sh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.real_array import need, run

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("package_root.sh")
PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = [pytest.mark.mount, pytest.mark.loop]


def why_not(folder: Path) -> str | None:
    """Return what this machine lacks for a root with an overlay, None if nothing."""
    if os.geteuid():
        return "a root of its own needs root"
    if not Path(PYTHON).exists():
        return f"{PYTHON} is missing: the package is for the version of Python that makes it"
    for name in ("lower", "upper", "work", "at"):
        (folder / name).mkdir()
    parts = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    words = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", parts, folder / "at"]
    tried = subprocess.run(words, capture_output=True, text=True)
    return f"no overlay here: {tried.stderr.strip()}" if tried.returncode else None


def test_a_day_with_only_the_package(tmp_path: Path) -> None:
    need("dpkg", "dpkg-deb", "unshare", "chroot", "mkfs.ext4", "losetup")
    (tmp_path / "try").mkdir()
    if (reason := why_not(tmp_path / "try")) is not None:
        pytest.skip(reason)
    program = ROOT / "examples" / "debian-package.py"
    made = run(sys.executable, program, tmp_path, "--compress", "none").stdout.strip()
    assert Path(made).name.startswith("raidx_")
    (tmp_path / "day").mkdir()
    said = run("unshare", "--mount", SCRIPT, made, tmp_path / "day").stdout.splitlines()
    began = [line for line in said if line.startswith("== ")]
    assert began[0].startswith("== the package has what it needs: raidx ")
    assert began[1:] == [
        *(
            "== a line of fstab",
            "== what needs more libraries",
            "== ext4",
            "== started again, one member missing",
        ),
        *("== the member is back", "== removed, nothing left"),
    ]
    for line in ("DegradedArray /mnt/disk", "vault: clean", "no problem found"):
        assert line in said
    assert sum(line.startswith("OK: vault clean") for line in said) == 1
    assert sum(line.startswith("WARNING: vault degraded; replace member 1") for line in said) == 1
