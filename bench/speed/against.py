"""Old and new beside each other: the parts of the table on two commits, in alternating rounds."""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lines import Line
from parts import ROOT, Part, measure

NOISE = 0.03  # a change of the median that is not reported


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of the table in all rounds, old and new."""

    part: str
    old: list[Line]
    new: list[Line]

    @property
    def gains(self) -> list[float]:
        """What the line is about, new by old, in each round: above 1 is better."""
        found = [n.value / o.value for o, n in zip(self.old, self.new, strict=True) if o.value]
        return [1 / gain for gain in found if gain] if self.new[0].at_most else found

    @property
    def cpu_gains(self) -> list[float]:
        """Processor time of a request, old by new, in each round; none if it is not measured."""
        times = zip(map(cpu_us, self.old), map(cpu_us, self.new), strict=True)
        return [old / new for old, new in times if old and new]

    @property
    def verdict(self) -> str:
        """What is worse or better in every round, and by more than `NOISE` in the median."""
        found = {"": self.gains, " CPU": self.cpu_gains}
        worse = [f"worse{what}" for what, gains in found.items() if is_worse(gains)]
        better = [
            f"better{what}"
            for what, gains in found.items()
            if is_worse([1 / gain for gain in gains])
        ]
        return ", ".join(worse + better)


def is_worse(gains: Sequence[float]) -> bool:
    """Return whether all of *gains* are below 1 and their median clearly so.

    >>> is_worse([0.8, 0.9, 0.95]), is_worse([0.8, 0.9, 1.01]), is_worse([0.98, 0.99, 0.99])
    (True, False, False)
    """
    return bool(gains) and max(gains) < 1 and statistics.median(gains) < 1 - NOISE


def cpu_us(line: Line) -> float | None:
    """Return the processor time of one request in microseconds; older trees have it in words.

    >>> cpu_us(Line("4 KiB random write, engine", "raid5+log", "16.9 us CPU", 0.5, 0.4, 0.6))
    16.9
    """
    words = re.fullmatch(r"([\d,.]+) us CPU", line.figure)
    if line.cpu_us is None and words is not None:
        return float(words[1].replace(",", ""))
    return line.cpu_us


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Unpack *commit* into a temporary folder. Raises RuntimeError if there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="raidx-old-") as folder:
        archive = Path(folder) / "tree.tar"
        done = subprocess.run(
            ["git", "archive", "--output", str(archive), commit],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{commit} cannot be unpacked: {done.stderr.strip()}")
        tree = Path(folder) / "tree"
        tree.mkdir()
        subprocess.run(["tar", "-x", "-f", str(archive), "-C", str(tree)], check=True)
        yield tree


def compare(parts: Sequence[Part], commit: str, rounds: int, *, quick: bool) -> list[Pair]:
    """Measure *parts* on *commit* and on this tree, *rounds* rounds, each tree first in turn."""
    found: dict[tuple[str, str, str, int], tuple[list[Line], list[Line]]] = {}
    with tree_of(commit) as old:
        for part in parts:
            for number in range(rounds):
                sides = ((0, old), (1, ROOT))
                for side, tree in sides if number % 2 else sides[::-1]:
                    seen: Counter[tuple[str, str]] = Counter()
                    for line in measure(part, 1, quick=quick, tree=tree):
                        key = (part.name, line.row, line.subject, seen[line.row, line.subject])
                        seen[line.row, line.subject] += 1
                        found.setdefault(key, ([], []))[side].append(line)
                print(f"{part.name}: round {number + 1} of {rounds} done", file=sys.stderr)
    return [
        Pair(part, before, after)
        for (part, *_), (before, after) in found.items()
        if len(before) == len(after)  # the other lines are new, or gone
    ]


def print_pairs(pairs: Sequence[Pair]) -> int:
    """Print *pairs*; return the exit status: 1 if a line is worse."""
    head = f"{'row':<32}{'subject':<11}{'old':>9}{'new':>9}{'gain':>7}  {'spread':<12}"
    print(f"{head}{'CPU us old':>11}{'new':>8}{'gain':>7}  spread")
    for pair in pairs:
        line = pair.new[0]
        values = [statistics.median(each.value for each in side) for side in (pair.old, pair.new)]
        shown = "".join(f"{value:>9.3g}" for value in values)
        text = f"{line.row:<32}{line.subject:<11}{shown}{gains_text(pair.gains)}"
        if pair.cpu_gains:
            times = [statistics.median(filter(None, map(cpu_us, s))) for s in (pair.old, pair.new)]
            text += f"{times[0]:>11.1f}{times[1]:>8.1f}{gains_text(pair.cpu_gains)}"
        print(f"{text:<112} {pair.verdict}".rstrip())
    return int(any("worse" in pair.verdict for pair in pairs))


def gains_text(gains: Sequence[float]) -> str:
    """Return the median of *gains* and their spread."""
    if not gains:
        return " " * 21
    return f"{statistics.median(gains):>7.2f}  {f'{min(gains):.2f}-{max(gains):.2f}':<12}"
