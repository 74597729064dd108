"""`peek`: the bytes of one stripe, cell by cell, and whether its chains hold.

For each cell there are two contents: what lies at its home place, and the newest, which has newer
bytes from the log laid over it. Chains are checked in both: after a write through the log they hold
in the newest content, while the home places may be a mixture of old and new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.engine.write.route import whole_state_of
from raidx_fuse.errors import BusyError, UnrecoverableError, UsageError
from raidx_fuse.layouts.numbers import CellIndex, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.io_tuples import MemberLostError
from raidx_fuse.store.xor import combine

if TYPE_CHECKING:
    from raidx_fuse.answers import Peeked, PeekedCell, PeekedChain

SHOWN_BYTES = 16
SHOWN_BYTES_MAX = 4096
STEP_BYTES = 64 << 10  # of each cell: bounds the memory for wide stripes of large chunks
ATTEMPTS = 5  # a member may fail meanwhile

Bytes = NDArray[np.uint8]
Contents = dict[CellIndex, Bytes]


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
        placed = [
            cell
            for cell in cell_range(0, len(code.cells))
            if layout.place(stripe, cell)[0] >= 0  # a restriping layout does not place all
        ]
        unwritten = context.unwritten_cells(stripe)
        lost = context.member_set.lost_cells(stripe, begin, begin + length)
        there = [cell for cell in placed if not (unwritten | lost) >> cell & 1]
        home, newest = await self._read(stripe, there, begin, length)
        solved = await self._solve(stripe, cells_of(lost & ~unwritten), begin, length)
        cells: list[PeekedCell] = []
        for cell in placed:
            role, position = context.position(stripe, cell)
            queue = context.member_set.queues[role]
            logged = self._logged(stripe, cell) if cell in home else 0
            content = newest.get(cell, solved.get(cell))
            cells.append(
                {
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
                    "newest": _newest(unwritten, lost, cell, logged, content is not None),
                    "logged_bytes": logged,
                    "home": home[cell].tobytes().hex() if cell in home else None,
                    "content": None if content is None else content.tobytes().hex(),
                }
            )
        return {
            "stripe": stripe,
            "layout": layout.name,
            "state": list(state),
            "begin": begin,
            "length": length,
            "chunk_size": context.chunk_bytes,
            "cells": cells,
            "chains": await self._chains(stripe, placed, unwritten),
        }

    async def _read(
        self, stripe: Stripe, cells: list[CellIndex], low: int, size: int
    ) -> tuple[Contents, Contents]:
        """Return home and newest content of *size* bytes from byte *low* of each of *cells*."""
        context = self._context
        home = {cell: np.zeros(size, np.uint8) for cell in cells}
        newest = {cell: np.zeros(size, np.uint8) for cell in cells}
        reads: dict[Any, list[Any]] = {}
        for cell, array in home.items():
            role, position = context.position(stripe, cell)
            reads.setdefault(role, []).append((position + low, [array.data], size))
        await context.member_set.read_base(reads, frozen=False)
        requests = []
        for cell, array in newest.items():
            role, position = context.position(stripe, cell)
            requests.append((role, position + low, [array.data], size))
        await context.member_set.read(requests, background=True)
        return home, newest

    async def _solve(
        self, stripe: Stripe, cells: tuple[CellIndex, ...], low: int, size: int
    ) -> Contents:
        """Return what the chains give back of lost *cells*; nothing if one of them cannot be."""
        solved = {cell: np.zeros(size, np.uint8) for cell in cells}
        reader = CellReader(self._context)
        try:
            reader.add(stripe, {cell: a.data for cell, a in solved.items()}, low, size)
        except UnrecoverableError:
            return {}
        await reader.run()
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
    ) -> list[PeekedChain]:
        """Return each chain with the first byte at which the XOR of its cells is not zero."""
        context = self._context
        code = context.code
        lost = context.member_set.lost_cells(stripe) & ~unwritten  # anywhere in the chunk
        there = [cell for cell in placed if not (unwritten | lost) >> cell & 1]
        wrong: list[dict[str, int]] = [{} for _ in code.chain_masks]
        for low in range(0, context.chunk_bytes, STEP_BYTES):
            size = min(STEP_BYTES, context.chunk_bytes - low)
            for title, contents in zip(
                ("home", "newest"), await self._read(stripe, there, low, size), strict=True
            ):
                for number, mask in enumerate(code.chain_masks):
                    first = None if mask & lost else _first_nonzero(contents, mask)
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
        return chains


def _newest(unwritten: int, lost: int, cell: CellIndex, logged: int, known: bool) -> str:
    """Return where the newest content of a cell is."""
    if unwritten >> cell & 1:
        return "unwritten"
    if lost >> cell & 1:
        return "chains" if known else "nowhere"
    return "log" if logged else "home"


def _first_nonzero(contents: Mapping[CellIndex, Bytes], mask: int) -> int | None:
    """Return where the XOR of the cells in *mask* is first not zero; unwritten ones are zero."""
    terms = [contents[cell] for cell in cells_of(mask) if cell in contents]
    if not terms:
        return None
    total = np.empty_like(terms[0])
    combine(total, terms)
    (places,) = np.nonzero(total)
    return int(places[0]) if len(places) else None
