"""`peek`: the bytes of one stripe, cell by cell, and whether its chains hold.

For each cell there are two contents: what lies at its home place, and the newest, which has newer
bytes from the log laid over it. Chains are checked in both: after a write through the log they hold
in the newest content, while the home places may be a mixture of old and new.

In an array with sums the pages of the home places are compared with them. What misfits is shown as
it lies there, and beside it what a reader would get: the page that the other cells give back. It
is not reported to anybody, so looking heals nothing; a read does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.route import whole_state_of
from raidx_fuse.errors import BusyError, MemberError, UsageError
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of, read_plan
from raidx_fuse.members.unreadable import PAGE_BYTES
from raidx_fuse.store.io_tuples import MemberLostError, MemberRead
from raidx_fuse.store.xor import combine

if TYPE_CHECKING:
    from raidx_fuse.answers import Peeked, PeekedCell, PeekedChain

SHOWN_BYTES = 16
SHOWN_BYTES_MAX = 4096
STEP_BYTES = 64 << 10  # of each cell: bounds the memory for wide stripes of large chunks
ATTEMPTS = 5  # a member may fail meanwhile

Bytes = NDArray[np.uint8]
Contents = dict[CellIndex, Bytes]


class _Seen(NamedTuple):
    """A range of some cells of a stripe: at their *home* places, and their *newest* content.

    *at_home*: the first byte in the chunk of each page that does not fit its sum, by cell;
    *misfits*: those of them for which the log has nothing newer.
    """

    home: Contents
    newest: Contents
    at_home: dict[CellIndex, list[int]]
    misfits: dict[CellIndex, list[int]]


class Peek:
    """Reads stripes of one array for people to look at; changes nothing."""

    def __init__(self, context: ArrayContext) -> None:
        self._context = context

    async def peek(self, stripe: int, begin: int = 0, length: int = SHOWN_BYTES) -> Peeked:
        """Return the cells of *stripe*, *length* bytes of each from byte *begin*, and its chains.

        The chains are checked over whole cells. Raises UsageError for a stripe or bytes that do not
        exist, BusyError if members fail meanwhile.
        """
        context = self._context
        if not 0 <= stripe < context.layout.stripes:
            last = context.layout.stripes - 1
            raise UsageError(f"stripe {stripe} does not exist: the last one is {last}")
        if not 1 <= length <= SHOWN_BYTES_MAX:
            raise UsageError(f"length {length} is out of range: take 1 to {SHOWN_BYTES_MAX} bytes")
        if not 0 <= begin <= context.chunk_bytes - length:
            raise UsageError(
                f"bytes {begin} to {begin + length} are outside a chunk "
                f"of {context.chunk_bytes} bytes"
            )
        number = Stripe(stripe)
        state = whole_state_of(context, number).names(context.code.data_mask)
        await context.locks.acquire(number)
        try:
            for _ in range(ATTEMPTS):
                try:
                    return await self._look(number, begin, length, state)
                except MemberLostError:
                    continue
        finally:
            context.locks.release(number)
        raise BusyError("members fail while the stripe is read", action="see `raidx status`")

    async def _look(
        self, stripe: Stripe, begin: int, length: int, state: tuple[str, ...] | list[str]
    ) -> Peeked:
        context = self._context
        code, layout = context.code, context.layout
        sums = context.member_set.sums
        placed = [
            cell
            for cell in cell_range(0, len(code.cells))
            if layout.place(stripe, cell)[0] >= 0  # a restriping layout does not place all
        ]
        if sums is None:
            return await self._look_at(stripe, placed, begin, length, state)
        places = [(*context.position(stripe, cell), (), context.chunk_bytes) for cell in placed]
        async with sums.holding(places):
            return await self._look_at(stripe, placed, begin, length, state)

    async def _look_at(
        self,
        stripe: Stripe,
        placed: list[CellIndex],
        begin: int,
        length: int,
        state: Sequence[str],
    ) -> Peeked:
        context = self._context
        code, layout = context.code, context.layout
        sums = context.member_set.sums
        unwritten = context.unwritten_cells(stripe)
        low = begin - begin % PAGE_BYTES
        size = -(-(begin + length) // PAGE_BYTES) * PAGE_BYTES - low
        shown = slice(begin - low, begin - low + length)
        lost = self._lost(stripe, begin, begin + length)
        there = [cell for cell in placed if not (unwritten | lost) >> cell & 1]
        seen = await self._read(stripe, there, low, size)
        gone = lost | sum(1 << cell for cell in seen.misfits)
        solved = self._solve(stripe, lost, low, size, seen)
        chains, misfits = await self._chains(stripe, placed, unwritten)
        cells: list[PeekedCell] = []
        for cell in placed:
            role, position = context.position(stripe, cell)
            queue = context.member_set.queues[role]
            logged = self._logged(stripe, cell) if cell in seen.home else 0
            content = solved.get(cell) if gone >> cell & 1 else seen.newest.get(cell)
            about: PeekedCell = {
                "cell": code.name_of(cell),
                "row": code.row_of[cell],
                "column": code.column_of[cell],
                "role": role,
                "path": queue.member.path if queue else None,
                "member_offset": position,
                "image_offset": layout.logical(stripe, cell) * context.chunk_bytes
                if cell < context.code.data_count
                else None,
                "written": not unwritten >> cell & 1,
                "lost": bool(lost >> cell & 1),
                "newest": _newest(unwritten, gone, cell, logged, content is not None),
                "logged_bytes": logged,
                "home": seen.home[cell][shown].tobytes().hex() if cell in seen.home else None,
                "content": None if content is None else content[shown].tobytes().hex(),
            }
            if sums is not None:
                verdict = None
                if cell in seen.home:
                    verdict = "none" if sums.lacks(role, position + low, size) else "fits"
                    if cell in seen.at_home:
                        verdict = "misfits"
                about["sum"] = verdict
                about["misfit_at_bytes"] = misfits.get(cell, [])
            cells.append(about)
        return {
            "stripe": stripe,
            "layout": layout.name,
            "state": list(state),
            "begin": begin,
            "length": length,
            "chunk_size": context.chunk_bytes,
            "cells": cells,
            "chains": chains,
        }

    def _lost(self, stripe: Stripe, low: int = 0, high: int = 0) -> int:
        """Return the cells of which bytes *low* .. *high* - 1 (0: to their end) cannot be read.

        A page that is known to misfit its sum can be.
        """
        context, member_set = self._context, self._context.member_set
        lost, sums = member_set.lost_cells(stripe, low, high), member_set.sums
        if sums is None or not lost:
            return lost
        absent = context.layout.lost_cells(stripe, member_set.lost_at(stripe))
        for cell in cells_of(lost & ~absent):
            role, position = context.position(stripe, cell)
            end = position + (high or context.chunk_bytes)
            pages = member_set.unreadable.pages(role, position + low, end)
            if all(sums.is_suspect(role, page * PAGE_BYTES) for page in pages):
                lost &= ~(1 << cell)
        return lost

    async def _read(self, stripe: Stripe, cells: list[CellIndex], low: int, size: int) -> _Seen:
        """Return *size* bytes from byte *low* of each of *cells*. Raises as `MemberSet.read`.

        In an array with sums these are whole pages, whose sums are in memory.
        """
        context, member_set = self._context, self._context.member_set
        sums = member_set.sums
        home = {cell: np.zeros(size, np.uint8) for cell in cells}
        requests: list[MemberRead] = []
        for cell, array in home.items():
            role, position = context.position(stripe, cell)
            requests.append((role, position + low, [array.data], size))
        await member_set.read(requests, background=True, home=True)
        newest = {cell: array.copy() for cell, array in home.items()}
        found: list[tuple[CellIndex, Role, int, int]] = []
        for (role, offset, (content,), _), (cell, array) in zip(
            requests, newest.items(), strict=True
        ):
            context.journal.overlay.patch(role, offset, [array.data])
            for at in () if sums is None else sums.wrong_pages(role, offset, content):
                found.append((cell, role, offset, at))
        seen = _Seen(home, newest, {}, {})
        for cell, role, offset, at in found:
            assert sums is not None
            if not isinstance(await sums.judge(role, offset + at), MemberError):
                raise MemberLostError  # it was being written: look again
            seen.at_home.setdefault(cell, []).append(low + at)
            begin = offset + at
            if not context.journal.overlay.covers(role, begin, begin + PAGE_BYTES):
                seen.misfits.setdefault(cell, []).append(low + at)
        return seen

    def _solve(self, stripe: Stripe, lost: int, low: int, size: int, seen: _Seen) -> Contents:
        """Return what the chains give back of the cells that are *lost* or misfit.

        A cell is left out if one of its pages cannot be solved, or does not fit its sum then.
        """
        context, member_set = self._context, self._context.member_set
        sums, unwritten = member_set.sums, context.unwritten_cells(stripe)
        absent = context.layout.lost_cells(stripe, member_set.lost_at(stripe))
        # While the parity of a stripe is due, its chains hold at the home places.
        known = seen.home if stripe in context.journal.unsettled else seen.newest
        gone = lost & ~unwritten | sum(1 << cell for cell in seen.misfits)
        solved: Contents = {}
        for cell in cells_of(gone):
            role, position = context.position(stripe, cell)
            content = seen.newest[cell].copy() if cell in seen.newest else np.zeros(size, np.uint8)
            for at in range(low, low + size, PAGE_BYTES):
                unknown = lost | sum(1 << c for c, places in seen.misfits.items() if at in places)
                if not unknown >> cell & 1:
                    continue
                page = content[at - low : at - low + PAGE_BYTES]
                try:
                    plan = read_plan(context.code, 1 << cell, unknown, unwritten)
                except Unrecoverable:
                    break
                (output,) = plan.outputs
                terms = [known[c][at - low : at - low + PAGE_BYTES] for c in output.old]
                combine(page, terms)
                if sums is None or absent >> cell & 1:
                    continue
                if not sums.fits(role, position + at, page.data):
                    break
            else:
                solved[cell] = content
        return solved

    def _logged(self, stripe: Stripe, cell: CellIndex) -> int:
        """Return how many bytes of a cell the log has newer than its home place."""
        context, overlay = self._context, self._context.journal.overlay
        if not overlay:
            return 0
        role, position = context.position(stripe, cell)
        zeros = np.zeros(context.chunk_bytes, np.uint8)
        ones = np.full(context.chunk_bytes, 0xFF, np.uint8)
        for array in (zeros, ones):  # a byte that is equal in both has come from the overlay
            overlay.patch(role, int(position), [array.data])
        return int(np.count_nonzero(zeros == ones))

    async def _chains(
        self, stripe: Stripe, placed: list[CellIndex], unwritten: int
    ) -> tuple[list[PeekedChain], dict[CellIndex, list[int]]]:
        """Return each chain with the first byte at which the XOR of its cells is not zero.

        With them the first byte of each page that misfits, by cell, but for those of which the log
        has newer bytes. The newest content of such a page is what its chain gives back.
        """
        context = self._context
        code = context.code
        lost = self._lost(stripe) & ~unwritten  # anywhere in the chunk
        there = [cell for cell in placed if not (unwritten | lost) >> cell & 1]
        wrong: list[dict[str, int]] = [{} for _ in code.chain_masks]
        misfits: dict[CellIndex, list[int]] = {}
        for low in range(0, context.chunk_bytes, STEP_BYTES):
            size = min(STEP_BYTES, context.chunk_bytes - low)
            seen = await self._read(stripe, there, low, size)
            for cell, places in seen.misfits.items():
                misfits.setdefault(cell, []).extend(places)
            for title, contents in (("home", seen.home), ("newest", seen.newest)):
                for number, mask in enumerate(code.chain_masks):
                    if mask & lost:
                        continue
                    solved = [at - low for c in cells_of(mask) for at in seen.misfits.get(c, ())]
                    first = _first_nonzero(contents, mask, solved if title == "newest" else ())
                    if first is not None:
                        wrong[number].setdefault(title, low + first)
        pending = stripe in context.journal.unsettled
        chains: list[PeekedChain] = []
        for number, mask in enumerate(code.chain_masks):
            newest, home = wrong[number].get("newest"), wrong[number].get("home")
            unchecked = None
            if mask & lost:
                unchecked = "not checked: a cell is lost"
            elif not mask & ~unwritten:
                unchecked = "holds: nothing is written"
            broken = "the parity follows at the checkpoint" if pending else "broken"
            chains.append(
                {
                    "parity": code.name_of(CellIndex(context.code.data_count + number)),
                    "cells": [code.name_of(cell) for cell in cells_of(mask)],
                    "newest": unchecked or ("holds" if newest is None else broken),
                    "newest_differs_at": newest,
                    "home": unchecked or ("holds" if home is None else "broken"),
                    "home_differs_at": home,
                }
            )
        return chains, misfits


def _newest(unwritten: int, gone: int, cell: CellIndex, logged: int, known: bool) -> str:
    """Return where the newest content of a cell is."""
    if unwritten >> cell & 1:
        return "unwritten"
    if gone >> cell & 1:
        return "chains" if known else "nowhere"
    return "log" if logged else "home"


def _first_nonzero(
    contents: Mapping[CellIndex, Bytes], mask: int, solved: Sequence[int]
) -> int | None:
    """Return where the XOR of the cells in *mask* is first not zero; unwritten ones are zero.

    The pages from the bytes *solved* on are left out.
    """
    terms = [contents[cell] for cell in cells_of(mask) if cell in contents]
    if not terms:
        return None
    total = np.empty_like(terms[0])
    combine(total, terms)
    for at in solved:
        total[at : at + PAGE_BYTES] = 0
    (places,) = np.nonzero(total)
    return int(places[0]) if len(places) else None
