"""The name of one crashed state: everything that is needed to make it again.

    raid5:partial / w17 / m203 / s5 / 2 / m9 / k / -
    cell            seed  moment cut lost, then the same three of each cut of a recovery

- The decision of a cut says what becomes of every unflushed write: ``d`` all dropped, ``k`` all
  kept, ``e7`` the seventh combination of whole writes, ``s5`` drawn from seed 5, ``t5`` all torn,
  drawn from seed 5, ``c5`` drawn from seed 5, but most copies of one content share their fate,
  ``l2`` all dropped but the copies of the last two contents.
- The lost disks are numbers, in the order in which the disks were made; ``-`` for none. ``+2``:
  disk 2, which the first cut took, is back. ``~2``: the log of disk 2 cannot be read in the
  recovery that follows, and can be read again later.
- A cell with ``!`` at its end runs with the log's ordering broken; ``raid5+sums:partial`` is one
  with checksums.
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
from raidx_fuse.members.simulated.powercut import (
    DiskState,
    enumerate_cuts,
    keep_last,
    sample_copies,
)
from raidx_fuse.members.simulated.virtual_time import DeadlockError

PROGRAM = "python -m raidx_fuse.lab.crash"
DROPPED, KEPT = "d", "k"
_SUMS = "+sums"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a workload runs on: *layout*, *journal* mode, and whether the log's order is *broken*.

    All its workloads have *theme* (workload.py); "" means a random theme for each. *sums*: its
    arrays have checksums.
    """

    layout: str
    journal: str
    broken: bool = False
    theme: str = ""
    sums: bool = False

    def __str__(self) -> str:
        theme = f":{self.theme}" if self.theme else ""
        sums = _SUMS if self.sums else ""
        return f"{self.layout}{sums}:{self.journal}{theme}{'!' if self.broken else ''}"

    @staticmethod
    def parse(text: str) -> Cell:
        """Return the cell that *text* names. Raises UsageError."""
        layout, colon, rest = text.removesuffix("!").partition(":")
        if not colon:
            raise UsageError(
                f"{text!r} is not a cell of the campaign", action="write it like raid5:partial"
            )
        journal, _, theme = rest.partition(":")
        sums = layout.endswith(_SUMS)
        return Cell(layout.removesuffix(_SUMS), journal, text.endswith("!"), theme, sums)


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut at boundary *moment*: the *decision* for unflushed writes, the *lost* disks.

    *back*: disks that an earlier cut took, and that are there again. *unread*: disks whose log
    cannot be read in the recovery that follows.
    """

    moment: int
    decision: str
    lost: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()

    def __str__(self) -> str:
        disks = [*map(str, self.lost), *(f"+{n}" for n in self.back)]
        disks += [f"~{n}" for n in self.unread]
        return f"m{self.moment}/{self.decision}/{','.join(disks) or '-'}"

    @staticmethod
    def parse(moment: str, decision: str, lost: str) -> Cut:
        """Return the cut that three parts of a state's name stand for. Raises UsageError."""
        good = moment[:1] == "m" and (
            decision in (DROPPED, KEPT) or decision[:1] in ("e", "s", "t", "c", "l")
        )
        try:
            disks: dict[str, list[int]] = {"": [], "+": [], "~": []}
            for part in [] if lost == "-" else lost.split(","):
                digits = part.lstrip("+~")
                disks[part[: len(part) - len(digits)]].append(int(digits))
            if good:
                return Cut(int(moment[1:]), decision, *map(tuple, disks.values()))
        except (KeyError, ValueError):
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
        if self.decision[0] == "l":
            return keep_last(disks, number)
        generator = random.Random(f"{self.moment}/{self.decision}")
        if self.decision[0] == "t":
            return [disk.tear(generator) for disk in disks]
        if self.decision[0] == "c":
            return sample_copies(disks, generator)
        return [disk.sample(generator) for disk in disks]


@dataclass(frozen=True, slots=True)
class State:
    """One state of the campaign: workload *seed* on *cell*, cut; its recoveries are cut *again*."""

    cell: Cell
    seed: int
    cut: Cut
    again: tuple[Cut, ...] = ()

    def __str__(self) -> str:
        return "/".join(map(str, (self.cell, f"w{self.seed}", self.cut, *self.again)))

    @staticmethod
    def parse(text: str) -> State:
        """Return the state that `str` wrote. Raises UsageError."""
        parts = [part.strip() for part in text.split("/")]
        bad = len(parts) < 5 or len(parts) % 3 != 2
        if bad or parts[1][:1] != "w" or not parts[1][1:].isdigit():
            raise UsageError(f"{text!r} is not a state", action="copy the line that reported it")
        first, *again = (Cut.parse(*parts[at : at + 3]) for at in range(2, len(parts), 3))
        return State(Cell.parse(parts[0]), int(parts[1][1:]), first, tuple(again))

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
        return f"{self.verb}, {self.fault}: {self.what}\n{PROGRAM} --replay '{self.state}'"
