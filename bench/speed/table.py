"""The bar table: every speed that was promised, our figure beside each, PASS or miss.

    python bench/speed/table.py                      about eight minutes
    python bench/speed/table.py --quick              about two minutes, wider spread
    python bench/speed/table.py --only log,codes     some parts: see parts.py
    python bench/speed/table.py --against COMMIT     an older commit and this tree beside each other
    python bench/speed/table.py --write              dates the figures: report.json, and the pages
    python bench/speed/table.py --json               for machines

Each part is a program of its own: `mount_ratio.py`, `log_ratio.py`, `sums_ratio.py`,
`rebuild_ratio.py`, `growth_ratio.py`, `code_ratio.py`, `two_loss_mount.py`, `raidx_mount.py`,
`large_array.py`, `simulation_speed.py`; `pytest bench` times the hot paths without a mount. Run it
on an idle machine: of 2 processors, another program takes one.

With --against, the programs of both commits run in turn, round by round, each on its own engine;
that takes ten times as long as one round of the table.
*Gain* is the new value of a line by its old one, and the old processor time of a request by its new
one: above 1 is better. A line is called worse or better if all rounds agree and the median differs
by more than 3 %; the exit status is 1 if one is worse.
With --only and --write, the report keeps the lines of the other parts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from itertools import chain

from against import compare, print_pairs
from lines import Line, print_lines
from page import commit, write
from parts import LOAD_MAX, PARTS, measure


def main() -> int:
    """Measure everything, print it, and return 1 if a bar was missed or a line is worse."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ",".join(part.name for part in PARTS)
    parser.add_argument("--quick", action="store_true", help="shorter runs, fewer rounds")
    parser.add_argument("--rounds", type=int, help="rounds of each row (default: 9, quick: 3)")
    parser.add_argument("--only", default=names, metavar="PARTS", help=f"of {names}")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--against", metavar="COMMIT", help="compare (default: 5 rounds, quick: 3)")
    choice.add_argument("--write", action="store_true", help="write report.json and the pages")
    choice.add_argument("--json", action="store_true")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(names.split(","))
    if unknown:
        parser.error(f"no part is called {min(unknown)}; the parts are {names}")
    if shutil.which("fio") is None:
        print("fio is missing; install it: apt install fio", file=sys.stderr)
        return 2
    load, measured = os.getloadavg()[0], commit()
    if load > LOAD_MAX:
        print(f"load {load:.1f}: other work disturbs the figures", file=sys.stderr)
    # SIGTERM unmounts as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parts = [part for part in PARTS if part.name in options.only.split(",")]
    if options.against:
        rounds = options.rounds or (3 if options.quick else 5)
        return print_pairs(compare(parts, options.against, rounds, quick=options.quick))
    rounds = options.rounds or (3 if options.quick else 9)
    found: dict[str, list[Line]] = {}
    for part in parts:
        found[part.name] = measure(part, rounds, quick=options.quick)
        print(f"{part.name}: done", file=sys.stderr)
    if options.write:
        write(found, measured, rounds=rounds, quick=options.quick, load=load)
    return print_lines(list(chain(*found.values())), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
