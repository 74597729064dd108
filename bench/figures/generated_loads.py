"""The statistics of generated loads, beside those of slices of the real traces.

    python bench/figures/generated_loads.py --traces FOLDER

A slice is not its trace: the first minutes of a week are quieter or busier than the week. The
generated load follows the whole trace (published statistics), so the columns of arrivals and
directions differ where the slice does; sizes, sequence, skew and what shares a time stamp are the
ones to compare: the mean size of such a group, the share of writes in it, the requests like the one
before (twins: the second ones of pairs), and the writes that go again to a place just written.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from load_statistics import Statistics, statistics_of
from paper_common import PaperTable, print_tables
from rich.console import Console

from raidx_fuse.lab.loads.published import WORKLOADS
from raidx_fuse.lab.loads.request import first
from raidx_fuse.lab.loads.traces import Trace
from raidx_fuse.lab.loads.workloads import generate

TITLE = "The loads: generated from published statistics, beside slices of the real traces"
FOLDER = Path(os.environ.get("RAIDX_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
SLICES = {
    "financial1": ("Financial1.first10000.spc.xz", "a quiet start: 41 % reads, of all 23 %"),
    "websearch1": ("WebSearch.first24783.spc.xz", "one minute"),
    "tpcc": ("TPC-C-microsoft.slice6999.spc.xz", "another TPC-C trace, 0.14 s"),
    "hm_0": ("hm_0.slice7016.csv.xz", "two minutes with a burst of reads"),
    "hm_1": ("hm_1.writes13069.csv.xz", "writes alone: reads were removed"),
    "proj_0": ("proj_0.writes1000.csv.xz", "writes alone, a quiet start"),
}
COLUMNS = (
    *("load", "requests", "reads %", "read B", "write B", "per s", "cv", "together %"),
    *("group size", "writes in groups %", "twins %", "rewritten %"),
    *("sequential %", "distinct %", "footprint MiB", "top fifth %"),
)


def row(name: str, seen: Statistics) -> list[str | int | float]:
    """Return the statistics of one load as a row."""
    return [
        name,
        seen.requests,
        100 * seen.read_share,
        seen.read_mean_bytes,
        seen.write_mean_bytes,
        seen.rate_s,
        seen.cv,
        100 * seen.together_share,
        seen.group_size,
        100 * seen.group_write_share,
        100 * seen.twin_share,
        100 * seen.rewrite_share,
        100 * seen.sequential_share,
        100 * seen.distinct_share,
        seen.footprint_bytes / (1 << 20),
        100 * seen.top_share,
    ]


def tables(quick: bool, folder: Path = FOLDER) -> list[PaperTable]:
    """Return one table for each real slice, and one of all generated loads."""
    made = []
    for name, (file, remark) in SLICES.items():
        if not (folder / file).exists():
            continue
        real = statistics_of(Trace(folder / file))
        ours = statistics_of(generate(name, seed=1, requests=real.requests))
        rows = [row(f"slice of {name}", real), row("generated", ours)]
        made.append(
            PaperTable(file, f"{name} and its slice", COLUMNS, rows, f"The slice: {remark}.")
        )
    count = 20_000 if quick else 200_000
    rows = []
    for name, work in WORKLOADS.items():
        seen = statistics_of(first(generate(name, seed=1), requests=count))
        wanted = f"{name} (wanted {100 * work.read_share:.3g} %, {work.mean_bytes:.0f} B)"
        rows.append(row(wanted, seen))
    remark = "" if made else "No slices of real traces were found; RAIDX_TRACES names their folder."
    made.append(
        PaperTable("All", f"{count} requests of each generated load", COLUMNS, rows, remark)
    )
    return made


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--traces", type=Path, default=FOLDER, help="folder with the slices")
    options = parser.parse_args()
    print_tables(tables(options.quick, options.traces), options.json, Console(width=200))
    return 0


if __name__ == "__main__":
    sys.exit(main())
