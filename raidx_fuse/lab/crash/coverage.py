"""A campaign that covers every row of the matrix: each array with each thing that happens to it.

Random themes meet some verbs a thousand times and others twice. So first every theme of every cell
runs for a few states, which tells what can happen in which theme. Then rounds of tasks crash only
moments of verbs that have too few states, until all have enough. Rounds depend only on counts, so a
campaign checks the same states on any number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from raidx_fuse.lab.crash.matrix import SEEDS_OF_CAMPAIGN, SEEDS_OF_TASK, TASK_STATES, Task
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.walk import WORKLOAD_STATES, Tally
from raidx_fuse.lab.crash.workload import themes_of

THEME_STATES = 80  # of each theme of a cell, at first
EACH = 4  # of one workload then: many workloads, to meet what only some of them do
ROUNDS_MAX = 40
RUNNING = "running"  # not a moment of a cut: a workload that failed
FIRST_NUMBER = 500_000 // SEEDS_OF_TASK  # of the seeds: behind those of a usual campaign


class Coverage:
    """The tasks that give each row of the matrix of *cells* at least *minimum* states."""

    def __init__(self, cells: Sequence[Cell], minimum: int, seed: int) -> None:
        self._cells = cells
        self._minimum = minimum
        self._first_seed = seed * SEEDS_OF_CAMPAIGN
        self._number = FIRST_NUMBER
        self._states: Counter[tuple[Cell, str]] = Counter()  # by cell without theme, and verb
        self._by_theme: Counter[tuple[Cell, str, str]] = Counter()  # and theme

    def note(self, tally: Tally) -> None:
        """Count the states of *tally*."""
        for (name, verb, _fault), count in tally.states.items():
            cell = Cell.parse(name)
            base = replace(cell, theme="")
            self._states[base, verb] += count
            if cell.theme:
                self._by_theme[base, verb, cell.theme] += count

    def rounds(self) -> Iterator[list[Task]]:
        """Yield lists of tasks; `note` what they gave before the next list is asked for."""
        yield [
            self._task(replace(cell, theme=theme), THEME_STATES, each=EACH)
            for cell in self._cells
            for theme in themes_of(cell)
        ]
        for _ in range(ROUNDS_MAX):
            tasks = [
                self._task(replace(cell, theme=self._theme(cell, verb)), missing, verb)
                for (cell, verb), missing in self.missing().items()
            ]
            if not tasks:
                return
            yield tasks

    def missing(self) -> dict[tuple[Cell, str], int]:
        """Return how many states each row lacks, those that lack some."""
        return {
            row: min(self._minimum - count, TASK_STATES)
            for row, count in sorted(self._states.items(), key=lambda item: str(item[0]))
            if count < self._minimum and row[1] != RUNNING
        }

    def _theme(self, cell: Cell, verb: str) -> str:
        """Return the theme in which *verb* was met most; "" if only random themes met it."""
        met = [
            (count, theme)
            for (base, what, theme), count in self._by_theme.items()
            if (base, what) == (cell, verb)
        ]
        return max(met)[1] if met else ""

    def _task(self, cell: Cell, states: int, focus: str = "", each: int = WORKLOAD_STATES) -> Task:
        self._number += 1
        first_seed = self._first_seed + self._number * SEEDS_OF_TASK
        return Task(cell, first_seed, states, focus, each)
