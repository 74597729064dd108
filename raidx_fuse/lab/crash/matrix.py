"""Campaigns over many cells: the tasks of the processes, and the resulting matrix.

A task is a cell, a range of workload seeds and a number of states. The tasks of a campaign depend
only on its options, so a campaign checks the same states on any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.walk import FAULTS, WORKLOAD_STATES, Tally, crash_workloads

TASK_STATES = 250
SEEDS_OF_TASK = 1000
SEEDS_OF_FOCUS = 40
SEEDS_OF_CAMPAIGN = 1_000_000
LAYOUTS_DEFAULT = ("raid0", "raid4", "raid5")


@dataclass(frozen=True, slots=True)
class Task:
    """Check *states* crashed states of the workloads of *cell*, from *first_seed* on.

    *each*: at most so many of one workload. With *focus* only states of that verb, of few
    workloads: perhaps fewer states.
    """

    cell: Cell
    first_seed: int
    states: int
    focus: str = ""
    each: int = WORKLOAD_STATES


def tasks_of(cells: Sequence[Cell], states: int, seed: int) -> list[Task]:
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
                tasks.append(Task(cell, first, portion))
                number += 1
    return tasks


def run_task(task: Task) -> Tally:
    """Run *task* in this process; return its counts."""
    count = SEEDS_OF_FOCUS if task.focus else SEEDS_OF_TASK
    seeds = range(task.first_seed, task.first_seed + count)
    return crash_workloads(task.cell, seeds, task.states, focus=task.focus, each=task.each)


def run_tasks(tasks: Iterable[Task]) -> Iterator[Tally]:
    """Run *tasks* one after the other; yield the counts of each."""
    yield from map(run_task, tasks)


def run_cells(cells: Sequence[Cell], states: int, seed: int) -> Tally:
    """Run a whole campaign in this process; return its counts."""
    tally = Tally()
    for part in run_tasks(tasks_of(cells, states, seed)):
        tally.add(part)
    return tally


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
