"""What a rebuild has computed is compared with the sums of its places, before it is written there.

A page of data that does not fit is what the member has already, if that fits (one that was absent
may have it); else it is solved without the survivors that have no sum; else its chunk is lost: it
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
from raidx_fuse.jobs.strips import Place, Strips
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.store.io_tuples import PAGE_BYTES
from raidx_fuse.store.sums import Page, Sums, Values

Marks = NDArray[np.bool_]  # one for each page of the chunks of one row: [stripe, page]


async def verify_rebuilt(
    context: ArrayContext, strips: Strips, sources: Sequence[Place], targets: Sequence[Place]
) -> set[Page]:
    """Make the computed rows *targets* of *strips* fit; return the pages that get no sum.

    *sources*: the rows that they were computed from. The locks of the stripes are held. Raises
    MemberLostError, RaidxError.
    """
    sums = context.member_set.sums
    unverified: set[Page] = set()
    if sums is None:
        return unverified
    await sums.load(
        (role, strips.offset(role), (), strips.strip_bytes * strips.count)
        for role, _ in (*sources, *targets)
    )
    lacking = np.zeros((strips.count, context.chunk_bytes // PAGE_BYTES), np.bool_)
    for source in sources:
        lacking |= _lacking(context, sums, strips, source)
    wrong = [
        (target, index, page)
        for target in targets
        for index, page in _doubtful(context, sums, strips, target, lacking)
    ]
    for target, index, page in wrong:
        at = _offset(context, strips, target, index) + page * PAGE_BYTES
        is_right = await _made_right(context, sums, strips, target, index, page)
        if is_right is False or (is_right is None and lacking[index, page]):
            unverified.add(sums.page_at(target[0], at))
    return unverified


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
    """Return which pages of a row have no sum, unless they come from the log."""
    lacking: Marks = _known(context, sums, strips, source) == 0
    covers = context.member_set.overlay.covers
    for index, page in np.argwhere(lacking).tolist():
        at = _offset(context, strips, source, index) + page * PAGE_BYTES
        lacking[index, page] = not covers(source[0], at, at + PAGE_BYTES)
    return lacking


def _doubtful(
    context: ArrayContext, sums: Sums, strips: Strips, target: Place, lacking: Marks
) -> list[list[int]]:
    """Return [stripe, page] of what does not fit, or has no sum and comes from what has none."""
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
    known = _known(context, sums, strips, target)
    misfits = np.concatenate(values).reshape(strips.count, -1) != known
    found: list[list[int]] = np.argwhere(misfits & ((known != 0) | lacking)).tolist()
    return found


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
    if not context.says_what_is_lost(stripe, cell) or not sums.has(role, at):
        return None
    if member_set.overlay.covers(role, at, at + PAGE_BYTES):  # newer than the sum
        return None
    sums.note_contradiction(role, at)
    content = await member_set.read_home(role, at, PAGE_BYTES)
    await sums.load([(role, at, (), PAGE_BYTES)])
    if not isinstance(content, bytearray) or not sums.fits(role, at, content):
        solved = await solve_otherwise(context, sums, stripe, cell, inner)
        content = None if solved is None else bytearray(solved.data)
    if content is None:
        if member_set.unreadable.mender is None:
            raise context.lost_error(stripe, (cell,))
        await member_set.unreadable.mender.give_up(stripe, 1 << cell)
        return False
    part = strips.array(target).reshape(strips.count, context.chunk_bytes)[index]
    part[inner : inner + PAGE_BYTES] = np.frombuffer(content, np.uint8)
    return True
