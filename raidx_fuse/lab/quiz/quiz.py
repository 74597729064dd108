"""A quiz: a list of questions from a seed, and the check of somebody's answers.

Question n of a seed does not depend on how many are asked. So a sheet can be made longer, and two
students can have different sheets with the same seed plus one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.quiz.questions import (
    EASY,
    EASY_KINDS,
    HARD,
    KINDS,
    LEVELS,
    MEDIUM,
    NOT_OF_COPIES,
    POOL_KINDS,
    STRIPES,
    WITHOUT_PARITY,
    Draft,
)
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import LAYOUTS, find_layout, make_code, make_layout

COUNT_MAX = 1000
DISKS_MAX = 12  # more cannot be solved on paper
CHUNK_BYTES = 64 << 10  # no question depends on it
LAYOUTS_OF = {
    EASY: ("raid0", "raid1", "raid4", "raid5"),
    MEDIUM: ("raid4", "raid5", "rdp", "evenodd"),
    HARD: ("raid5", "rdp", "evenodd", "xcode", "pcode", "upc"),
}
EVERY_KIND = (*KINDS, *POOL_KINDS)
DISKS_OF = {EASY: (3, 5), MEDIUM: (4, 6), HARD: (4, 8)}  # unless the caller says how many


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. Without *layout*, *disks* or *kind* each question draws its own."""

    count: int = 5
    seed: int = 0
    level: str = MEDIUM
    layout: str | None = None
    disks: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """Question *number* of a quiz; one about a pool has no *layout* and no *disks*."""

    number: int
    kind: str
    layout: str | None
    disks: int | None
    draft: Draft

    def as_dict(self, *, answers: bool) -> dict[str, Any]:
        """Return the question as JSON values, with its answer if *answers*."""
        document: dict[str, Any] = {
            "number": self.number,
            "kind": self.kind,
            "layout": self.layout,
            "disks": self.disks,
            "text": self.draft.text,
            "give": self.draft.give,
            "facts": self.draft.facts,
        }
        if answers:
            document |= {"answer": list(self.draft.answer), "why": self.draft.why}
        return document


def quiz(request: Request) -> list[Question]:
    """Return the questions of *request*. Raises UsageError or LayoutError if there are none."""
    _check(request)
    return [_question(request, number) for number in range(1, request.count + 1)]


def check_answers(
    questions: Sequence[Question], given: Mapping[int, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return for each question whether the words *given* for its number are its answer.

    Raises UsageError for an answer to a question that was not asked.
    """
    unknown = sorted(set(given) - {question.number for question in questions})
    if unknown:
        raise UsageError(f"there is no question {unknown[0]}: there are {len(questions)}")
    return [
        {
            "number": question.number,
            "given": list(given.get(question.number, ())),
            "right": tuple(given.get(question.number, ())) == question.draft.answer,
        }
        for question in questions
    ]


def parse_answers(text: str) -> dict[int, tuple[str, ...]]:
    """Return the words of each answer in lines such as "3: 0 2 4". Raises UsageError."""
    given: dict[int, tuple[str, ...]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        number, colon, words = line.partition(":")
        if not colon or not number.strip().isdecimal() or len(number) > 9:
            raise UsageError(f"{line[:40]!r} is no answer", action='write lines such as "3: 0 2 4"')
        if int(number) in given:
            raise UsageError(f"question {int(number)} is answered twice")
        given[int(number)] = tuple(words.replace(",", " ").lower().split())
    return given


def _check(request: Request) -> None:
    """Raise UsageError or LayoutError unless questions can be made."""
    if not 1 <= request.count <= COUNT_MAX:
        raise UsageError(f"{request.count} questions are out of range: take 1 to {COUNT_MAX}")
    if request.level not in LEVELS:
        raise UsageError(f"there is no level {request.level!r}", action=f"take {', '.join(LEVELS)}")
    if request.kind is not None and request.kind not in EVERY_KIND:
        kinds = ", ".join(EVERY_KIND)
        raise UsageError(f"there is no kind {request.kind!r}", action=f"take {kinds}")
    if request.disks is not None and not 1 <= request.disks <= DISKS_MAX:
        raise UsageError(f"{request.disks} disks are out of range: a quiz has 1 to {DISKS_MAX}")
    if request.layout is not None:
        info = find_layout(request.layout)
        if info.build is None:
            known = ", ".join(name for name, each in LAYOUTS.items() if each.build is not None)
            raise UsageError(
                f"{request.layout} has no fixed stripes to ask about", action=f"take one of {known}"
            )
        if request.disks is not None:
            make_code(request.layout, request.disks)
    if not _choices(request):
        raise UsageError(
            f"no {request.level} question of this kind can be asked about "
            f"{request.layout or 'any layout'}"
            + ("" if request.disks is None else f" on {request.disks} disks"),
            action="leave out --kind, --layout or --disks",
        )


Choice = tuple[str | None, tuple[int | None, ...], tuple[str, ...]]


@lru_cache(maxsize=64)
def _choices(request: Request) -> tuple[Choice, ...]:
    """Return (layout, widths, kinds) of what can be asked; of pools without layout and widths."""
    low, high = DISKS_OF[request.level]
    found: list[Choice] = []
    if request.kind in POOL_KINDS or (request.kind is None and request.level != EASY):
        if request.layout is None and request.disks is None:
            found.append((None, (None,), tuple(POOL_KINDS)))
        if request.kind is not None:
            return tuple(found)
    for name in LAYOUTS_OF[request.level] if request.layout is None else (request.layout,):
        info = LAYOUTS[name]
        first = next(width for width in range(1, DISKS_MAX + 1) if info.allows(width))
        wanted = range(max(low, first), max(high, first) + 1)
        if request.disks is not None:
            wanted = range(request.disks, request.disks + 1)
        widths = [width for width in wanted if info.allows(width)]
        if not widths:
            continue
        kinds: tuple[str, ...] = EASY_KINDS if request.level == EASY else tuple(KINDS)
        if request.kind is not None:
            kinds = (request.kind,)
        if not info.tolerance(widths[0]):
            kinds = tuple(kind for kind in kinds if kind in WITHOUT_PARITY)
        if make_code(name, widths[0]).is_copies:
            kinds = tuple(kind for kind in kinds if kind not in NOT_OF_COPIES)
        if kinds:
            found.append((name, tuple(widths), kinds))
    return tuple(found)


def _question(request: Request, number: int) -> Question:
    generator = random.Random(f"{request.seed}/{request.level}/{number}")
    name, widths, kinds = generator.choice(_choices(request))
    disks, kind = generator.choice(widths), generator.choice(kinds)
    if name is None or disks is None:
        draft = POOL_KINDS[kind](generator, request.level)
    else:
        draft = KINDS[kind](_layout(name, disks), generator, request.level)
    return Question(number, kind, name, disks, draft)


@lru_cache(maxsize=64)
def _layout(name: str, disks: int) -> Layout:
    rows = make_code(name, disks).rows
    return make_layout(name, disks, max(STRIPES.values()) * rows, CHUNK_BYTES)
