"""The example package of examples/own-code: installed by pip, its tests and its page run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.fuse import mountpoint
from raidx_fuse.lab import contract
from tests.docs.pages import ROOT, blocks, shell_environment
from tests.support.packages import pip_install

PACKAGE = ROOT / "examples" / "own-code"
PAGE = "examples/own-code/README.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip has installed the package."""
    source = tmp_path_factory.mktemp("source") / "own-code"  # the build leaves files there
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    site = source.parent / "site"
    pip_install(source, site)
    return site


def environment(site: Path) -> dict[str, str]:
    """Return an environment in which the package is installed, and no coverage is measured.

    What measures the coverage of this test run would do so in the package's own run of pytest, too.
    """
    outer = ("PYTEST_", "SLIPCOVER_")
    inner = {k: v for k, v in shell_environment().items() if not k.startswith(outer)}
    return {**inner, "PYTHONPATH": str(site)}


@pytest.fixture
def folder(tmp_path: Path, site: Path) -> Iterator[Path]:
    """Return a folder with the experiment; what is mounted there is unmounted at the end."""
    shutil.copy2(PACKAGE / "raid50.toml", tmp_path)
    yield tmp_path
    for place in ("mnt", "spread"):
        if mountpoint.find(tmp_path / place):
            subprocess.run(["raidx", "umount", place], cwd=tmp_path, env=environment(site))


def test_its_own_tests_pass(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_raidx_raid50.py"],
        cwd=site.parent / "own-code",
        env={**environment(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^15 passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.mount
def test_the_page_runs(folder: Path, site: Path) -> None:
    (script,) = blocks(PAGE, "bash")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(site),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "Two groups of single parity: a rebuild reads half of the members.",
        "2 reads (conventional: 2)",
        "disk: raid50 on 6 members",
        "on raid50, policy shortest: 1 read, 2 writes",
        "role 4 is failed now",
        "spread: declustered on 5 members",
        "new.img takes role 1; it is being rebuilt",
        "raid50, policy shortest",
    ):
        assert words in done.stdout, done.stdout
    members = [f"disk{number}.img" for number in range(6)]
    missing = subprocess.run(
        ["raidx", "mount", *members, "mnt"],
        cwd=folder,
        env=shell_environment(),
        capture_output=True,
        text=True,
    )
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1
    assert "is of package raidx-raid50 1.0, which is not installed here" in missing.stderr
    assert not os.path.ismount(folder / "mnt")


def test_the_page_says_what_is_so() -> None:
    text = (PACKAGE / "README.md").read_text()
    for name in re.findall(r"`(check_\w+)\(", text):
        assert callable(getattr(contract, name))
    body = (PACKAGE / "raidx_raid50.py").read_text()
    (shown,) = blocks(PAGE, "python")
    assert shown.strip() in body
    *layouts, policy = re.findall(r"^def (?:.+\n)(?:(?: .*)?\n)+", body, re.MULTILINE)
    for layout in layouts:
        statements = re.sub(r'""".*?"""', "", layout, flags=re.DOTALL).split("\n")
        assert sum(1 for line in statements if line.strip()) <= 10, "a code in ten lines"
    assert sum(1 for line in policy.split("\n") if line.strip()) <= 20, "a policy in twenty"
