"""The oldest trio and pyfuse3 that pyproject.toml allows work, their private parts included.

The newest ones are what a fresh environment gets, so the whole suite runs on them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (  # of what is private in trio, of what is replaced in pyfuse3, and one real mount
    "tests/members/test_virtual_time.py",
    "tests/fuse/test_session_loop.py",
    "tests/fuse/test_session_loop_mounted.py",
)


def oldest(name: str) -> str:
    """Return the requirement of exactly the oldest version of *name* that is allowed."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (version,) = (match[1] for text in listed if (match := re.match(rf"{name}>=([\d.]+)", text)))
    return f"{name}=={version}"


def test_the_oldest_trio_and_pyfuse3_work(tmp_path: Path) -> None:
    wanted = [oldest("trio"), oldest("pyfuse3")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--target", tmp_path / "old", *wanted], capture_output=True, text=True
    )
    if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip(f"no package registry is reached from here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    old = {**os.environ, "PYTHONPATH": str(tmp_path / "old")}
    program = "import pyfuse3, trio; print(trio.__version__, pyfuse3.__version__)"
    seen = subprocess.run([sys.executable, "-c", program], env=old, capture_output=True, text=True)
    for found, text in zip(seen.stdout.split(), wanted, strict=True):
        assert found.startswith(text.partition("==")[2]), seen.stdout
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(words, cwd=ROOT, env=old, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
