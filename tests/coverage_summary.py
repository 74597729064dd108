"""Print what a run of the tests covered, package by package, from slipcover's JSON.

    python tests/coverage_summary.py .coverage.json

Two folders of the package are links, so slipcover lists their files twice: as they were run, and
below `raidx_fuse` with nothing covered. Lines that only run in another process (a daemon under a
real mount) do not count as covered.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(path: str) -> None:
    """Print one line for each package and one for all."""
    covered: dict[Path, int] = {}
    lines: dict[Path, int] = {}
    for name, file in json.loads(Path(path).read_text())["files"].items():
        real = Path(name).resolve().relative_to(Path.cwd())
        summary = file["summary"]
        covered[real] = max(covered.get(real, 0), summary["covered_lines"])
        lines[real] = summary["covered_lines"] + summary["missing_lines"]
    done: Counter[str] = Counter()
    all_lines: Counter[str] = Counter()
    for real, count in lines.items():
        parts = real.parts[:-1]
        package = "/".join(parts[:2])
        done[package] += covered[real]
        all_lines[package] += count
    for package in sorted(all_lines):
        print(f"coverage: {100 * done[package] / max(1, all_lines[package]):5.1f} %  {package}")
    total = all_lines.total()
    print(f"coverage: {100 * done.total() / total:5.1f} %  of {total} lines")


if __name__ == "__main__":
    main(sys.argv[1])
