"""The bar table: every speed that was promised, our figure beside each, PASS or miss.

    python bench/speed/table.py              about eight minutes
    python bench/speed/table.py --quick      about two minutes, wider spread
    python bench/speed/table.py --json       for machines

Part by part: `mount_ratio.py`, `log_ratio.py`, `rebuild_ratio.py`, `growth_ratio.py`,
`bench_codes.py`, `two_loss_mount.py`, `raidx_mount.py`, `large_array.py`, `simulation_speed.py`;
`pytest bench` times the hot paths without a mount. Run it on an idle machine: of 2 processors,
another program takes one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys

import bench_codes
import growth_ratio
import large_array
import log_ratio
import mount_ratio
import raidx_mount
import rebuild_ratio
import simulation_speed
import two_loss_mount
from candidates import MIB, TWO_LOSS_WIDTHS
from lines import Line, print_lines

LOAD_MAX = 0.5


def main() -> int:
    """Measure everything, print it, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, help="rounds of each row (default: 9, quick: 3)")
    parser.add_argument("--directory", default="/dev/shm", help="folder for members and files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("fio") is None:
        print("fio is missing; install it: apt install fio", file=sys.stderr)
        return 2
    if os.getloadavg()[0] > LOAD_MAX:
        print(f"load {os.getloadavg()[0]:.1f}: other work disturbs the figures", file=sys.stderr)
    # SIGTERM unmounts as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rounds = options.rounds or (3 if options.quick else 9)
    seconds = 0.4 if options.quick else 1.0
    lines: list[Line] = mount_ratio.run(
        size=(64 if options.quick else 128) * MIB,
        rounds=rounds,
        seconds=seconds,
        directory=options.directory,
    )
    lines += mount_ratio.run(
        mount_ratio.WIDE_NAMES,
        rows=mount_ratio.WIDE_ROWS,
        rounds=rounds,
        seconds=seconds,
        directory=options.directory,
    )
    lines += log_ratio.run(3 * rounds)
    lines += rebuild_ratio.run(256 if options.quick else 512, min(rounds, 5))
    lines += growth_ratio.run(128 if options.quick else 256, min(rounds, 5))
    lines += bench_codes.run((), 512 if options.quick else 1024, min(rounds, 5))
    lines += two_loss_mount.run(
        ["upc"] if options.quick else list(TWO_LOSS_WIDTHS),
        size=64 * MIB,
        rounds=min(rounds, 3),
        seconds=seconds / 2,
    )
    lines += raidx_mount.run(options.directory, min(rounds, 5), seconds)
    lines += large_array.run(options.directory, min(rounds, 3))
    lines += simulation_speed.run(rounds=min(rounds, 3))
    return print_lines(lines, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
