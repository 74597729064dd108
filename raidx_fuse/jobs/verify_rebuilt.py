"""What a rebuild has computed is compared with the sums of its places, before it is written there.

A page of data that does not fit is what the member has already, if that fits (one that was absent
may have it); else it is solved without the survivors that have no sum; else it is lost: it
is listed as that, durably, and what was computed is written, so that the chains hold, without a
sum. A page that had no sum gets one if all that it was computed from had one, and so fitted. The
same holds for parities, whatever their sums are: the data says what they must be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import solve_otherwise
from raidx_fuse.format.sum_table import Values
from raidx_fuse.jobs.strips import Place, Strips
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.io_tuples import PAGE_BYTES
from raidx_fuse.store.sums import GivenSums, Sums
from raidx_fuse.store.xor import Program

Marks = NDArray[np.bool_]  # one for each page of the chunks of one row: [stripe, page]


async def verify_rebuilt(
    context: ArrayContext,
    strips: Strips,
    sources: Sequence[Place],
    targets: Sequence[Place],
    equations: tuple[Sequence[Place], Program],
) -> list[GivenSums]:
    """Make the computed rows *targets* of *strips* fit; return their sums, 0 where there is none.

    *sources*: the rows that they were computed from, by *equations*: a program over those places.
    The locks of the stripes are held. Raises MemberLostError, RaidxError.
    """
    sums = context.member_set.sums
    if sums is None:
        return []
    size = strips.strip_bytes * strips.count
    roles = {role for role, _ in (*sources, *targets)}
    async with sums.holding([(role, strips.offset(role), (), size) for role in sorted(roles)]):
        found = _derived(context, sums, strips, targets, equations)
        if found is None:
            found = await _compared(context, sums, strips, sources, targets)
    return [
        GivenSums(target[0], _offset(context, strips, target, first), part.reshape(-1))
        for target, values in found.items()
        for first, count in _pieces(strips)
        for part in (values[first : first + count],)
    ]


def _derived(
    context: ArrayContext,
    sums: Sums,
    strips: Strips,
    targets: Sequence[Place],
    equations: tuple[Sequence[Place], Program],
) -> dict[Place, Values] | None:
    """Return the sums of *targets* [stripe, page] by those of what they were computed from.

    All of that had sums, and fitted; and what was computed wrongly will not fit. None if not all
    had, or if sums that *targets* have contradict.
    """
    places, program = equations
    shape = strips.count, context.chunk_bytes // PAGE_BYTES
    rows: list[Bytes] = []
    for place in places:
        row = (
            np.empty(shape[0] * shape[1] * 4, np.uint8) if place in targets else strips.crcs(place)
        )
        if row is None:
            return None
        rows.append(row)
    program.run(rows)
    found: dict[Place, Values] = {}
    for target in targets:
        crcs = np.zeros((strips.count, strips.rows, shape[1]), np.uint32)
        crcs[:, target[1]] = rows[places.index(target)].view(np.uint32).reshape(shape)
        values = sums.values_by(target[0], strips.offset(target[0]), crcs.reshape(-1))
        found[target] = values.reshape(crcs.shape)[:, target[1]]
        known = _known(context, sums, strips, target)
        if ((found[target] != known) & (known != 0)).any():
            return None
    return found


async def _compared(
    context: ArrayContext,
    sums: Sums,
    strips: Strips,
    sources: Sequence[Place],
    targets: Sequence[Place],
) -> dict[Place, Values]:
    """Return the sums of *targets* by their bytes, once these fit as far as can be told."""
    lacking = np.zeros((strips.count, context.chunk_bytes // PAGE_BYTES), np.bool_)
    for source in sources:
        lacking |= _lacking(context, sums, strips, source)
    found: dict[Place, Values] = {}
    wrong: list[tuple[Place, int, int]] = []
    for target in targets:
        found[target] = _values(context, sums, strips, target)
        known = _known(context, sums, strips, target)
        doubtful = (found[target] != known) & ((known != 0) | lacking)
        wrong += [(target, index, page) for index, page in np.argwhere(doubtful).tolist()]
    for target, index, page in wrong:
        is_right = await _made_right(context, sums, strips, target, index, page)
        if is_right is False or (is_right is None and lacking[index, page]):
            found[target][index, page] = 0
        elif is_right:
            found[target][index, page] = _known(context, sums, strips, target)[index, page]
    return found


def _offset(context: ArrayContext, strips: Strips, place: Place, index: int = 0) -> int:
    """Return where the chunk of *place* of stripe number *index* of *strips* lies on its member."""
    role, row = place
    return strips.offset(role) + index * strips.strip_bytes + row * context.chunk_bytes


def _pieces(strips: Strips) -> list[tuple[int, int]]:
    """Return (number of the first stripe, stripes) of rows that lie in one piece on a member."""
    if strips.rows == 1:
        return [(0, strips.count)]
    return [(index, 1) for index in range(strips.count)]


def _known(context: ArrayContext, sums: Sums, strips: Strips, place: Place) -> Values:
    """Return the sums of a row: [stripe, page]; 0: none."""
    size = context.chunk_bytes
    known = [
        sums.known(place[0], _offset(context, strips, place, first), count * size)
        for first, count in _pieces(strips)
    ]
    return np.concatenate(known).reshape(strips.count, -1)


def _lacking(context: ArrayContext, sums: Sums, strips: Strips, source: Place) -> Marks:
    """Return which pages of a row have no sum, unless the log has them, from what was verified."""
    lacking: Marks = _known(context, sums, strips, source) == 0
    covers = context.member_set.overlay.covers
    for index, page in np.argwhere(lacking).tolist():
        at = _offset(context, strips, source, index) + page * PAGE_BYTES
        lacking[index, page] = not covers(source[0], at, at + PAGE_BYTES)
    for role, at in context.member_set.overlay.doubted():
        if role == source[0]:
            index, inner = divmod(at - _offset(context, strips, source), strips.strip_bytes)
            if 0 <= index < strips.count and inner < context.chunk_bytes:
                lacking[index, inner // PAGE_BYTES] = True
    return lacking


def _values(context: ArrayContext, sums: Sums, strips: Strips, target: Place) -> Values:
    """Return the sums of the bytes of a row: [stripe, page]."""
    size = context.chunk_bytes
    content = strips.array(target).reshape(strips.count, size)
    values = [
        sums.values(
            target[0],
            _offset(context, strips, target, first),
            content[first : first + count].reshape(-1).data,
        )
        for first, count in _pieces(strips)
    ]
    return np.concatenate(values).reshape(strips.count, -1)


async def _made_right(
    context: ArrayContext, sums: Sums, strips: Strips, target: Place, index: int, page: int
) -> bool | None:
    """Return whether a page of a row fits now; None if no sum says what it must be."""
    role, row = target
    stripe = Stripe(strips.first + index)
    cell = CellIndex(context.code.index[row, context.layout.roles(stripe).index(role)])
    inner = page * PAGE_BYTES
    at = _offset(context, strips, target, index) + inner
    member_set = context.member_set
    if not context.says_what_is_lost(stripe, cell, inner) or not sums.has(role, at):
        return None
    if member_set.overlay.covers(role, at, at + PAGE_BYTES):  # newer than the sum
        return None
    sums.note_contradiction(role, at)
    content = await member_set.read_home(role, at, PAGE_BYTES)
    if not isinstance(content, bytearray) or not sums.fits(role, at, content):
        solved = await solve_otherwise(context, sums, stripe, cell, inner)
        content = None if solved is None else bytearray(solved.data)
    if content is None:
        if member_set.unreadable.mender is None:
            raise context.lost_error(stripe, (cell,))
        await member_set.unreadable.mender.give_up(stripe, 1 << cell, inner, inner + PAGE_BYTES)
        return False
    part = strips.array(target).reshape(strips.count, context.chunk_bytes)[index]
    part[inner : inner + PAGE_BYTES] = np.frombuffer(content, np.uint8)
    return True
