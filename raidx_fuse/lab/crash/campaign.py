"""Campaigns: many workloads are run and crashed, their states counted, and one of them replayed.

One recorded workload is crashed at moments x decisions x losses; recoveries are crashed, too. A
task is a cell, a range of workload seeds and a number of states. The tasks of a campaign depend
only on its options, so a campaign checks the same states on any number of processes.
"""

from __future__ import annotations

import gc
import logging
import random
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle

from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import POOL
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.pairs import Meeting, PairRecording, is_pair, record_pair
from raidx_fuse.lab.crash.recording import TEMPTING, Recording
from raidx_fuse.lab.crash.state import DROPPED, KEPT, Cell, Cut, State, Violation, ViolationError
from raidx_fuse.lab.crash.workload import record_workload, themes_of
from raidx_fuse.members.simulated.powercut import CutRecord, DiskState, Image, count_cuts
from raidx_fuse.members.simulated.virtual_time import run

ENUMERATED_MAX = 4  # up to so many combinations of whole writes, all are tried
DRAWN = 3  # random decisions where there are more combinations; one of them tears all writes
LOST_SHARE = 0.55  # of the states: members are lost in the cut
AGAIN_SHARE = 0.04  # of the states: their recovery is crashed as well
AGAIN_LOST_SHARE = 0.7  # of those: members are lost in the second cut, if none was in the first one
BACK_SHARE = 0.3  # of the members that the first cut took: they are there after a later one
UNREAD_SHARE = 0.15  # of the members that a cut would take: only their log cannot be read then
AGAIN_MOMENTS, AGAIN_LATER = 8, 2  # how many moments of a recovery; of those: after the mount
LEVELS_MAX, THIRD_SHARE = 2, 0.04  # recoveries in a row that are cut
POOL_STATES_MAX = 24  # of one workload on a pool
LAST_KEPT = "l1"  # where a theme tempts: all but the last record is dropped, and recovery is cut
STATES_MAX = 5  # of one meeting
PLACES = 6  # of one pair, unless all are asked for
WORKLOAD_STATES = 80  # of one workload: new workloads find more than more states of one
GARBAGE_OBJECTS = 10_000  # new ones, until the garbage collector looks at them
FAULTS = ("cut", "cut, disk lost", "recovery cut", "recovery cut, disk lost")
TASK_STATES = 250
SEEDS_OF_TASK = 1000
SEEDS_OF_FOCUS = 40
SEEDS_OF_CAMPAIGN = 1_000_000
THEME_STATES = 80  # of each theme of a cell, at first
EACH = 4  # of one workload then: many workloads, to meet what only some of them do
ROUNDS_MAX = 40
RUNNING = "running"  # not a moment of a cut: a workload that failed
FIRST_NUMBER = 500_000 // SEEDS_OF_TASK  # of the seeds: behind those of a usual campaign


@dataclass
class Tally:
    """Counts by (cell, verb, fault), and the broken promises."""

    states: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    workloads: int = 0

    @property
    def total(self) -> int:
        return sum(self.states.values())

    def count(self, state: State, verb: str, what: str | None) -> None:
        """Count *state*; *what* is the promise that it breaks, or None."""
        lost = any(cut.lost or cut.unread for cut in (state.cut, *state.again))
        fault = FAULTS[2 * bool(state.again) + lost]
        key = str(state.cell), verb, fault
        self.states[key] += 1
        if what is not None:
            self.failures[key] += 1
            self.violations.append(Violation(str(state), verb, fault, what))

    def report(self, most: int = 5) -> str:
        return "\n".join(map(str, self.violations[:most]))

    def add(self, other: Tally) -> None:
        self.states += other.states
        self.failures += other.failures
        self.violations += other.violations
        self.workloads += other.workloads


class _Crasher:
    """Crashes the workload *recorded*; *generator* draws the states, which *tally* counts."""

    def __init__(self, recorded: Recording, generator: random.Random, tally: Tally) -> None:
        self.recorded = recorded
        self.rng = generator
        self.tally = tally
        self._disks: Sequence[DiskState] = ()  # at the moment of the first cut

    async def crash(self, budget: int, focus: str = "") -> None:
        """Crash it about *budget* times; with *focus*, only at moments of that verb."""
        recorded, rng = self.recorded, self.rng
        weights = recorded.weights()
        if focus:
            weights = [w * (recorded.verb_at(moment) == focus) for moment, w in enumerate(weights)]
        ahead = sum(weights)
        for index, disks, _event in recorded.record.moments():
            if budget <= 0:
                return
            self._disks = disks
            # There are more moments than states: visit a random share of them.
            here = weights[index]
            visit = rng.random() * ahead * (DRAWN + 2) <= here * (budget + DRAWN + 2)
            ahead -= here
            if not visit or (focus and not here):
                continue
            decisions = _decisions(disks, rng)
            if here == TEMPTING:
                decisions = [LAST_KEPT, rng.choice(decisions)]
            for decision in decisions:
                lost: tuple[int, ...] = ()
                unread: tuple[int, ...] = ()
                if rng.random() < LOST_SHARE:
                    lost = recorded.losses(index, rng)
                    can = not (recorded.is_pool or recorded.log_moves)
                    if can and rng.random() < UNREAD_SHARE:
                        lost, unread = (), lost
                cut = Cut(index, decision, lost, (), unread)
                state = State(recorded.cell, recorded.seed, cut)
                verb = recorded.verb_at(index)
                self.tally.count(state, verb, await self._what_breaks(state))
                budget -= 1
                if rng.random() < AGAIN_SHARE or decision == LAST_KEPT:
                    budget -= await self._crash_recovery(self._left(cut), state)

    async def replay(self, state: State) -> str | None:
        disks = _disks_at(self.recorded.record, state.cut.moment)
        if disks is None:
            return f"the workload has no moment {state.cut.moment}: the code has changed"
        self._disks = disks
        return await self._what_breaks(state)

    def _images(
        self, disks: Sequence[DiskState], cut: Cut, numbers: Sequence[int]
    ) -> dict[int, Image]:
        """Return what *cut* leaves of *disks*, by number, without lost disks and non-members.

        The images use the memory of those that the last call returned.
        """
        images = {}
        memory = self.recorded.memory
        for number, disk, decisions in zip(numbers, disks, cut.decisions(disks), strict=True):
            if number not in cut.lost:
                image = memory[number] = disk.crash(decisions, into=memory.get(number))
                if is_member(image):
                    images[number] = image
        return images

    def _left(self, cut: Cut) -> Left:
        recorded = self.recorded
        images = self._images(self._disks, cut, range(len(self._disks)))
        if recorded.rot_while_off is not None and recorded.rots_at(cut.moment):
            state = State(recorded.cell, recorded.seed, cut)
            recorded.rot_while_off.strike(images, state.generator("rot"))
        return Left(recorded, cut.moment, images, frozenset(cut.lost), cut.unread)

    def _left_again(self, left: Left, again: Sequence[DiskState], before: State, cut: Cut) -> Left:
        """Return what *cut* left of *again*, the disks of *left* in the recovery from *before*."""
        images = self._images(again, cut, sorted(left.images))
        decisions = before.cut.decisions(self._disks) if cut.back else []
        for number in cut.back:
            image = self._disks[number].crash(decisions[number])
            if is_member(image):
                images[number] = image
        return replace(left, images=images, lost=left.lost | set(cut.lost), unread=cut.unread)

    async def _what_breaks(self, state: State) -> str | None:
        """Return the promise that *state* breaks, or None."""
        left = self._left(state.cut)
        try:
            for number, cut in enumerate(state.again):
                before = replace(state, again=state.again[:number])
                again = _disks_at(await _record_recovery(left, before), cut.moment)
                if again is None:
                    return f"the recovery has no moment {cut.moment}: the code has changed"
                left = self._left_again(left, again, before, cut)
        except ViolationError as error:
            return str(error)
        return await _verdict(left, state)

    async def _crash_recovery(self, left: Left, state: State) -> int:
        """Crash the recovery from *state* at some of its boundaries; return the number of states.

        Some of the recoveries from there are crashed as well.
        """
        verb = self.recorded.verb_at(state.cut.moment)
        try:
            record = await _record_recovery(left, state)
        except ViolationError as error:
            self.tally.count(state, verb, f"the recovery fails: {error}")
            return 1
        # Most moments are before the array is mounted.
        events, number = record.events, 0
        mounted = next((n for n, event in enumerate(events) if event.operation == "note"), 0)
        recovering, later = range(mounted + 1), range(mounted + 1, len(events) + 1)
        chosen = self.rng.sample(recovering, min(AGAIN_MOMENTS - AGAIN_LATER, len(recovering)))
        chosen += self.rng.sample(later, min(AGAIN_MOMENTS - len(chosen), len(later)))
        for index, again, _event in record.moments():
            if index not in chosen:
                continue
            cut = self._draw_again(state, index, again)
            crashed = replace(state, again=(*state.again, cut))
            next_left = self._left_again(left, again, state, cut)
            if len(crashed.again) < LEVELS_MAX and self.rng.random() < THIRD_SHARE:
                number += await self._crash_recovery(next_left, crashed)
                continue
            self.tally.count(crashed, verb, await _verdict(next_left, crashed))
            number += 1
        return number

    def _draw_again(self, state: State, index: int, disks: Sequence[DiskState]) -> Cut:
        """Draw a cut of the recovery from *state* at moment *index* of its *disks*."""
        recorded, rng = self.recorded, self.rng
        decision = rng.choice(_decisions(disks, rng))
        gone = any(cut.lost for cut in (state.cut, *state.again))
        lost: tuple[int, ...] = ()
        if not gone and rng.random() < AGAIN_LOST_SHARE:
            lost = recorded.losses(state.cut.moment, rng)
        back: tuple[int, ...] = ()
        if not recorded.is_pool and state.cut.lost and not any(cut.back for cut in state.again):
            back = tuple(n for n in state.cut.lost if rng.random() < BACK_SHARE)
        return Cut(index, decision, lost, back)


def _decisions(disks: Sequence[DiskState], generator: random.Random) -> list[str]:
    """Return the decisions to try at one moment: all combinations if they are few."""
    count = count_cuts(disks, torn=False)
    torn = f"t{generator.getrandbits(24)}"
    if count == 1:
        return [KEPT]
    if count <= ENUMERATED_MAX:
        return [*(f"e{number}" for number in range(count)), torn]
    drawn = [f"{kind}{generator.getrandbits(24)}" for kind in "sc"[: DRAWN - 1]]
    return [generator.choice((DROPPED, KEPT)), *drawn, torn]


def _disks_at(record: CutRecord, moment: int) -> Sequence[DiskState] | None:
    return next((disks for index, disks, _event in record.moments() if index == moment), None)


async def _verdict(left: Left, state: State) -> str | None:
    """Return the promise that *left*, to which *state* has led, breaks, or None."""
    try:
        await left.judge(state.generator("look"))
    except ViolationError as error:
        return str(error)
    return None


async def _record_recovery(left: Left, state: State) -> CutRecord:
    record = CutRecord()
    await left.judge(state.generator("recovery"), record)
    return record


def _recorded(cell: Cell, seed: int) -> Recording | str:
    """Return the workload of *seed*, or how it fails without a power cut: a violation, too."""
    try:
        return record_pair(cell, seed) if is_pair(cell) else record_workload(cell, seed)
    except Exception as error:
        return f"the workload fails while running: {error!r}\n{traceback.format_exc()}"


def _crash_pair(
    cell: Cell, seed: int, budget: int, generator: random.Random, tally: Tally, *, every: bool
) -> None:
    """Let the pair of *seed* meet at some places, or at *every* one, and crash each meeting.

    A meeting counts as a state, too: its content is compared before any cut. There are about
    *budget* states at most unless *every* place is asked for.
    """
    meeting = Meeting.of(cell, seed)
    places = deque([1, 0] if meeting.at is None else [meeting.at])
    while places and (budget > 0 or every):
        place = places.popleft()
        met = replace(cell, theme=str(meeting._replace(at=place)))
        recorded = _recorded(met, seed)
        what = recorded if isinstance(recorded, str) else None
        if isinstance(recorded, PairRecording) and recorded.void:
            return
        tally.count(State(met, seed, Cut(0, KEPT)), RUNNING, what)
        budget -= 1
        if isinstance(recorded, PairRecording):
            states = STATES_MAX if every else min(budget, STATES_MAX)
            run(_Crasher(recorded, generator, tally).crash, states)
            budget -= states
            if meeting.at is None and place == 1:  # how many places there are
                further = range(2, recorded.steps + 1)
                drawn = generator.sample(further, min(PLACES, len(further)))
                places.extend(further if every else drawn)


def crash_workloads(
    cell: Cell,
    seeds: Sequence[int],
    states: int,
    *,
    stop_after: int = 20,
    focus: str = "",
    each: int = WORKLOAD_STATES,
    every_place: bool = False,
) -> Tally:
    """Crash the workloads of *seeds* in turn; return the counts.

    Ends after *states* states, *each* at most of one workload, or *stop_after* violations. If the
    seeds are too few, they are used again with newly drawn states. With *focus* only moments of
    that verb are crashed, and each seed is used once: not every workload has such moments. The
    operations of a pair meet at *every_place*, else at some.
    """
    tally = Tally()
    with _quiet():
        for turn, seed in enumerate(cycle(seeds)):
            if tally.total >= states or len(tally.violations) >= stop_after:
                break
            if (focus or is_pair(cell)) and turn == len(seeds):
                break
            budget = min(states - tally.total, each)
            tally.workloads += 1
            generator = random.Random(f"{cell} {seed} {turn // len(seeds)} cuts{focus}")
            if is_pair(cell):
                _crash_pair(cell, seed, budget, generator, tally, every=every_place)
            elif isinstance(recorded := _recorded(cell, seed), str):
                tally.count(State(cell, seed, Cut(0, KEPT)), RUNNING, recorded)
            else:
                budget = min(budget, POOL_STATES_MAX) if cell.theme == POOL else budget
                run(_Crasher(recorded, generator, tally).crash, budget, focus)
    return tally


def replay(state: State) -> tuple[str, str | None]:
    """Run exactly *state* again; return its verb and the broken promise, None if there is none."""
    with _quiet():
        recorded = _recorded(state.cell, state.seed)
        if isinstance(recorded, str):
            return RUNNING, recorded
        crasher = _Crasher(recorded, random.Random(0), Tally())
        return recorded.verb_at(state.cut.moment), run(crasher.replay, state)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of the engine: thousands of arrays lose members here.

    The garbage collector also looks less often, and not at what was there before: each array leaves
    cycles, and to look for them takes a twelfth of the time at Python's own thresholds. What it has
    not found in the end is collected then: once it counts as old, it is hardly ever looked for.
    """
    before, thresholds = logging.root.manager.disable, gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        gc.unfreeze()
        logging.disable(before)


@dataclass(frozen=True, slots=True)
class Task:
    """Check *states* crashed states of the workloads of *cell*, from *first_seed* on.

    *each*: at most so many of one workload. With *focus* only states of that verb, of few
    workloads: perhaps fewer states. *every_place*: of pairs (`crash_workloads`).
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
    count = SEEDS_OF_FOCUS if task.focus else SEEDS_OF_TASK
    seeds = range(task.first_seed, task.first_seed + count)
    return crash_workloads(
        *(task.cell, seeds, task.states),
        focus=task.focus,
        each=task.each,
        every_place=task.every_place,
    )


def run_cells(cells: Sequence[Cell], states: int, seed: int) -> Tally:
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
        # By cell without theme, and verb, how many states of each theme.
        self._states: dict[tuple[Cell, str], Counter[str]] = {}

    def note(self, tally: Tally) -> None:
        for (name, verb, _fault), count in tally.states.items():
            cell = Cell.parse(name)
            self._states.setdefault((replace(cell, theme=""), verb), Counter())[cell.theme] += count

    def rounds(self) -> Iterator[list[Task]]:
        """Yield lists of tasks; `note` what they gave before the next list is asked for."""
        yield [
            self._task(replace(cell, theme=theme), THEME_STATES, each=EACH)
            for cell in self._cells
            for theme in themes_of(cell)
        ]
        for _ in range(ROUNDS_MAX):
            tasks = []
            for (cell, verb), missing in self.missing().items():
                met = [(n, theme) for theme, n in self._states[cell, verb].items() if theme]
                theme = max(met)[1] if met else ""  # where it was met most, else a random one
                tasks.append(self._task(replace(cell, theme=theme), missing, verb))
            if not tasks:
                return
            yield tasks

    def missing(self) -> dict[tuple[Cell, str], int]:
        """Return how many states each row lacks, those that lack some."""
        return {
            row: min(self._minimum - counts.total(), TASK_STATES)
            for row, counts in sorted(self._states.items(), key=lambda item: str(item[0]))
            if counts.total() < self._minimum and row[1] != RUNNING
        }

    def _task(self, cell: Cell, states: int, focus: str = "", each: int = WORKLOAD_STATES) -> Task:
        self._number += 1
        first_seed = self._first_seed + self._number * SEEDS_OF_TASK
        return Task(cell, first_seed, states, focus, each)


def rows_of(tally: Tally) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return rows (cell, verb, [(states, failures) by fault]); a cell's last row is its sum.

    Cells that differ only in their theme are one.
    """
    counts: Counter[tuple[str, str, str, int]] = Counter()
    for place, counter in enumerate((tally.states, tally.failures)):
        for (name, verb, fault), count in counter.items():
            cell = str(replace(Cell.parse(name), theme=""))
            for row in (verb, "all"):
                counts[cell, row, fault, place] += count
    rows = sorted({key[:2] for key in counts}, key=lambda row: (row[0], row[1] == "all", row[1]))
    return [
        (cell, verb, [(counts[cell, verb, f, 0], counts[cell, verb, f, 1]) for f in FAULTS])
        for cell, verb in rows
    ]


def shown(pair: tuple[int, int]) -> str:
    states, failures = pair
    return f"{states:,} / {failures:,}" if states else "-"


def markdown(tally: Tally, command: str, date: str, elapsed_s: float) -> str:
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
