"""Checksums of the members' data, as a configuration says that the array has them.

    jobs.sums      how they are computed: `StoredSums`
    needs          "sums": programs that know none refuse the array; "sums.tail": so do those that
                   know no tails of tables
    settings.sums  "on": they are kept up to date with every write, and compared
    regions.sums   where every member has its copies of the tables

All four come in one round of superblocks, when the region is empty on all members, before the first
sum; and go in one, when no sum is set any more. An array without them is one that never had any.
Room for the region may lie before the data, which begin later for it (`create.shape`), or behind.

The table of a role has a number, which the role keeps when roles are renumbered, and which no other
table of the array ever gets: it is mixed into all its sums. Every member has `copies` slots for
tables, and each table lies in as many, if possible on that many members, without its own one. A
change of the members gives as few tables other slots as it can (`reassigned`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

from raidx_fuse.errors import OtherVersionError
from raidx_fuse.format.configuration.codec import Stored, encode
from raidx_fuse.format.configuration.config import FAILED, ArrayConfig, uuid_bytes
from raidx_fuse.format.regions import NO_REGION, PAGE_BYTES, Region
from raidx_fuse.format.shapes import sum_copies_of
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.settings import SUMS

if TYPE_CHECKING:
    from raidx_fuse.documents import SumsReport

KEY = "sums"
"""The key among the `jobs` of a configuration, and the name of the feature."""
TAIL = "sums.tail"
"""The name of the feature that tables have tails."""
ALGORITHM = 1  # CRC-32C; see FORMAT.md
SEED_MAX = (1 << 32) - 1


VACANT = -1
"""In place of the role that a member had: the role has no member now (raidx layouts)."""

Slot = tuple[int, int]
"""Where a table lies: the role of the member, and which of its slots."""


class SumTable(NamedTuple):
    """The table of one role: its *number*, and the *slots* that it lies in, usually all copies."""

    number: int
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class StoredSums:
    """How sums are computed and where they lie.

    The number of the *algorithm*, the *copies* of each table, the random *seed*, the *tables* by
    role, how many numbers were ever *given* to a table, and the bytes of the *tail* of each, 0 if
    they have none.
    """

    algorithm: int
    copies: int
    seed: int
    tables: tuple[SumTable, ...] = ()
    given: int = 0
    tail: Annotated[int, Stored(optional=True)] = 0

    def is_consistent(self, width: int) -> bool:
        """Return whether *width* roles have tables, each in slots of its own."""
        numbers = {table.number for table in self.tables}
        taken = [slot for table in self.tables for slot in table.slots]
        return (
            len(numbers) == len(self.tables) == width
            and all(0 <= number < self.given for number in numbers)
            and all(len(table.slots) <= self.copies for table in self.tables)
            and len({*taken}) == len(taken)
            and all(0 <= role < width and 0 <= slot < self.copies for role, slot in taken)
        )


def reassigned(sums: StoredSums, came_from: Sequence[int | None]) -> StoredSums:
    """Return *sums* of an array whose roles have changed, so that few tables have other slots.

    *came_from*: by new role, the role that the member had, None for a new member; `VACANT` for a
    role without one, which holds nothing, and whose table is nowhere. A table stays in the slots
    that it has on members that stay. What is missing it gets in free slots. Where that would be
    beside another copy or on its own member, another table takes the free slot, and it gets that
    table's.

    >>> three = reassigned(StoredSums(1, 2, 0), [None] * 3)
    >>> [table.slots for table in three.tables]
    [((1, 0), (2, 1)), ((2, 0), (0, 1)), ((0, 0), (1, 1))]
    >>> [table.slots for table in reassigned(three, [0, 1, 2, None]).tables]
    [((3, 0), (2, 1)), ((2, 0), (3, 1)), ((0, 0), (1, 1)), ((1, 0), (0, 1))]
    >>> [table.slots for table in reassigned(three, [0, VACANT, 2]).tables]
    [((2, 1), (0, 1)), (), ((0, 0), (2, 0))]
    """
    width, given = len(came_from), sums.given
    new_role = {old: role for role, old in enumerate(came_from) if old not in (None, VACANT)}
    held = [role for role, old in enumerate(came_from) if old != VACANT]
    numbers: list[int] = []
    taken: list[list[Slot]] = []
    for role, old in enumerate(came_from):
        if old is None or (old == VACANT and role >= len(sums.tables)):
            numbers.append(given)
            given += 1
            taken.append([])
            continue
        if old == VACANT:
            numbers.append(sums.tables[role].number)
            taken.append([])
            continue
        numbers.append(sums.tables[old].number)
        stays = {new_role[on]: n for on, n in sums.tables[old].slots if on in new_role}
        if len(held) > sums.copies:  # else there were too few members for all copies
            stays.pop(len(taken), None)
        taken.append([*stays.items()])
    used = {slot for slots in taken for slot in slots}
    free = [(role, n) for n in range(sums.copies) for role in held]
    free = [slot for slot in free if slot not in used]

    def suits(table: int, slot: Slot) -> bool:
        return slot[0] != table and all(slot[0] != role for role, _ in taken[table])

    moved = [0] * width
    kept = [{*slots} for slots in taken]

    def exchanges(table: int) -> Iterator[tuple[bool, int, int, Slot, Slot]]:
        """Yield what exchanges there are: whether the table *other* would be on new members only,
        which may still be rebuilt, how often it has moved, *other*, a slot of it that suits
        *table*, and a free one that suits it.
        """
        for other in range(width):
            for slot in taken[other] if other != table else ():
                if suits(table, slot):
                    places = (place for place in free if suits(other, place))
                    is_last = kept[other] & {*taken[other]} == {slot}
                    yield from ((is_last, moved[other], other, slot, place) for place in places)

    while free:
        # The table that lacks most comes first: it has the fewest ways left.
        table = max(held, key=lambda one: (sums.copies - len(taken[one]), -one))
        near = sorted(free, key=lambda place: ((place[0] - table - 1) % width, place))
        slot = next((place for place in near if suits(table, place)), None)
        if slot is None and (exchange := min(exchanges(table), default=None)) is not None:
            _, _, other, slot, place = exchange
            moved[other] += 1  # its other copies should stay where they are
            taken[other][taken[other].index(slot)] = place
            free[free.index(place)] = slot
        if slot is None:  # there are too few members: on its own one, rather than beside another
            on = [role for role, _ in taken[table]]
            slot = next((place for place in free if place[0] not in on), free[0])
        free.remove(slot)
        taken[table].append(slot)
    tables = (SumTable(number, tuple(slots)) for number, slots in zip(numbers, taken, strict=True))
    return replace(sums, tables=tuple(tables), given=given)


def with_room(sums: StoredSums, after: StoredSums, came_from: Sequence[int | None]) -> StoredSums:
    """Return *sums* with the slots free in which tables that stay lie in *after*, but not yet.

    A slot must be free by the superblocks before it gets the content of another table. Tables of
    members that leave give theirs up. One that stays and gives up its slot for another one goes
    where such a table has lain.
    """
    tables = [*sums.tables]
    for role, old in enumerate(came_from):
        if old is None or old == VACANT:
            continue
        mine = sums.tables[old].slots
        found = ((came_from[on], slot) for on, slot in after.tables[role].slots)
        slots = [(on, slot) for on, slot in found if on is not None]
        gained = [slot for slot in slots if slot not in mine]
        for owner, table in enumerate(tables):
            if owner not in came_from:
                kept = tuple(slot for slot in table.slots if slot not in gained)
                tables[owner] = table._replace(slots=kept)
        free = [slot for slot in gained if not any(slot in table.slots for table in tables)]
        lost = [slot for slot in mine if slot[0] in came_from and slot not in slots]
        changed = dict(zip(lost, free, strict=False))
        tables[old] = tables[old]._replace(slots=tuple(changed.get(slot, slot) for slot in mine))
    return replace(sums, tables=tuple(tables))


def seed_from(uuid: str) -> int:
    """Return the seed that a random *uuid* gives: its first 4 bytes."""
    return int.from_bytes(uuid_bytes(uuid)[: SEED_MAX.bit_length() // 8], "little")


def sums_of(config: ArrayConfig) -> StoredSums | None:
    """Return how the checksums of an array are computed, None if it has none."""
    return config.job(KEY, StoredSums)


def are_on(config: ArrayConfig) -> bool:
    """Return whether the array has checksums, and they are kept up to date."""
    return KEY in config.jobs and config.settings.get(SUMS) == "on"


class SumCounts(Protocol):
    """What a running array counts of its checksums, since the mount; `SumsReport` has the words."""

    misfits: int
    healed: int
    wrong_sums: int
    unverified: int


def shown_sums(config: ArrayConfig, counts: SumCounts | None = None) -> SumsReport | None:
    """Return what a status says of the checksums of *config*; None if it never had any.

    *counts*: of the running array, None if they are off or it does not run.
    """
    if KEY not in config.jobs and SUMS not in config.settings:
        return None
    report: SumsReport = {
        "state": "on" if are_on(config) else "off",
        "misfits": 0 if counts is None else counts.misfits,
        "healed": 0 if counts is None else counts.healed,
        "wrong_sums": 0 if counts is None else counts.wrong_sums,
        "unverified": 0 if counts is None else counts.unverified,
    }
    if not are_on(config):
        report["room_bytes"] = room_for_sums(config)
    return report


def with_sums(config: ArrayConfig, copies: int, seed: str) -> ArrayConfig:
    """Return *config* with *copies* tables of checksums in the region that it has for them.

    They are empty. *seed* is a random UUID, which no other checksums of the array had.
    """
    tail = config.regions.sum_tail_bytes(copies)
    empty = StoredSums(algorithm=ALGORITHM, copies=copies, seed=seed_from(seed), tail=tail)
    vacant = config.vacant_roles()
    joined = [VACANT if role in vacant else None for role in range(config.width)]
    config = with_tables(config, reassigned(empty, joined))
    return replace(config, settings={**config.settings, SUMS: "on"})


def without_sums(config: ArrayConfig) -> ArrayConfig:
    """Return *config* as one of an array that has no checksums, and no region for them.

    Where that lay behind the data, these do not read as zeros any more if they become longer.
    """
    if KEY not in config.jobs:
        return config
    members = config.members
    if config.regions.sums.offset > config.regions.data.offset:
        members = tuple(replace(record, reads_zero=False) for record in members)
    return replace(
        config.without_job(KEY),
        needs=tuple(name for name in config.needs if name not in (KEY, TAIL)),
        regions=replace(config.regions, sums=NO_REGION),
        settings={**config.settings, SUMS: "off"},
        members=members,
    )


def place_for_sums(config: ArrayConfig, copies: int) -> Region | None:
    """Return where each member of *config* has room for *copies* tables, None if one has not.

    Behind the data of a raidx layout are the shares of its table, and no member may have more data
    than the tables have room for.
    """
    if (counts := config.params.get("chunk_counts")) is not None:
        if max(counts) > config.regions.data.length // config.chunk_bytes:
            return None
        return config.regions.place_for_sums(copies, 0, 0)
    return config.regions.place_for_sums(copies, 0, usable_by_all(config))


def room_for_sums(config: ArrayConfig) -> int:
    """Return how many bytes each member has free for checksums.

    0: not enough, or they are on, or the layout is not known here.
    """
    if are_on(config) or config.layout not in LAYOUTS:
        return 0
    place = place_for_sums(without_sums(config), sum_copies_of(config))
    return 0 if place is None else place.length


def usable_by_all(config: ArrayConfig) -> int:
    """Return how much of every member of *config* may be used, spares among them."""
    sizes = [r.size_bytes for r in config.members if r.role >= 0 or r.state != FAILED]
    return min(map(config.usable_bytes, sizes))


def with_tables(config: ArrayConfig, sums: StoredSums) -> ArrayConfig:
    """Return *config* with *sums*, whose tables are those of its roles."""
    needs = {*config.needs, KEY} | {TAIL} if sums.tail else {*config.needs, KEY} - {TAIL}
    return replace(config.with_job(KEY, encode(sums)), needs=tuple(sorted(needs)))


def are_possible(config: ArrayConfig) -> bool:
    """Return whether what the job `sums` of *config* says fits the rest of it.

    Raises OtherVersionError if the algorithm is not known here.
    """
    sums, regions = sums_of(config), config.regions
    if sums is None:
        return False
    if sums.algorithm != ALGORITHM:
        raise OtherVersionError(
            f"array {config.name!r}: its checksums have the algorithm {sums.algorithm}, unknown to "
            "this raidx"
        )
    return (
        0 <= sums.seed <= SEED_MAX
        and sums.copies >= 1
        and sums.is_consistent(config.width)
        and 0 <= sums.tail <= regions.sum_tail_bytes(sums.copies)
        and sums.tail % PAGE_BYTES == 0
        and sums.copies * regions.sum_table_bytes <= regions.sums.length
        and max(config.params.get("chunk_counts", (0,)))
        <= regions.data.length // config.chunk_bytes
        and KEY in config.needs
        and (TAIL in config.needs) == bool(sums.tail)
    )
