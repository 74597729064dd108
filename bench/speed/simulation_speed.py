"""How many requests does one processor simulate in a minute of real time?

    python bench/speed/simulation_speed.py

The real engine on modelled members in virtual time (`raidx_fuse.lab.experiments.simulate`), from
the creation of the array to the result. The bar is for a load like the papers'; reads alone and
small writes alone are the two extremes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from time import process_time

from lines import Line, print_lines

from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import fit
from raidx_fuse.lab.loads.workloads import generate, variant

BAR_MINUTE = 200_000
SSD = "ssd,read_mb_s=445,write_mb_s=135"  # as in the BPU paper
REQUESTS = 20_000


def requests_a_minute(load: str, layout: str, requests: int, **numbers: float) -> float:
    """Return how many requests of *load* a minute of processor time simulates."""
    work = variant(load, rate_s=1500, **numbers)
    experiment = Experiment(
        layout=layout,
        members=(SSD,) * 8,
        settings={"journal": "none"},
        load=lambda size_bytes: fit(generate(work, seed=1, requests=requests), size_bytes),
    )
    began_s = process_time()
    result = simulate(experiment)
    elapsed_s = process_time() - began_s
    assert result["requests"] == requests, result["errors"]
    return requests / elapsed_s * 60


def run(requests: int = REQUESTS, rounds: int = 3) -> list[Line]:
    """Measure and return the lines; the bar is that of the write-heavy trace."""
    rows = [
        ("hm_0", "raid5", "hm_0", {}, BAR_MINUTE),
        ("financial1", "raid5", "financial1", {}, BAR_MINUTE),
        ("4 KiB reads", "raid5", "uniform", {"read_share": 1.0}, None),
        ("4 KiB writes", "raid5", "uniform", {"read_share": 0.0}, None),
        ("4 KiB writes", "rdp", "uniform", {"read_share": 0.0}, None),
    ]
    lines = []
    for row, layout, load, numbers, bar in rows:
        speeds = [requests_a_minute(load, layout, requests, **numbers) for _ in range(rounds)]
        middle = statistics.median(speeds)
        lines.append(
            Line(
                row=f"simulate {row}",
                subject=layout,
                figure=f"{middle / 1000:.0f}k/min",
                value=middle,
                low=min(speeds),
                high=max(speeds),
                bar=bar,
                unit=" a minute",
                cpu_us=60e6 / middle,
            )
        )
    return lines


def main() -> int:
    """Measure, print, and return 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return print_lines(run(options.requests, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
