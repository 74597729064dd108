"""Fuzzing: members with valid checksums and invalid content, in a thousand cases.

Nothing but a RaidxError of one line comes of them; none hangs or takes over 256 MiB; `examine`
and `check` write nothing, nor does a mount that is refused. RAIDX_FUZZ_CASES=100000 plays as many;
a case is played again by `python -m tests.format.fuzzing 17 18 1` (fuzzing.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = int(os.environ.get("RAIDX_FUZZ_CASES", "1000"))
WORKERS = 2
SECONDS_MAX = 300 + CASES // 10


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_no_structure_of_the_format_breaks_anything() -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.format.fuzzing", *map(str, (first, CASES, WORKERS))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for first in range(WORKERS)
    ]
    played = 0
    violations: list[str] = []
    try:
        for worker in workers:
            *lines, last = worker.communicate(timeout=SECONDS_MAX)[0].splitlines()
            violations += lines
            assert last.endswith(" cases"), [*lines[-20:], last]
            played += int(last.split()[0])
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert not violations, "\n".join(violations[:50])
    assert played == CASES
