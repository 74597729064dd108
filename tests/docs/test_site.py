"""The pages as a site (.github/site): nothing is missing in it, and its links lead somewhere."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from tests.docs.pages import NAMES, ROOT

SITE = ROOT / ".github" / "site"


def test_the_contents_name_every_page() -> None:
    listed = [line for line in (SITE / "contents.txt").read_text().splitlines() if line[:1] == "/"]
    for name in set(NAMES) - {"README.md"}:
        page = PurePosixPath("/", name).with_suffix("")
        assert any(page.match(line) for line in listed), f"{name} is not in the contents"


def test_the_picture_is_what_its_program_draws() -> None:
    drawn = subprocess.run(
        [sys.executable, SITE / "architecture.py"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "raidx_fuse" / "architecture.svg").read_text() == drawn.stdout
    for package in ("journal", "store", "engine", "jobs", "array", "pool", "daemon", "members"):
        assert (ROOT / "raidx_fuse" / package).is_dir()
        assert package in drawn.stdout


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    if find_spec("sphinx") is None or find_spec("myst_parser") is None:
        pytest.skip("sphinx is not installed: pip install '.[docs]'")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-c", SITE, ROOT, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "open_array" in (tmp_path / ".github" / "site" / "python.html").read_text()
