"""Every program of the benches, the power-cut campaign and the command itself have --help."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import ROOT

PROGRAMS = sorted(
    path.relative_to(ROOT)
    for path in ROOT.glob("bench/*/*.py")
    if '\nif __name__ == "__main__":' in path.read_text()
)
CALLS = [
    *([str(path), "--help"] for path in PROGRAMS),
    ["bench/figures/paper_upc.py", "--quick", "--help"],
    ["-m", "raidx_fuse.lab.crash", "--help"],
    ["-m", "raidx_fuse.cli.main", "--help"],
]


def test_programs_have_help() -> None:
    assert len(PROGRAMS) >= 19
    running = [
        subprocess.Popen(
            [sys.executable, *call],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for call in CALLS
    ]
    for call, process in zip(CALLS, running, strict=True):
        text, _ = process.communicate()
        assert process.returncode == 0, f"{call}: {text}"
        assert text.lower().startswith("usage:"), f"{call}: {text}"


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
