"""Campaigns over many cells: the tasks of the processes, and the resulting matrix.

A task is a cell, a range of workload seeds and a number of states. The tasks of a campaign depend
only on its options, so a campaign checks the same states on any number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.walk import FAULTS, WORKLOAD_STATES, Tally, crash_workloads
from raidx_fuse.lab.crash.workload import themes_of

TASK_STATES = 250
SEEDS_OF_TASK = 1000
SEEDS_OF_FOCUS = 40
SEEDS_OF_CAMPAIGN = 1_000_000
THEME_STATES = 80  # of each theme of a cell, at first
EACH = 4  # of one workload then: many workloads, to meet what only some of them do
ROUNDS_MAX = 40
RUNNING = "running"  # not a moment of a cut: a workload that failed
FIRST_NUMBER = 500_000 // SEEDS_OF_TASK  # of the seeds: behind those of a usual campaign


@dataclass(frozen=True, slots=True)
class Task:
    """Check *states* crashed states of the workloads of *cell*, from *first_seed* on.

    *each*: at most so many of one workload. With *focus* only states of that verb, of few
    workloads: perhaps fewer states. *every_place*: of pairs (walk.py).
    """

    cell: Cell
    first_seed: int
    states: int
    focus: str = ""
    each: int = WORKLOAD_STATES
    every_place: bool = False


def tasks_of(
    cells: Sequence[Cell], states: int, seed: int, *, every_place: bool = False
) -> list[Task]:
    """Divide *states* evenly among *cells*, in tasks of up to TASK_STATES; the cells alternate."""
    tasks = []
    shares = [states // len(cells) + (i < states % len(cells)) for i in range(len(cells))]
    number = 0
    while any(shares):
        for index, cell in enumerate(cells):
            portion = min(TASK_STATES, shares[index])
            if portion:
                shares[index] -= portion
                first = seed * SEEDS_OF_CAMPAIGN + number * SEEDS_OF_TASK
                tasks.append(Task(cell, first, portion, every_place=every_place))
                number += 1
    return tasks


def run_task(task: Task) -> Tally:
    """Run *task* in this process; return its counts."""
    count = SEEDS_OF_FOCUS if task.focus else SEEDS_OF_TASK
    seeds = range(task.first_seed, task.first_seed + count)
    return crash_workloads(
        *(task.cell, seeds, task.states),
        focus=task.focus,
        each=task.each,
        every_place=task.every_place,
    )


def run_cells(cells: Sequence[Cell], states: int, seed: int) -> Tally:
    """Run a whole campaign in this process; return its counts."""
    tally = Tally()
    for task in tasks_of(cells, states, seed):
        tally.add(run_task(task))
    return tally


class Coverage:
    """The tasks that give each row of the matrix of *cells* at least *minimum* states.

    Random themes meet some verbs a thousand times and others twice. So first every theme of every
    cell runs for a few states, which tells what can happen in which theme. Then rounds of tasks
    crash only moments of verbs that have too few states, until all have enough. Rounds depend only
    on counts, so a campaign checks the same states on any number of processes.
    """

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


def rows_of(tally: Tally) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return rows (cell, verb, [(states, failures) by fault]); a cell's last row is its sum.

    Cells that differ only in their theme are one.
    """
    tally = without_themes(tally)
    cells = sorted({cell for cell, _, _ in tally.states})
    rows = []
    for cell in cells:
        verbs = sorted({verb for c, verb, _ in tally.states if c == cell})
        sums = [[0, 0] for _ in FAULTS]
        for verb in verbs:
            counts = []
            for index, fault in enumerate(FAULTS):
                key = cell, verb, fault
                pair = tally.states[key], tally.failures[key]
                sums[index][0] += pair[0]
                sums[index][1] += pair[1]
                counts.append(pair)
            rows.append((cell, verb, counts))
        rows.append((cell, "all", [(states, failures) for states, failures in sums]))
    return rows


def without_themes(tally: Tally) -> Tally:
    """Return the counts of *tally*, those of all themes of a cell together."""
    merged = Tally(violations=tally.violations, workloads=tally.workloads)
    for mine, its in ((merged.states, tally.states), (merged.failures, tally.failures)):
        for (cell, verb, fault), count in its.items():
            mine[str(replace(Cell.parse(cell), theme="")), verb, fault] += count
    return merged


def shown(pair: tuple[int, int]) -> str:
    """Return "states / failures", or a dash where no state was run."""
    states, failures = pair
    return f"{states:,} / {failures:,}" if states else "-"


def markdown(tally: Tally, command: str, date: str, elapsed_s: float) -> str:
    """Return the campaign's page in Markdown: the command, the date, and the matrix."""
    lines = [
        "# Crash matrix",
        "",
        f"{tally.total:,} states of {tally.workloads:,} workloads, "
        f"{sum(tally.failures.values()):,} violations.",
        "",
        f"- Date: {date}",
        f"- Command: `{command}`",
        f"- Time: {elapsed_s:.0f} s",
        "",
        "A state is what a power cut leaves at one boundary between two writes or flushes of the",
        "members: every write since a member's last flush is kept, dropped or torn at a sector,",
        "and whole disks may be lost in that instant. The array is mounted from these disks, every",
        "sector is compared with what the journal mode promises, and parity is checked. Some of",
        "the recoveries are cut as well. Each entry of the matrix says states / violations.",
        "",
        "A dash means that no state of this kind was drawn. With *disk lost* it may be that there",
        "is none: raid0 and raidx-zero lose no disk, a scrub or a mend that writes is tried with",
        "the damage that it repairs as the loss, and where members are out already none is left to",
        "lose. A row may have a dash for a cut recovery where few states were drawn: three of a",
        "hundred recoveries are cut.",
        "",
        f"| array | when | {' | '.join(FAULTS)} |",
        f"| --- | --- | {' | '.join('---:' for _ in FAULTS)} |",
    ]
    for cell, verb, counts in rows_of(tally):
        texts = [shown(pair) for pair in counts]
        if verb == "all":
            texts = [f"**{text}**" for text in texts]
        lines.append(f"| {cell} | {verb} | {' | '.join(texts)} |")
    for violation in tally.violations:
        lines += ["", f"Violation: `{violation.state}`: {violation.what.splitlines()[0]}"]
    return "\n".join(lines) + "\n"
