"""Plants realistic bugs one at a time and says which ones the tests find, and which survive.

    python -m tests.crash.mutations                  every mutant, the cheapest way to find it first
    python -m tests.crash.mutations --only NAME      one of them
    python -m tests.crash.mutations --page tests/crash/MUTATIONS.md

A mutant is planted in a copy of the tree, never in the tree itself. Then the crash campaign runs on
the cells that suit it, up to the first violation; if there is none, the tests nearest to it run up
to the first failure. A mutant that hangs counts as found. Each check that finds a mutant is then
run on the unmodified tree; a check that fails there too proves nothing and is left out from then
on, and named at the end.

Exit status 1 if a mutant survives that is not shown to be equivalent (mutants/*.py), or one is
found that is called so.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

import click

from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.state import Cell
from tests.crash.mutants import (
    discards,
    gates,
    joints,
    late,
    latent,
    log,
    maps,
    members,
    moves,
    replacing,
    replay,
    returns,
    settling,
    shapes,
    sums,
    superblocks,
    tables,
)
from tests.crash.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("raidx_fuse", "cli", "layouts", "tests", "README.md", "pyproject.toml")
MODULES = (
    *(log, replay, maps, superblocks, members, tables, shapes, late, settling, discards, moves),
    *(returns, latent, replacing, joints, gates, sums),
)
MUTANTS: tuple[Mutant, ...] = tuple(mutant for module in MODULES for mutant in module.MUTANTS)
PROGRAM = "python -m tests.crash.mutations"
STATES = 2000
CAMPAIGN_LIMIT_S = 240.0  # many times what one takes: a campaign that reaches it hangs
TEST_LIMIT_S = 120
TESTS_LIMIT_S = 900.0
# An endless loop may fill the memory: then its process is killed first. A limit will not do, for
# tests have members of terabytes of which little is touched.
FIRST_TO_GO = 'echo 1000 > /proc/self/oom_score_adj; exec "$@"'
PYTEST = ("-m", "pytest", "-q", "-x", "--tb=short", "-rfE", "-p", "no:cacheprovider")
TEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", re.MULTILINE)
TEST_ID = re.compile(r"tests/.+::.+")
FOUND = 3  # exit status of HUNT
HUNT = f"""
import sys
from pathlib import Path
import raidx_fuse
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.campaign import crash_workloads
assert Path(raidx_fuse.__file__).parents[1] == Path.cwd(), "another tree is tested"
for number, task in enumerate(sys.argv[1:]):
    cell, first, end, states = task.split()
    seeds = range(int(first), int(end))
    for found in crash_workloads(Cell.parse(cell), seeds, int(states), stop_after=1).violations:
        print(f"{{number}} campaign {{cell}}, {{found.verb}}")
        print(found)
        sys.exit({FOUND})
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """*by* is the check that failed; *words* is its output.

    *command* runs it: it must find nothing in the unmodified tree, else it proves nothing.
    """

    by: str
    words: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The check that found *mutant*, "" if none did; *words*: its output; it took *elapsed_s*."""

    mutant: Mutant
    found_by: str
    words: str
    elapsed_s: float

    @property
    def is_right(self) -> bool:
        """Return whether it is found, or equivalent and not found."""
        return bool(self.found_by) != bool(self.mutant.equivalent)

    @property
    def text(self) -> str:
        """Return in words what became of the mutant."""
        if not self.mutant.equivalent:
            return self.found_by or "SURVIVES"
        if self.found_by:
            return f"called equivalent, but found by {self.found_by}"
        return f"equivalent: {self.mutant.equivalent}"


class Copy:
    """A copy of the tree in *folder*, in which one bug at a time is planted and looked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sound: set[tuple[str, ...]] = set()  # commands that find nothing without a bug
        self.broken: list[str] = []  # tests that fail without a bug
        ignore = shutil.ignore_patterns("__pycache__", ".*")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=ignore)
            else:
                shutil.copy(source, folder / name)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Run the block with *mutant* in the copy."""
        path = (self.folder / mutant.file).resolve()
        source = path.read_text()
        self._write(path, mutant.planted(source))
        try:
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        # Python knows what it compiled by size and second: two versions may be alike in both.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def look(self, mutant: Mutant, states: int, seed: int) -> Finding | None:
        """Return what the campaign and the tests find in the copy, None if all is well."""
        cells = [Cell.parse(cell) for cell in mutant.cells]
        tasks = campaign.tasks_of(cells, states, seed) if cells else []
        return (self._hunt(tasks) if tasks else None) or self._test(mutant.tests)

    def _hunt(self, tasks: Sequence[campaign.Task]) -> Finding | None:
        texts = [
            f"{t.cell} {t.first_seed} {t.first_seed + campaign.SEEDS_OF_TASK} {t.states}"
            for t in tasks
        ]
        status, words = self._run(("-c", HUNT, *texts), CAMPAIGN_LIMIT_S)
        if not status:
            return None
        if status == FOUND:
            number, by = words.split("\n", 1)[0].split(" ", 1)
            return Finding(by, words, ("-c", HUNT, texts[int(number)]))
        by = "campaign, which " + ("does not end" if status < 0 else "breaks")
        return Finding(by, words, ("-c", HUNT, *texts))

    def _test(self, tests: Sequence[str]) -> Finding | None:
        if not tests:
            return None
        # By a thread that ends the process: a loop of the engine may swallow an exception.
        options: tuple[str, ...] = (*PYTEST, f"--timeout={TEST_LIMIT_S}", "--timeout-method=thread")
        options += tuple(f"--deselect={test}" for test in self.broken)
        status, words = self._run((*options, *tests), TESTS_LIMIT_S)
        if not status:
            return None
        failed = TEST_FAILED.search(words)
        if failed is not None:
            return Finding(failed[1].removeprefix("tests/"), words, (*options, failed[1]))
        endless = status < 0 or "+ Timeout +" in words
        by = "tests, which " + ("do not end" if endless else "break")
        return Finding(by, words, (*options, *tests))

    def is_sound(self, finding: Finding) -> bool:
        """Return whether the tree as it is, without a bug, lacks the *finding*.

        If not, its test is left out from then on. Raises ClickException if it was the campaign.
        """
        if finding.command in self._sound:
            return True
        status, words = self._run(finding.command, TESTS_LIMIT_S)
        if not status:
            self._sound.add(finding.command)
            return True
        test = finding.command[-1]
        if not TEST_ID.match(test) or test in self.broken:
            raise click.ClickException(f"without any bug {finding.by} fails:\n{words}")
        self.broken.append(test)
        return False

    def _run(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
        """Run Python in the copy; return its status, negative if it did not end, and its words."""
        limited = ["sh", "-c", FIRST_TO_GO, "sh", sys.executable, *command]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        try:
            done = subprocess.run(
                limited,
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL, f"no end within {limit_s:g} s"
        return done.returncode, done.stdout


def examine(copy: Copy, mutant: Mutant, states: int = STATES, seed: int = 1) -> Verdict:
    """Plant *mutant* in *copy* and return the check that finds it, and nothing without it.

    Raises ClickException if the campaign finds something without it, too.
    """
    started_s = time.monotonic()
    while True:
        with copy.planted(mutant):
            finding = copy.look(mutant, states, seed)
        elapsed_s = time.monotonic() - started_s
        if finding is None:
            return Verdict(mutant, "", "", elapsed_s)
        if copy.is_sound(finding):
            return Verdict(mutant, finding.by, finding.words, elapsed_s)
        click.echo(f"without any bug {finding.by} fails as well: left out", err=True)


def examine_all(mutants: Sequence[Mutant], jobs: int, states: int, seed: int) -> Iterator[Verdict]:
    """Yield what became of each of *mutants*, in their order, *jobs* at a time."""
    with tempfile.TemporaryDirectory(prefix="raidx-mutations-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder, str(number))))

        def work(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return examine(copy, mutant, states, seed)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(work, mutants)


def page(
    verdicts: Sequence[Verdict],
    command: str,
    date: str,
    elapsed_s: float,
    left: Sequence[Mutant] = (),
) -> str:
    """Return the table as Markdown; *left* were not run."""
    found = [v.found_by for v in verdicts if v.found_by and v.is_right]
    by_campaign = sum(finder.startswith("campaign") for finder in found)
    equivalent = sum(verdict.is_right and not verdict.found_by for verdict in verdicts)
    lines = [
        "# Mutations",
        "",
        f"{len(verdicts)} bugs were planted, one at a time: {by_campaign} were found by the crash",
        f"campaign, {len(found) - by_campaign} by tests, {equivalent} are equivalent, "
        f"{sum(not verdict.is_right for verdict in verdicts)} unexplained;",
        f"{len(left)} were not run.",
        "",
        f"- Date: {date}",
        f"- Command: `{command}`",
        f"- Time: {elapsed_s / 60:.0f} min",
        "",
        "The campaign is tried first, on the cells that suit the bug (`mutants/*.py`), then the",
        "tests nearest to it: so what the campaign finds may well be found by a test, too.",
        "",
        "| bug | where | why it is one | found by | s |",
        "| --- | --- | --- | --- | ---: |",
    ]
    for verdict in verdicts:
        mutant = verdict.mutant
        file = mutant.file.removeprefix("raidx_fuse/")
        cells = (mutant.name, file, mutant.why, verdict.text, f"{verdict.elapsed_s:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    for mutant in left:
        file = mutant.file.removeprefix("raidx_fuse/")
        text = f"not run; equivalent: {mutant.equivalent}" if mutant.equivalent else "not run"
        lines.append(f"| {mutant.name} | {file} | {mutant.why} | {text} | - |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only this mutant (again).")
@click.option("--jobs", default=1, show_default=True, help="How many to look at side by side.")
@click.option("--states", default=STATES, show_default=True, help="Crashed states a mutant.")
@click.option("--seed", default=1, show_default=True, help="Of the campaign.")
@click.option("--page", "path", type=click.Path(path_type=Path), help="Write the table there.")
@click.option("--words", is_flag=True, help="Print all that was said about each mutant.")
def main(
    only: tuple[str, ...], jobs: int, states: int, seed: int, path: Path | None, words: bool
) -> None:
    """Plant bugs, one at a time, and say which ones no check finds."""
    unknown = set(only) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise click.UsageError(f"there is no mutant {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not only or mutant.name in only]
    started_s = time.monotonic()
    verdicts: list[Verdict] = []
    for verdict in examine_all(mutants, jobs, states, seed):
        verdicts.append(verdict)
        click.echo(f"{verdict.mutant.name:44} {verdict.elapsed_s:5.0f} s  {verdict.text}")
        if words:
            click.echo(verdict.words)
        if path is not None:  # so far: it takes long
            options = "".join(f" --only {name}" for name in only)
            command = f"{PROGRAM} --states {states} --seed {seed}{options}"
            so_far_s = time.monotonic() - started_s
            left = mutants[len(verdicts) :]
            path.write_text(page(verdicts, command, time.strftime("%Y-%m-%d"), so_far_s, left))
    elapsed_s = time.monotonic() - started_s
    wrong = [verdict.mutant.name for verdict in verdicts if not verdict.is_right]
    click.echo(f"{len(verdicts)} mutants in {elapsed_s / 60:.1f} min, unexplained: {len(wrong)}")
    for name in wrong:
        click.echo(f"  {name}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
