"""Plays cases of fuzzing: a changed array is examined, checked and mounted.

A case is a number: it says which array (fuzz_images.py), what of it is changed, and how
(fuzz_changes.py). As a program: plays the cases from the first number given to the second, every
so many (the third), each within MEMORY_BYTES more address space than before and CASE_S seconds,
and prints a line for each violation.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from raidx_fuse.array.check import check_members
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError, single
from raidx_fuse.format.examine import examine
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.format.fuzz_changes import changed
from tests.format.fuzz_images import Image, prepare

MEMORY_BYTES = 256 << 20
CASE_S = 20
PATIENCE_S = 1e6  # of virtual time: what waits longer waits for ever


# -- what comes of it ----------------------------------------------------------------------------


class Violation(Exception):
    """Something that must never be."""


def members_of(contents: dict[str, bytes]) -> list[RamMember]:
    members = []
    for path, content in contents.items():
        member = RamMember(len(content), name=path)
        member.memory[:] = content
        members.append(member)
    return members


def play(image: Image, case: int) -> None:
    """Let everything look at *case* of *image*. Raises Violation."""
    contents = changed(image, case)
    for step in (_check, _mount) if case % 4 else (_examine, _check, _mount):
        members = members_of(contents)
        refused = _guarded(step, members)
        if step is not _mount or refused:
            for member in members:
                if bytes(member.memory) != contents[member.path]:
                    raise Violation(f"{step.__name__} wrote to {member.path}")


def _guarded(step: Callable[[list[RamMember]], Any], members: list[RamMember]) -> bool:
    """Run *step*; say whether it was refused. Raises Violation."""

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await step(members)

    try:
        run(main)
    except BaseExceptionGroup as group:
        error: BaseException = single(group)
    except (KeyboardInterrupt, Violation):
        raise
    except BaseException as caught:
        error = caught
    else:
        return False
    if not isinstance(error, RaidxError):
        raise Violation(f"{step.__name__}: {error!r}") from error
    text = str(error)
    if "\n" in text or len(text) > 4000 or "more memory" in text or "a bug" in text:
        raise Violation(f"{step.__name__}: {text[:500]!r}") from error
    return not isinstance(error, Used)


class Used(RaidxError):
    """An error of a running array, not of its start."""


async def _examine(members: list[RamMember]) -> None:
    for member in members:
        json.dumps(await examine(member))


async def _check(members: list[RamMember]) -> None:
    json.dumps(await check_members(list[Member](members)))


async def _mount(members: list[RamMember]) -> None:
    async with open_array(list[Member](members), start_degraded=True) as array:
        try:
            rng = random.Random(len(members))
            json.dumps([array.status(), array.stats(), array.settings()])
            for _ in range(6):
                at = rng.randrange(max(1, min(array.size_bytes, 1 << 20) - 5000))
                with suppress(RaidxError):
                    await array.read(at, min(5000, array.size_bytes - at))
                with suppress(RaidxError):
                    await array.write(at, bytes(min(3000, array.size_bytes - at)))
            with suppress(RaidxError):
                await array.flush()
            await trio.sleep(rng.choice((0.1, 20)))
        except RaidxError as error:
            raise Used(str(error)) from error


# -- as a program --------------------------------------------------------------------------------


def _late(_signal: int, _frame: Any) -> None:
    raise Violation(f"no end within {CASE_S} s")


def main(first: int, end: int, step: int) -> None:
    """Play the cases and print what must never be; the last line says how many there were."""
    logging.disable(logging.CRITICAL)
    images = prepare()
    play(images[0], 1)  # what is made once is made now
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGALRM, _late)
    cases = range(first, end, step)
    for case in cases:
        signal.alarm(CASE_S)
        try:
            play(images[case % len(images)], case)
        except Violation as violation:
            at = traceback.extract_tb((violation.__cause__ or violation).__traceback__)[-1]
            print(f"case {case} ({at.name}, line {at.lineno}): {violation}", flush=True)
        signal.alarm(0)
    print(f"{len(cases)} cases", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
