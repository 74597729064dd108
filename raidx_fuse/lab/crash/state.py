"""The name of one crashed state: everything that is needed to make it again.

    raid5:partial / w17 / m203 / s5 / 2 / m9 / k / -
    cell            seed  moment cut lost, then the same three of a cut of the recovery

- The decision of a cut says what becomes of every unflushed write: ``d`` all dropped, ``k`` all
  kept, ``e7`` the seventh combination of whole writes, ``s5`` drawn from seed 5, ``t5`` all torn,
  drawn from seed 5.
- The lost disks are numbers, in the order in which the disks were made; ``-`` for none.
- A cell with ``!`` at its end runs with the log's ordering broken.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import trio

from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.members.simulated.powercut import DiskState, enumerate_cuts
from raidx_fuse.members.simulated.virtual_time import DeadlockError

PROGRAM = "python -m raidx_fuse.lab.crash"
DROPPED, KEPT = "d", "k"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a workload runs on: *layout*, *journal* mode, and whether the log's order is *broken*.

    All its workloads have *theme* (workload.py); "" means a random theme for each.
    """

    layout: str
    journal: str
    broken: bool = False
    theme: str = ""

    def __str__(self) -> str:
        theme = f":{self.theme}" if self.theme else ""
        return f"{self.layout}:{self.journal}{theme}{'!' if self.broken else ''}"

    @staticmethod
    def parse(text: str) -> Cell:
        """Return the cell that *text* names. Raises UsageError."""
        layout, colon, rest = text.removesuffix("!").partition(":")
        if not colon:
            raise UsageError(
                f"{text!r} is not a cell of the campaign", action="write it like raid5:partial"
            )
        journal, _, theme = rest.partition(":")
        return Cell(layout, journal, text.endswith("!"), theme)


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut at boundary *moment*: the *decision* for unflushed writes, the *lost* disks."""

    moment: int
    decision: str
    lost: tuple[int, ...] = ()

    def __str__(self) -> str:
        lost = ",".join(map(str, self.lost)) or "-"
        return f"m{self.moment}/{self.decision}/{lost}"

    @staticmethod
    def parse(moment: str, decision: str, lost: str) -> Cut:
        """Return the cut that three parts of a state's name stand for. Raises UsageError."""
        good = moment[:1] == "m" and (
            decision in (DROPPED, KEPT) or decision[:1] in ("e", "s", "t")
        )
        try:
            disks = () if lost == "-" else tuple(int(part) for part in lost.split(","))
            if good:
                return Cut(int(moment[1:]), decision, disks)
        except ValueError:
            pass
        raise UsageError(
            f"{moment}/{decision}/{lost} is not a cut", action="write it like m203/s5/2"
        )

    def decisions(self, disks: Sequence[DiskState]) -> list[list[int]]:
        """Return, for each of *disks*, the decision for each of its unflushed writes."""
        if self.decision == DROPPED:
            return [[0] * len(disk.open_writes) for disk in disks]
        if self.decision == KEPT:
            return [[write.kept for write in disk.open_writes] for disk in disks]
        number = int(self.decision[1:])
        if self.decision[0] == "e":
            return next(islice(enumerate_cuts(disks, torn=False), number, None))
        generator = random.Random(f"{self.moment}/{self.decision}")
        if self.decision[0] == "t":
            return [disk.tear(generator) for disk in disks]
        return [disk.sample(generator) for disk in disks]


@dataclass(frozen=True, slots=True)
class State:
    """One state of the campaign: workload *seed* on *cell*, cut, and perhaps cut again."""

    cell: Cell
    seed: int
    cut: Cut
    again: Cut | None = None

    def __str__(self) -> str:
        text = f"{self.cell}/w{self.seed}/{self.cut}"
        return f"{text}/{self.again}" if self.again is not None else text

    @staticmethod
    def parse(text: str) -> State:
        """Return the state that `str` wrote. Raises UsageError."""
        parts = [part.strip() for part in text.split("/")]
        if len(parts) not in (5, 8) or parts[1][:1] != "w" or not parts[1][1:].isdigit():
            raise UsageError(f"{text!r} is not a state", action="copy the line that reported it")
        again = Cut.parse(*parts[5:]) if len(parts) == 8 else None
        return State(Cell.parse(parts[0]), int(parts[1][1:]), Cut.parse(*parts[2:5]), again)

    def generator(self, purpose: str) -> random.Random:
        """Return the random generator for *purpose*, seeded by the state's name."""
        return random.Random(f"{self} {purpose}")


class ViolationError(Exception):
    """A state that breaks a promise; the text says which."""


@contextmanager
def as_violations(endless: str) -> Iterator[None]:
    """Raise ViolationError for every error in the block; *endless* says what took too long."""
    try:
        yield
    except ViolationError:
        raise
    except RaidxError as error:
        raise ViolationError(f"does not mount or work: {error}") from error
    except trio.TooSlowError as error:
        raise ViolationError(endless) from error
    except DeadlockError as error:
        raise ViolationError(f"deadlock: {error}") from error
    except Exception as error:  # a bug of the engine is a violation like any other
        trace = "".join(traceback.format_exception(error))
        raise ViolationError(f"the engine crashed: {trace}") from error


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the text of its `State`, the labels of its count, and *what* broke."""

    state: str
    verb: str
    fault: str
    what: str

    def __str__(self) -> str:
        """Return what broke, and the line that replays it."""
        return f"{self.verb}, {self.fault}: {self.what}\n{PROGRAM} --replay '{self.state}'"
