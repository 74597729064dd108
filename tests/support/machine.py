"""What this machine cannot do, and why; tests that are marked for it are skipped then."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from raidx_fuse.errors import RaidxError
from raidx_fuse.fuse import mountpoint
from tests.support.command import PATH, RAIDX


def why_no_mounts() -> str | None:
    try:
        mountpoint.check_fuse()
    except RaidxError as error:
        return f"no FUSE here: {error}"
    return None if os.access(RAIDX, os.X_OK) else f"{RAIDX} is not installed"


def why_no_loops() -> str | None:
    if os.geteuid():
        return "loop devices need root"
    losetup = shutil.which("losetup", path=PATH)
    if losetup is None:
        return "losetup is missing"
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1 << 20)
        words = [losetup, "--find", "--show", file.name]
        tried = subprocess.run(words, capture_output=True, text=True, check=False)
        if tried.returncode:
            return f"no loop devices here: {tried.stderr.strip()}"
        subprocess.run([losetup, "-d", tried.stdout.strip()], check=True)
    return None
