"""Every program of the benches, the power-cut campaign and the command itself have --help."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import ROOT
from tests.support.forks import forked

PROGRAMS = sorted(
    path.relative_to(ROOT)
    for path in ROOT.glob("bench/*/*.py")
    if '\nif __name__ == "__main__":' in path.read_text()
)
CALLS = [
    *((str(path), "--help") for path in PROGRAMS),
    ("bench/figures/paper_upc.py", "--quick", "--help"),
]
MODULES = ("raidx_fuse.lab.crash", "raidx_fuse.cli.main")
LIMIT_S = 120.0


def test_programs_have_help() -> None:
    assert len(PROGRAMS) >= 19
    for program, *words in CALLS:
        done = forked(words, ROOT, LIMIT_S, program)
        assert done.status == 0, f"{program}: {done.stderr}"
        assert done.stdout.lower().startswith("usage:"), program
    for module in MODULES:
        call = [sys.executable, "-m", module, "--help"]
        text = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert text.lower().startswith("usage:"), module


def test_the_benchmarks_of_the_hot_paths_run() -> None:
    """Each once and untimed, as `pytest bench` collects them; timings are for an idle machine."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "bench", "--benchmark-disable", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
