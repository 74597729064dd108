"""Pages that members could not read: latent sector errors, until they are mended.

Readers plan around these pages, so that one bad sector does not cost a whole member; they are
mended in place (engine/write/mend.py).
"""

from __future__ import annotations

import errno
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from raidx_fuse.errors import MemberError, ShorterError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.settings import SETTINGS

PAGE_BYTES = 4096  # what is read, mended or declared lost at once
ERRORS_WITHIN_S = 3600.0
LINES_MAX = 16  # of one kind about single pages
ASKS_MAX = 8  # so often a known page is asked for by plans that are older than that knowledge

# What a disk answers for a sector that it cannot read. Other errors are of the disk as a whole.
_OF_PLACES = frozenset({errno.EIO, errno.EILSEQ, errno.ENODATA, errno.EBADMSG, errno.EREMOTEIO})


class PageLines:
    """Lines of *log* about single pages: the first of each kind, then one when they have doubled.

    A tenth of a large disk that rots would be millions of lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()

    def say(self, level: int, kind: str, line: str) -> None:
        """Log *line*, unless too many of its *kind* were: what it says, and of which member."""
        self._counts[kind] += 1
        count = self._counts[kind]
        if count <= LINES_MAX:
            self._log.log(level, "%s", line)
        elif not count & (count - 1):
            self._log.log(level, "%s (%d such pages so far)", line, count)


def is_of_place(error: MemberError) -> bool:
    """Return whether *error* of a read may be one of the place alone."""
    return error.errno in _OF_PLACES and not isinstance(error, ShorterError)


def pages_in(begin: int, end: int) -> range:
    """Return the numbers of the pages that overlap the bytes *begin* .. *end* - 1 of a member."""
    return range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))


@dataclass(frozen=True, slots=True)
class Needed:
    """Bytes *low* .. *high* - 1 of all cells of a stripe are needed: what is lost is listed.

    *new* returns the new content of the page of a cell from a byte on, None if it gets none.
    *moves*: the content goes to another place, so that a page that misfits cannot stay as it is.
    """

    low: int
    high: int
    new: Callable[[CellIndex, int], memoryview | None] = lambda _cell, _at: None
    moves: bool = False


class Mender(Protocol):
    """Mends unreadable pages (engine/write/mend.py)."""

    async def mend(
        self, stripes: Sequence[Stripe], needed: Mapping[Stripe, Needed] | None = None
    ) -> bool:
        """Mend *stripes*, whose locks are held; list as lost what is *needed* and cannot be had.

        Returns whether any of their pages was unreadable.
        """
        ...

    async def give_up(self, stripe: Stripe, cells: int, low: int, high: int) -> None:
        """List the pages in bytes *low* .. *high* - 1 of the data *cells* as lost, durably."""


class Unreadable:
    """The unreadable pages of the members of an array, by role; false if there are none.

    *errors_max*: so many read errors of a member within an hour are mended in place. *changes*
    increases with every page that is added. *stirred* is set when a page is worth another try
    (`take_stirred` returns those).
    *mender* is None until the log is redone; at a start that may give content up, it is there
    before. *leaving* is the role whose member is being replaced, -1 for none: it is mended only for
    writes, and its errors do not fail it.
    """

    def __init__(self) -> None:
        self.errors_max: int = SETTINGS["errors.max"].default
        self.changes = 0
        self.stirred = trio.Event()
        self.mender: Mender | None = None
        self.leaving = -1
        self._pages: dict[int, dict[int, int]] = {}  # role -> page -> *changes* when it was added
        self._stirred: dict[tuple[int, int], None] = {}  # in the order in which they came
        self._asks: Counter[tuple[int, int]] = Counter()  # of known pages, by (role, page)
        self._errors: defaultdict[int, deque[float]] = defaultdict(deque)

    def __bool__(self) -> bool:
        return bool(self._pages)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (role, page), ascending."""
        for role in sorted(self._pages):
            for page in sorted(self._pages[role]):
                yield role, page

    def count(self) -> int:
        return sum(map(len, self._pages.values()))

    def limit(self, errors_max: int) -> None:
        """Let *errors_max* read errors of a member within an hour be mended; 0: none."""
        self.errors_max = errors_max

    def spare(self, role: int) -> None:
        """Spare the member in *role*, which is being replaced; -1: none."""
        self.leaving = role
        self.stir()

    def add(self, role: int, page: int) -> None:
        self.changes += 1
        self._pages.setdefault(role, {})[page] = self.changes
        self.stir([(role, page)])

    def stir(self, pages: Iterable[tuple[int, int]] | None = None) -> None:
        """Have *pages* (role, page) tried again; None: all there are."""
        self._stirred.update(dict.fromkeys(self if pages is None else pages))
        if self._stirred:
            self.stirred.set()

    def put_off(self, role: int, page: int) -> None:
        """Have a page tried again when others are."""
        self._stirred[role, page] = None

    def take_stirred(self) -> list[tuple[int, int]]:
        """Return the pages (role, page) that are worth another try now; they are tried."""
        self.stirred = trio.Event()
        taken, self._stirred = self._stirred, {}
        return [(role, page) for role, page in taken if page in self._pages.get(role, ())]

    def discard(self, role: int, page: int) -> None:
        """Note that *page* of *role* can be read again."""
        pages = self._pages.get(role, {})
        pages.pop(page, None)
        self._asks.pop((role, page), None)
        if not pages:
            self._pages.pop(role, None)

    def forget(self, role: int) -> None:
        """Forget the pages and the errors of the member in *role*: it has left."""
        for page in self._pages.pop(role, {}):
            self._asks.pop((role, page), None)
        self._errors.pop(role, None)

    def clear(self) -> None:
        """Forget everything: the roles have other numbers now."""
        self._pages.clear()
        self._asks.clear()
        self._errors.clear()

    def pages(self, role: int, begin: int, end: int) -> list[int]:
        """Return the unreadable pages of *role* in the bytes *begin* .. *end* - 1, ascending."""
        known = self._pages.get(role)
        return [page for page in pages_in(begin, end) if page in known] if known else []

    def came_since(self, change: int, role: int, begin: int, end: int) -> bool:
        """Return whether a page in the range was added after *change*."""
        known = self._pages.get(role, {})
        return any(known[page] > change for page in self.pages(role, begin, end))

    def asked_again(self, role: int, begin: int, end: int) -> bool:
        """Count that the known pages in the range were asked for; return whether too often."""
        asked = [(role, page) for page in self.pages(role, begin, end)]
        self._asks.update(asked)
        return any(self._asks[key] > ASKS_MAX for key in asked)

    def count_error(self, role: int, now_s: float) -> bool:
        """Count a read error of *role*; return whether there are too many of them within an hour.

        *now_s* is the array's time.
        """
        errors = self._errors[role]
        errors.append(now_s)
        while errors and errors[0] <= now_s - ERRORS_WITHIN_S:
            errors.popleft()
        return len(errors) > self.errors_max and role != self.leaving

    # -- mending -------------------------------------------------------------------------------

    def connect(self, mender: Mender) -> None:
        self.mender = mender

    async def mend(
        self, stripes: Sequence[Stripe], needed: Mapping[Stripe, Needed] | None = None
    ) -> bool:
        """Do as `Mender.mend`; nothing without unreadable pages. Raises what the members raise."""
        if self._pages and self.mender is not None:
            return await self.mender.mend(stripes, needed)
        return False

    async def pass_over(self, stripes: Sequence[Stripe], chunk_bytes: int) -> bool:
        """Mend *stripes* and list the rest of their content as lost: it is moved now.

        Returns whether any of their pages was unreadable: another try to read them may succeed.
        """
        needed = Needed(0, chunk_bytes, moves=True)
        return await self.mend(stripes, dict.fromkeys(stripes, needed))
