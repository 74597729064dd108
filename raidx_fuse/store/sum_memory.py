"""The tables of sums as far as they are in memory: what was not used lately goes at a limit.

Pages of tables come one by one, as they are needed (store/sum_tables.py). They go in *groups* of
64, whose memory is given back whole; a group that was used since its last turn gets a second
chance. A group stays as long as the members do not have what it says:

    unsaved     a sum was set since the last save, or the save has not ended
    past        sums of before a crash, which are in memory beside none, until the resync
    no copy     no member that is whole has the table: those that had it are absent, or rebuilt
    held        a task needs it still (`holding`): while it waits for other pages, or for a write

None and *not in memory* look the same in the arrays. A page that is not there would be taken for
one that nothing verifies, so whoever asks for a sum, or sets one, must have loaded its page, and
not waited since, or hold it. That is a law (`Law.LOADED`).
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.format.regions import PAGE_BYTES, SUMS_PER_PAGE
from raidx_fuse.format.sum_table import Values
from raidx_fuse.laws import Law, LawError, Laws
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.store.sum_tail import Pages

ENTRIES = SUMS_PER_PAGE
PAGE_MEMORY_BYTES = ENTRIES * 4
GROUP = 64  # pages of a table: whole pages of memory together
GROUP_BYTES = GROUP * PAGE_MEMORY_BYTES
# Of a page of a table: *EMPTY* has no sums and no memory; *USED* is in memory, and was asked for.
ABSENT, EMPTY, LOADED, USED = range(4)
_MEMORY_SHARE = 64  # of the machine's memory, by default
_DEFAULT_BYTES_MIN, _DEFAULT_BYTES_MAX = 8 << 20, 48 << 20
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Key = tuple[Role, int]  # role, page of its table


def default_cache_bytes() -> int:
    """Return how much memory the tables of an array may take on this machine, unless told."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_DEFAULT_BYTES_MIN, min(_DEFAULT_BYTES_MAX, machine // _MEMORY_SHARE))


@dataclass(slots=True, eq=False)
class Hold:
    """Pages of tables that stay in memory, as a task needs them."""

    keys: set[Key]


class SumMemory:
    """What is in memory of the tables of one array.

    By role: *values*, of which *views* are for one page; whether each page of the table is *loaded*
    (ABSENT, EMPTY, LOADED, USED); *changes* since the last save: pages, runs of them (first, end),
    and arrays of them. *unsaved*: the pages of tables with changes. *limit_bytes*: of what is to be
    kept in memory; *evicted*: how many groups had to go.
    """

    def __init__(self, laws: Laws) -> None:
        self.limit_bytes = 0
        self.values: list[Values] = []
        self.views: list[memoryview] = []
        self.loaded: list[bytearray] = []
        self.changes: list[list[Any]] = []
        self.unsaved: set[Key] = set()
        self._laws = laws
        self._maps: list[tuple[mmap.mmap, mmap.mmap]] = []  # of values and past
        # What the sums of stripes that await their resync were before the crash.
        self._past: list[Values] = []
        self.has_past = False  # else the memory of *_past* stays untouched
        self._frames = 0  # pages of memory that those LOADED or USED take
        self._clock: dict[tuple[Role, int], None] = {}  # groups with such pages, in turn
        self._holds: set[Hold] = set()
        self._held: Counter[tuple[Role, int]] = Counter()  # groups
        self._next_scan = 0  # so many frames: fewer are in use, all of them
        self.evicted = 0  # groups

    def take(self, came_from: Sequence[int | None], pages: int, *, empty: bool = False) -> None:
        """Let there be tables of so many *pages*; where a role *came_from* another, it has its.

        The others are ABSENT, or *empty*; so are pages that come behind those that there were.
        """
        values, self.values = self.values, []
        views, self.views = self.views, []
        loaded, self.loaded = self.loaded, []
        changes, self.changes = self.changes, []
        past, self._past = self._past, []
        maps, self._maps = self._maps, []
        for old in came_from:
            if old is not None and len(loaded[old]) == pages:
                self.values.append(values[old])
                self.views.append(views[old])
                self.loaded.append(loaded[old])
                self.changes.append(changes[old])
                self._past.append(past[old])
                self._maps.append(maps[old])
                continue
            both = _mapped(pages * PAGE_MEMORY_BYTES), _mapped(pages * PAGE_MEMORY_BYTES)
            self._maps.append(both)
            self.values.append(np.frombuffer(both[0], np.uint32))
            self.views.append(memoryview(both[0]).cast("I"))
            self._past.append(np.frombuffer(both[1], np.uint32))
            new = EMPTY if old is not None or empty else ABSENT
            self.loaded.append(bytearray([new]) * pages)
            self.changes.append([] if old is None else changes[old])
            if old is None:
                continue
            self.loaded[-1][: len(loaded[old])] = loaded[old]
            there = np.flatnonzero(np.frombuffer(loaded[old], np.uint8) >= LOADED)
            for now, then in ((self.values[-1], values[old]), (self._past[-1], past[old])):
                now.reshape(-1, ENTRIES)[there] = then.reshape(-1, ENTRIES)[there]
        new_role = {Role(old): Role(r) for r, old in enumerate(came_from) if old is not None}
        self.unsaved = {(new_role[r], number) for r, number in self.unsaved if r in new_role}
        for hold in self._holds:
            hold.keys = {(new_role[r], number) for r, number in hold.keys if r in new_role}
        self._held = Counter(key for hold in self._holds for key in _groups(hold.keys))
        self._clock, self._frames = {}, 0
        for role, states in enumerate(self.loaded):
            numbers = np.flatnonzero(np.frombuffer(states, np.uint8) >= LOADED)
            for group in np.unique(numbers // GROUP).tolist():
                self._frames += _frames_of(states[group * GROUP : (group + 1) * GROUP])
                self._clock[Role(role), group] = None

    # -- sums ----------------------------------------------------------------------------------

    def known(self, role: Role, first: int, end: int) -> Values:
        """Return the sums of pages *first* .. *end* - 1 of *role*, which are in memory; 0: none."""
        if ABSENT in self.loaded[role][first // ENTRIES : (end - 1) // ENTRIES + 1]:
            raise self._absent(role, first)
        return self.values[role][first:end]

    def known_at(self, role: Role, pages: Pages) -> Values:
        """Return the sums of *pages* of *role*, which are in memory; 0: none."""
        self._require(role, pages)
        return self.values[role][pages]

    def known_one(self, role: Role, page: int) -> int:
        """Return the sum of a page of *role*, which is in memory; 0: none."""
        if not self.loaded[role][page // ENTRIES]:
            raise self._absent(role, page)
        return self.views[role][page]

    def put_one(self, role: Role, page: int, value: int) -> None:
        """Set the sum of a page, which is in memory."""
        number = page // ENTRIES
        if self.loaded[role][number] < LOADED:
            self._enter(role, number)
        self.views[role][page] = value
        self.changes[role].append(page)
        self.unsaved.add((role, number))

    def put(self, role: Role, first: int, values: Values | int, count: int) -> None:
        """Set the sums of *count* pages from *first* of *role* on; they are in memory."""
        loaded, unsaved = self.loaded[role], self.unsaved
        for number in range(first // ENTRIES, (first + count - 1) // ENTRIES + 1):
            if loaded[number] < LOADED:
                self._enter(role, number)
            unsaved.add((role, number))
        self.values[role][first : first + count] = values
        if self.has_past:
            self._past[role][first : first + count] = 0
        self.changes[role].append((first, first + count))

    def put_at(self, role: Role, pages: Pages, values: Values) -> None:
        """Set the sums of *pages* of *role*, which ascend; they are in memory."""
        self._note_changed(role, pages)
        self.values[role][pages] = values

    def past(self, role: Role, first: int, end: int) -> Values:
        """Return what the sums of pages were before the crash whose resync is due; 0: none."""
        return self._past[role][first:end]

    def begin_past(self, role: Role, pages: Pages) -> None:
        """Let *pages* of *role* have no sum: what they have is past, until their resync ends.

        On the members it stays: another crash may come before.
        """
        self._note_changed(role, np.sort(pages))  # of a look-up table they come in any order
        self._past[role][pages] = self.values[role][pages]
        self.values[role][pages] = 0
        self.has_past = True

    def end_past(self, role: Role, pages: Pages) -> None:
        """Forget what the sums of *pages* of *role* were before a crash."""
        if self._past[role][pages].any():  # of cells that are lost, or hold nothing
            self._note_changed(role, np.sort(pages))
            self._past[role][pages] = 0

    def to_save(self, role: Role, pages: Pages) -> Values:
        """Return the sums of *pages* of *role*, in memory, as they are saved.

        What awaits its resync keeps those of before the crash: another one may come before it.
        """
        values = self.known_at(role, pages)
        if not self.has_past:
            return values
        kept: Values = np.where(values == 0, self._past[role][pages], values)
        return kept

    def of_tables(self, role: Role, numbers: Pages) -> Values:
        """Return `to_save` for all sums in the pages *numbers* of the table of *role*."""
        return self.to_save(role, (numbers[:, None] * ENTRIES + _INSIDE).ravel())

    def _note_changed(self, role: Role, pages: Pages) -> None:
        for number in np.unique(pages // ENTRIES).tolist():
            if self.loaded[role][number] < LOADED:
                self._enter(role, number)
            self.unsaved.add((role, number))
        self.changes[role].append(pages)

    def _require(self, role: Role, pages: Pages) -> None:
        states = np.frombuffer(self.loaded[role], np.uint8)[pages // ENTRIES]
        if not states.all():
            raise self._absent(role, int(pages[int(states.argmin())]))

    def _absent(self, role: Role, page: int) -> LawError:
        return self._laws.broken(Law.LOADED, f"the sum of page {page} of role {role}")

    # -- what is in memory ---------------------------------------------------------------------

    def are_loaded(self, role: Role, first: int, end: int) -> bool:
        """Return whether the sums of pages *first* .. *end* - 1 of *role* are in memory."""
        return ABSENT not in self.loaded[role][first // ENTRIES : (end - 1) // ENTRIES + 1]

    def bring(self, role: Role, first: int, sums: Values) -> None:
        """Take *sums* as those in pages of the table of *role* from its page *first* on.

        Those of them that are in memory are newer, and stay.
        """
        loaded, table = self.loaded[role], self.values[role].reshape(-1, ENTRIES)
        for number, values in enumerate(sums.reshape(-1, ENTRIES), first):
            if loaded[number]:
                continue
            if values.any():  # else the memory of the table stays untouched
                table[number] = values
                self._count(role, number)
            else:
                loaded[number] = EMPTY

    def _enter(self, role: Role, number: int) -> None:
        """Note that an empty page of a table gets sums. Raises LawError if it is ABSENT."""
        if not self.loaded[role][number]:
            raise self._absent(role, number * ENTRIES)
        self._count(role, number)

    def _count(self, role: Role, number: int) -> None:
        loaded, at = self.loaded[role], number % GROUP
        after = number + 1 < len(loaded) and loaded[number + 1] >= LOADED
        self._frames += at > 0 and loaded[number - 1] < LOADED
        self._frames += at < GROUP - 1 and not after
        loaded[number] = USED
        self._clock.setdefault((role, number // GROUP))

    def forget_table(self, role: Role) -> None:
        """Let no page of *role* have a sum, nor any change of one that is to be saved."""
        loaded = self.loaded[role]
        for group in range(-(-len(loaded) // GROUP)):
            first = group * GROUP
            states = loaded[first : first + GROUP]
            self._frames -= _frames_of(states)
            self._clock.pop((role, group), None)
            loaded[first : first + GROUP] = bytes([EMPTY]) * len(states)
            part = slice(first * ENTRIES, (first + len(states)) * ENTRIES)
            _give_back(self._maps[role][0], self.values[role], part)

    def have_sums(self, role: Role, numbers: Pages) -> NDArray[np.bool_]:
        """Return whether each of the pages *numbers* of a table, in memory, has a sum."""
        self._require(role, numbers * ENTRIES)
        pages = self.values[role].reshape(-1, ENTRIES)[numbers]
        return np.asarray(pages.any(axis=1), np.bool_)

    @contextmanager
    def holding(self, keys: Iterable[Key]) -> Iterator[None]:
        """Keep the pages *keys* of tables in memory while the block runs, once they are there."""
        hold = self.hold(keys)
        try:
            yield
        finally:
            self.release(hold)

    def hold(self, keys: Iterable[Key]) -> Hold:
        """Keep the pages *keys* of tables in memory, once they are there, until `release`."""
        hold = Hold(set())
        self._holds.add(hold)
        self.hold_more(hold, keys)
        return hold

    def hold_more(self, hold: Hold, keys: Iterable[Key]) -> None:
        """Keep the pages *keys* by *hold* as well."""
        keys = set(keys)
        self._held.update(_groups(keys) - _groups(hold.keys))
        hold.keys |= keys

    def release(self, hold: Hold) -> None:
        """Let go what *hold* has kept."""
        if hold in self._holds:
            self._holds.discard(hold)
            for group in _groups(hold.keys):
                self._held[group] -= 1
                if not self._held[group]:
                    del self._held[group]

    @property
    def taken_bytes(self) -> int:
        """How much memory the sums take."""
        return self._frames * PAGE_BYTES

    @property
    def has_many_unsaved(self) -> bool:
        """Whether much of what is in memory stays there only because it is not saved yet."""
        return len(self.unsaved) * PAGE_MEMORY_BYTES * 2 > self.limit_bytes

    def evict(self, beside_bytes: int, has_copy: Callable[[Role], bool]) -> None:
        """Give back memory until there is no more than the limit, with *beside_bytes* elsewhere.

        *has_copy*: whether any member has the table of a role; else nothing of it goes.
        """
        frames_max = max(0, self.limit_bytes - beside_bytes) // PAGE_BYTES
        if self._frames <= frames_max or self._frames < self._next_scan:
            return
        for _ in range(2 * len(self._clock)):
            if self._frames <= frames_max:
                self._next_scan = 0
                return
            group = next(iter(self._clock))
            del self._clock[group]
            if not (has_copy(group[0]) and self._may_go(group)):
                self._clock[group] = None
        # All others are in use: they are not looked at again with each page that comes.
        self._next_scan = self._frames + self._frames // 8 + 1

    def take_unsaved(self) -> set[Key]:
        """Return what is unsaved: from now on it is not, but held by the caller."""
        unsaved, self.unsaved = self.unsaved, set()
        return unsaved

    def look_again(self) -> None:
        """Note that something may go by now: what was unsaved is saved."""
        self._next_scan = 0

    def _may_go(self, group: tuple[Role, int]) -> bool:
        """Give the memory of *group* back; return False if it stays."""
        role, number = group
        first, loaded = number * GROUP, self.loaded[role]
        states = loaded[first : first + GROUP]
        if USED in states:
            loaded[first : first + GROUP] = states.replace(b"\3", b"\2")
            return False
        there = [(role, first + at) for at, state in enumerate(states) if state >= LOADED]
        if group in self._held or not self.unsaved.isdisjoint(there):
            return False
        part = slice(first * ENTRIES, (first + len(states)) * ENTRIES)
        if self.has_past and self._past[role][part].any():
            return False
        loaded[first : first + GROUP] = states.replace(b"\2", b"\0")
        self._frames -= _frames_of(states)
        self.evicted += 1
        _give_back(self._maps[role][0], self.values[role], part)
        if self.has_past:
            _give_back(self._maps[role][1], self._past[role], part)
        return True


_INSIDE = np.arange(ENTRIES)


def _frames_of(states: bytearray) -> int:
    """Return how many pages of memory the pages of a table of a group take, by their *states*.

    A page of a table is a little smaller, so each but the first and the last lies on two of them.
    """
    there = [state >= LOADED for state in states]
    after = [*there[1:], False]
    return sum(map(or_, there[: GROUP - 1], after))


def _groups(keys: Iterable[Key]) -> set[tuple[Role, int]]:
    return {(role, number // GROUP) for role, number in keys}


def _mapped(size_bytes: int) -> mmap.mmap:
    """Return zeros of which the kernel allocates what is written, page by page."""
    memory = mmap.mmap(-1, size_bytes, flags=_OWN)
    with suppress(AttributeError, OSError):  # random sums would take 2 MiB each
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def _give_back(memory: mmap.mmap, values: Values, part: slice) -> None:
    """Make *part* of *values*, in *memory*, zeros that take none."""
    begin, end = part.start * 4, part.stop * 4
    if begin % mmap.PAGESIZE == 0:
        with suppress(OSError):
            memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
            return
    values[part] = 0
