"""Lines of the table: a measured figure and its bar, the value that it must reach."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One measured figure.

    *value* is what the *bar* is about, a ratio unless *unit* says otherwise, *low* and *high* its
    spread over the rounds; *figure* is the absolute speed in words; *at_most* turns the bar around;
    *detail* goes into the JSON.
    """

    row: str
    subject: str
    figure: str
    value: float
    low: float
    high: float
    bar: float | None = None
    unit: str = ""
    at_most: bool = False
    cpu_us: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def over(
        cls, values: Sequence[float], row: str, subject: str, figure: str, **rest: Any
    ) -> Line:
        """Return the line of the median of *values*, one for each round; *rest* as for `Line`."""
        middle = statistics.median(values)
        return cls(row, subject, figure, middle, min(values), max(values), **rest)

    @property
    def passed(self) -> bool | None:
        """Whether the bar was reached; None without a bar."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def print_lines(lines: Sequence[Line], *, as_json: bool) -> int:
    """Print *lines*; return the exit status: 1 if a bar was missed."""
    missed = any(line.passed is False for line in lines)
    if as_json:
        records = [{**asdict(line), "passed": line.passed} for line in lines]
        print(json.dumps({"output_version": 1, "lines": records}, indent=1))
        return int(missed)
    print(f"{'row':<28}{'subject':<11}{'speed':>15}{'CPU us':>8}{'ours':>9}  {'spread':<12}bar")
    for line in lines:
        verdict = {None: "", True: "PASS", False: "miss"}[line.passed]
        sign = "<=" if line.at_most else ">="
        bar = "" if line.bar is None else f"{sign} {line.bar:g}{line.unit}"
        cpu = "" if line.cpu_us is None else f"{line.cpu_us:.1f}"
        spread = f"{line.low:.2f}-{line.high:.2f}" if line.low != line.high else ""
        print(
            f"{line.row:<28}{line.subject:<11}{line.figure:>15}{cpu:>8}"
            f"{line.value:>9.2f}  {spread:<12}{bar:<19}{verdict}".rstrip()
        )
    return int(missed)


def main_of(measure: Callable[[int, int], Sequence[Line]], about: str, size_mib: int) -> int:
    """Be the program that *measure*s with (MiB of each member, rounds); 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--size", type=int, default=size_mib, help="data of each member, MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return print_lines(measure(options.size, options.rounds), as_json=options.json)
