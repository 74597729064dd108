"""A quiz: a list of questions from a seed, and the check of somebody's answers.

Question n of a seed does not depend on how many are asked. So a sheet can be made longer, and two
students can have different sheets with the same seed plus one.

Each kind of question is a function that draws one and answers it by the engine's plans.

A question is about one stripe-wise layout on some disks, all of whose chunks were written. *facts*
are its parameters, from which the answer follows; *answer* is a tuple of words, in the order that
the question asks for (rising, if it asks for a set).

Questions about pools (which volumes does Dswap move?) are answered by the planner of a running
pool. Their pools are small enough for paper: whole loads and sizes, no two volumes of one array
with the same bandwidth-to-space ratio, and a hotspot that displacing alone removes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from raidx_fuse.engine.parity_policies import traditional
from raidx_fuse.errors import UsageError
from raidx_fuse.format.regions import PAGE_BYTES
from raidx_fuse.layouts.codes.code import Code, Unrecoverable
from raidx_fuse.layouts.codes.error_location import locate
from raidx_fuse.layouts.codes.gf2 import bits
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import read_plan, write_plans
from raidx_fuse.layouts.registry import LAYOUTS, find_layout, make_code, make_layout
from raidx_fuse.pool.balance.dswap import paper_dswap
from raidx_fuse.pool.balance.plan import Plan
from raidx_fuse.pool.balance.system import ArraySpec, VolumeSpec, make_system

if TYPE_CHECKING:
    from raidx_fuse.answers import Mark

EASY, MEDIUM, HARD = "easy", "medium", "hard"
LEVELS = (EASY, MEDIUM, HARD)
STRIPES = {EASY: 4, MEDIUM: 16, HARD: 64}  # that questions are about
EASY_KINDS = ("place", "parity", "write", "lost")
WITHOUT_PARITY = ("place", "write", "lost", "rot")  # can be asked where no disk may be lost
NOT_OF_COPIES = ("place", "parity")  # a chunk has many places, and its copies are no parity

ARRAYS = ("east", "west", "south")
BANDWIDTH, THRESHOLD = 100, 75  # of every array, THRESHOLD in percent
TRIES = 10_000  # about one pool in three can be asked about


@dataclass(frozen=True, slots=True)
class Draft:
    """A question without its number: *text*, what to *give*, the *answer*, and *why* it is so."""

    text: str
    give: str
    facts: Mapping[str, Any]
    answer: tuple[str, ...]
    why: str


Draw = Callable[[Layout, random.Random, str], Draft]


def place(layout: Layout, generator: random.Random, level: str) -> Draft:
    chunk = _chunk(layout, generator, level)
    stripe, cell = layout.locate(chunk)
    role, member_chunk = layout.place(stripe, cell)
    return Draft(
        f"Where does logical chunk {chunk} lie?",
        "disk, chunk on it",
        {"chunk": chunk},
        _words([role, member_chunk]),
        f"it is cell {layout.code.name_of(cell)} of stripe {stripe}",
    )


def parity(layout: Layout, generator: random.Random, level: str) -> Draft:
    stripe = Stripe(generator.randrange(STRIPES[level]))
    number = generator.randrange(layout.code.parity_count)
    cell = CellIndex(layout.code.data_count + number)
    role, member_chunk = layout.place(stripe, cell)
    support = layout.code.support[number]
    return Draft(
        f"Which logical chunks have an XOR that is chunk {member_chunk} on disk {role}?",
        "chunks, rising",
        {"disk": int(role), "member_chunk": int(member_chunk)},
        _words(layout.logical(stripe, CellIndex(data)) for data in bits(support)),
        f"it is parity cell {layout.code.name_of(cell)} of stripe {stripe}",
    )


def write(layout: Layout, generator: random.Random, level: str) -> Draft:
    stripe, touched, facts, words = _request(layout, generator, level)
    plan = next(plan for plan in write_plans(layout.code, touched, 0, 0) if plan is not None)
    cells = [*plan.writes, *(output.cell for output in plan.outputs)]
    return Draft(
        f"Which disks are written to when {words} overwritten?",
        "disks, rising",
        facts,
        _words({int(layout.place(stripe, cell)[0]) for cell in cells}),
        f"cells {_names(layout.code, cells)} of stripe {stripe} change",
    )


def pre_reads(layout: Layout, generator: random.Random, level: str) -> Draft:
    _, touched, facts, words = _request(layout, generator, level)
    rmw, rcw = write_plans(layout.code, touched, 0, 0)
    plan = traditional(rmw, rcw, Stripe(0), 0)
    assert rmw is not None
    assert rcw is not None
    return Draft(
        f"How many chunks must be read, at least, when {words} overwritten?",
        "number",
        facts,
        _words([plan.pre_reads]),
        f"read-modify-write reads {rmw.pre_reads}, reconstruct-write {rcw.pre_reads}",
    )


def lost(layout: Layout, generator: random.Random, level: str) -> Draft:
    code = layout.code
    stripe = Stripe(generator.randrange(STRIPES[level]))
    most = code.tolerance + 1
    count = generator.randint(1 if level == EASY else min(2, most), min(most, layout.width))
    disks = sorted(generator.sample(range(layout.width), count))
    gone = layout.lost_cells(stripe, frozenset(map(Role, disks)))
    cells = [cell for cell in bits(gone & code.data_mask) if not _solvable(code, gone, cell)]
    whose = f"disk {disks[0]} fails"
    if count > 1:
        whose = f"disks {', '.join(map(str, disks[:-1]))} and {disks[-1]} fail"
    first = layout.logical(stripe, CellIndex(0))
    last = layout.logical(stripe, CellIndex(code.data_count - 1))
    here = f"chunk {first}" if first == last else f"chunks {first} to {last}"
    return Draft(
        f"If {whose}: what of stripe {stripe}, {here}, cannot be read any more?",
        "chunks, rising, or none",
        {"disks": disks, "stripe": int(stripe)},
        _words(layout.logical(stripe, CellIndex(cell)) for cell in cells) or ("none",),
        f"{len(code.chain_masks)} chains of stripe {stripe} for {gone.bit_count()} lost cells",
    )


def rebuild(layout: Layout, generator: random.Random, level: str) -> Draft:
    code = layout.code
    horizontal = all(mask & code.parity_mask in (0, mask) for mask in code.column_masks)
    columns = [
        column
        for column, mask in enumerate(code.column_masks)
        if not horizontal or not mask & code.parity_mask
    ]
    column = generator.choice(columns)
    disk = int(layout.place(Stripe(0), CellIndex(code.column_cells[column][0]))[0])
    union = 0
    for _cell, sources in code.recover(column):
        union |= sources
    return Draft(
        f"Disk {disk} is replaced. How many chunks of stripe 0 must be read, at least, to rebuild "
        "it, if each lost chunk is computed from one chain?",
        "number",
        {"disk": disk},
        _words([union.bit_count()]),
        f"cells {_names(code, bits(union))}",
    )


def degraded(layout: Layout, generator: random.Random, level: str) -> Draft:
    chunk = _chunk(layout, generator, level)
    stripe, cell = layout.locate(chunk)
    role = layout.place(stripe, cell)[0]
    gone = layout.lost_cells(stripe, frozenset({role}))
    plan = read_plan(layout.code, 1 << cell, gone, 0)
    return Draft(
        f"Disk {role} has failed. How many chunks must be read, at least, to read chunk {chunk}?",
        "number",
        {"chunk": chunk, "disk": int(role)},
        _words([len(plan.reads)]),
        f"for example cells {_names(layout.code, plan.reads)} of stripe {stripe}",
    )


def suspects(layout: Layout, generator: random.Random, level: str) -> Draft:
    stripe, wrong, facts, words = _rotten(layout, generator, level)
    cells = _suspects(layout.code, wrong)
    violated = sum(bool(mask >> wrong & 1) for mask in layout.code.chain_masks)
    return Draft(
        f"{words}, and nothing else. Without checksums: which disks may have the wrong chunk, as "
        "far as the chains tell?",
        "disks, rising",
        facts,
        _words({int(layout.place(stripe, cell)[0]) for cell in cells}),
        f"cells {_names(layout.code, cells)} of stripe {stripe} are in the {violated} of its "
        f"{len(layout.code.chain_masks)} chains that do not hold, and in no other",
    )


def repair(layout: Layout, generator: random.Random, level: str) -> Draft:
    code = layout.code
    stripe, wrong, facts, words = _rotten(layout, generator, level)
    chains = [tuple(_place(code, cell) for cell in bits(mask)) for mask in code.chain_masks]
    held = [np.array([mask >> wrong & 1], np.uint8) for mask in code.chain_masks]
    located = locate(chains, held)
    written: list[int] = [cell for cell in bits(code.all_mask) if _place(code, cell) in located]
    why = f"the chains locate {_names(code, written)}"
    if not located:
        written = [
            code.data_count + number
            for number, support in enumerate(code.support)
            if (support | 1 << code.data_count + number) >> wrong & 1
        ]
        why = f"data are taken for right, {_names(code, written)} computed from them"
        if wrong < code.data_count:
            why += ": nothing tells of the rot any more"
    return Draft(
        f"{words}, and nothing else. Without checksums: which disks does `raidx scrub --repair` "
        "write to?",
        "disks, rising",
        facts,
        _words({int(layout.place(stripe, CellIndex(cell))[0]) for cell in written}),
        why,
    )


def rot(layout: Layout, generator: random.Random, level: str) -> Draft:
    code = layout.code
    stripe = Stripe(generator.randrange(STRIPES[level]))
    most = min(code.tolerance + 1, layout.width)
    columns = generator.sample(range(code.columns), generator.randint(min(2, most), most))
    pages = generator.sample(range(CHUNK_BYTES // PAGE_BYTES), 2)
    wrong: dict[int, int] = {}  # page -> mask of cells
    places = []
    for column in columns:
        cell, page = generator.choice(code.column_cells[column]), generator.choice(pages)
        wrong[page] = wrong.get(page, 0) | 1 << cell
        disk, chunk = layout.place(stripe, CellIndex(cell))
        places.append((int(disk), int(chunk), page))
    places.sort()
    gone = {
        cell
        for mask in wrong.values()
        for cell in bits(mask & code.data_mask)
        if not _solvable(code, mask, cell)
    }
    if code.is_copies:  # another copy will do
        whole = [mask for mask in wrong.values() if mask == code.all_mask]
        gone = {0} if whole else set()
    told = ", ".join(f"page {page} of chunk {chunk} on disk {disk}" for disk, chunk, page in places)
    return Draft(
        f"With checksums: {told} {'is' if len(places) == 1 else 'are'} wrong, all in one stripe. "
        "Which logical chunks cannot be read whole?",
        "chunks, rising, or none",
        {"wrong": places},
        _words(sorted(layout.logical(stripe, CellIndex(cell)) for cell in gone)) or ("none",),
        "pages at one place of the chunks count as lost together, and the code gives back those of "
        f"{code.tolerance} disks",
    )


KINDS: dict[str, Draw] = {
    "place": place,
    "parity": parity,
    "write": write,
    "pre-reads": pre_reads,
    "lost": lost,
    "rebuild": rebuild,
    "degraded": degraded,
    "suspects": suspects,
    "repair": repair,
    "rot": rot,
}


def _chunk(layout: Layout, generator: random.Random, level: str) -> Chunk:
    return Chunk(generator.randrange(STRIPES[level] * layout.code.data_count))


def _request(
    layout: Layout, generator: random.Random, level: str
) -> tuple[Stripe, int, dict[str, int], str]:
    """Return (stripe, mask of touched cells, facts, words) of a write inside one stripe."""
    data_count = layout.code.data_count
    stripe = Stripe(generator.randrange(STRIPES[level]))
    first = generator.randrange(data_count)
    count = 1 if level == EASY else generator.randint(1, data_count - first)
    begin = layout.logical(stripe, CellIndex(first))
    touched = sum(1 << cell for cell in cell_range(first, first + count))
    words = f"chunk {begin} is"
    if count > 1:
        words = f"chunks {begin} to {begin + count - 1} are"
    return stripe, touched, {"chunk": int(begin), "count": count}, words


def _rotten(
    layout: Layout, generator: random.Random, level: str
) -> tuple[Stripe, int, dict[str, int], str]:
    """Return (stripe, cell, facts, words) of a chunk that has rotted."""
    stripe = Stripe(generator.randrange(STRIPES[level]))
    cell = generator.choice(list(bits(layout.code.all_mask)))
    disk, chunk = layout.place(stripe, CellIndex(cell))
    words = f"Chunk {chunk} on disk {disk} has rotted"
    return stripe, cell, {"disk": int(disk), "member_chunk": int(chunk)}, words


def _suspects(code: Code, wrong: int) -> list[CellIndex]:
    """Return the cells that would break the same chains as the cell *wrong*."""
    return [
        CellIndex(cell)
        for cell in bits(code.all_mask)
        if all(mask >> cell & 1 == mask >> wrong & 1 for mask in code.chain_masks)
    ]


def _place(code: Code, cell: int) -> tuple[Role, int]:
    row, column = code.cells[cell]
    return Role(column), row


def _solvable(code: Code, gone: int, cell: int) -> bool:
    try:
        code.solve(gone, 1 << cell)
    except Unrecoverable:
        return False
    return True


def _words(numbers: Iterable[int]) -> tuple[str, ...]:
    found = list(numbers)
    return tuple(map(str, sorted(found) if isinstance(numbers, set) else found))


def _names(code: Code, cells: Iterable[int]) -> str:
    return " ".join(map(code.name_of, cells))


def dswap(generator: random.Random, level: str) -> Draft:
    """Which volumes does Dswap move?"""
    for _ in range(TRIES):
        facts = _pool(generator, 3 if level == HARD else 2)
        plan = _plan(facts)
        if _can_be_asked(facts, plan):
            break
    else:
        raise AssertionError("no pool in so many has a hotspot that displacing removes")
    system = plan.system
    names = [system.volumes[move.volume] for move in plan.moves]
    told = "; ".join(_told(facts, name) for name in facts["capacity"])
    begin = (
        f"Each array can serve a load of {BANDWIDTH}, its threshold is {THRESHOLD} %. Volumes "
        f"with load and size: {told}."
    )
    first = plan.moves[0]
    ratio = Fraction(facts["load"][names[0]], facts["size"][names[0]])
    why = f"east is at {round(100 * plan.before[0])} %, and {names[0]} has its highest load per GiB"
    why += f", {float(ratio):.3g}"
    if level == HARD:
        target = system.arrays[first.target]
        return Draft(
            f"{begin} Which volume does Dswap displace first, and to which array?",
            "volume, array",
            facts,
            (names[0], target),
            f"{why}; {target} has the most spare load per free GiB of those where it fits",
        )
    return Draft(
        f"{begin} Which volumes does Dswap displace from east?",
        "volumes, in its order",
        facts,
        tuple(names),
        f"{why}; afterwards east is at {round(100 * plan.after[0])} %",
    )


class Pool(TypedDict):
    """The capacities of arrays; place, size (GiB) and load of volumes."""

    capacity: dict[str, int]
    place: dict[str, str]
    size: dict[str, int]
    load: dict[str, int]


def _pool(generator: random.Random, arrays: int) -> Pool:
    facts: Pool = {"capacity": {}, "place": {}, "size": {}, "load": {}}
    letters = iter("abcdefghijklmnop")
    for number, array in enumerate(ARRAYS[:arrays]):
        used = 0
        for _ in range(4 if number == 0 else generator.randint(1, 3)):
            volume = next(letters)
            size = generator.randint(1, 6)
            used += size
            facts["place"][volume] = array
            facts["size"][volume] = size
            facts["load"][volume] = generator.randrange(5, 45 if number == 0 else 25)
        facts["capacity"][array] = used + (0 if number == 0 else generator.randint(2, 10))
    return facts


def _plan(facts: Pool) -> Plan:
    arrays = [
        ArraySpec(name, float(BANDWIDTH), capacity, THRESHOLD / 100)
        for name, capacity in facts["capacity"].items()
    ]
    volumes = [
        VolumeSpec(name, facts["size"][name], array, float(facts["load"][name]))
        for name, array in facts["place"].items()
    ]
    return paper_dswap(make_system(arrays, volumes))


def _can_be_asked(facts: Pool, plan: Plan) -> bool:
    """Say whether only east is overloaded, displacing is enough, and every order is clear."""
    over = [array for array in facts["capacity"] if _load(facts, array) > THRESHOLD]
    ratios = [
        Fraction(facts["load"][name], facts["size"][name])
        for name, array in facts["place"].items()
        if array == "east"
    ]
    spare = [
        Fraction(THRESHOLD - _load(facts, array), room)
        for array, room in _rooms(facts).items()
        if array != "east"
    ]
    return (
        over == ["east"]
        and _load(facts, "east") <= BANDWIDTH
        and plan.solved
        and all(move.reason.step == "displace" for move in plan.moves)
        and len(set(ratios)) == len(ratios)
        and len(set(spare)) == len(spare)
    )


def _load(facts: Pool, array: str) -> int:
    return sum(facts["load"][name] for name, place in facts["place"].items() if place == array)


def _rooms(facts: Pool) -> dict[str, int]:
    rooms = dict(facts["capacity"])
    for name, array in facts["place"].items():
        rooms[array] -= facts["size"][name]
    return rooms


def _told(facts: Pool, array: str) -> str:
    volumes = ", ".join(
        f"{name} ({facts['load'][name]}, {facts['size'][name]} GiB)"
        for name, place in facts["place"].items()
        if place == array
    )
    return f"{array}, {_rooms(facts)[array]} GiB free: {volumes}"


POOL_KINDS: dict[str, Callable[[random.Random, str], Draft]] = {"dswap": dswap}


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
    _check(request)
    questions = []
    for number in range(1, request.count + 1):
        generator = random.Random(f"{request.seed}/{request.level}/{number}")
        name, widths, kinds = generator.choice(_choices(request))
        disks, kind = generator.choice(widths), generator.choice(kinds)
        if name is None or disks is None:
            draft = POOL_KINDS[kind](generator, request.level)
        else:
            draft = KINDS[kind](_layout(name, disks), generator, request.level)
        questions.append(Question(number, kind, name, disks, draft))
    return questions


def check_answers(questions: Sequence[Question], given: Mapping[int, Sequence[str]]) -> list[Mark]:
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


@lru_cache(maxsize=64)
def _layout(name: str, disks: int) -> Layout:
    rows = make_code(name, disks).rows
    return make_layout(name, disks, max(STRIPES.values()) * rows, CHUNK_BYTES)
