"""What of the image is lost: the ranges that answer EIO until they are written again.

Lost pages stand in the superblocks. A page that cannot be read, or misfits its checksum, is known
from its first reading on, one that misfits also after a restart (known_misfits.py). It is listed if
a read of its place fails for it: as a read does, it is first mended, and then solved from the
others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raidx_fuse.array.services import RunningArray
from raidx_fuse.array.status import state
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.read_cells import CellReader, hopeless_cells
from raidx_fuse.errors import RaidxError, UnrecoverableError
from raidx_fuse.format.configuration.volumes import parts_by_volume
from raidx_fuse.layouts.numbers import CellIndex, Chunk, MemberChunk, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.unreadable import PAGE_BYTES
from raidx_fuse.store.io_tuples import MemberLostError

if TYPE_CHECKING:
    from raidx_fuse.documents import Damage, DamagedRange

RANGES_MAX = 1000
LOST, MISFITS, UNREADABLE = "lost", "misfits", "cannot be read"

Range = tuple[int, int, str]
"""First byte in the image, first byte behind, and why."""


async def damage(array: RunningArray) -> Damage:
    """Return the damaged ranges of the image of *array*, ascending, at most RANGES_MAX.

    Where members are lost beyond what the layout tolerates, what only they have is not listed.
    Raises what the members raise.
    """
    context, config = array.context, array.member_set.config
    await array.known_misfits.read_again()
    pages = await _pages(context)
    end, found = array.size_bytes, context.bad_chunks.byte_ranges(context.chunk_bytes)
    lost = [(low, min(high, end), LOST) for low, high in found if low < end]
    ranges = sorted(lost + [page for page in _joined(pages, context) if page[0] < end])
    rows: list[DamagedRange] = []
    for low, high, why in ranges[:RANGES_MAX]:
        for begin, stop, volume, inside in parts_by_volume(config.name, config.volumes, low, high):
            rows.append(
                {
                    "image_offset": begin,
                    "length": stop - begin,
                    "volume": volume,
                    "volume_offset": inside,
                    "why": why,
                }
            )
    return {
        "array": config.name,
        "state": state(array),
        "lost_bytes": sum(high - low for low, high, _ in ranges),
        "ranges": rows[:RANGES_MAX],
        "more": max(0, len(ranges) - RANGES_MAX) + max(0, len(rows) - RANGES_MAX),
    }


def chunks_needing(context: ArrayContext, role: Role) -> int:
    """Return how many chunks have pages that are lost if *role* is: pages of others are damaged."""
    member_set, chunks = context.member_set, set[Chunk]()
    for other, page in member_set.unreadable:
        chunk, at = divmod(page * PAGE_BYTES - member_set.data_offset, context.chunk_bytes)
        found = context.layout.inverse(Role(other), MemberChunk(chunk))
        if found is None or other == role:
            continue
        stripe = found[0]
        cells = hopeless_cells(context, stripe, at, frozenset({role})) & context.code.data_mask
        cells &= ~hopeless_cells(context, stripe, at)
        chunks |= {context.layout.logical(stripe, cell) for cell in cells_of(cells)}
    return len(chunks)


def _joined(pages: dict[int, str], context: ArrayContext) -> list[Range]:
    """Return *pages* (image offset -> why) as ranges, without those of lost chunks."""
    ranges: list[Range] = []
    for at, why in sorted(pages.items()):
        if context.refused(at, PAGE_BYTES) is not None:
            continue
        if ranges and ranges[-1][1:] == (at, why):
            ranges[-1] = ranges[-1][0], at + PAGE_BYTES, why
        else:
            ranges.append((at, at + PAGE_BYTES, why))
    return ranges


async def _pages(context: ArrayContext) -> dict[int, str]:
    """Return image offset -> why of the pages that nothing gives back."""
    member_set = context.member_set
    damaged: dict[int, str] = {}
    seen: set[tuple[Stripe, int]] = set()
    places = [(Role(role), page * PAGE_BYTES) for role, page in member_set.unreadable]
    refused = [] if member_set.sums is None else member_set.sums.refused_places()
    for role, offset in (*places, *refused):
        await trio.lowlevel.checkpoint()  # there may be very many
        chunk, at = divmod(offset - member_set.data_offset, context.chunk_bytes)
        found = context.layout.inverse(role, MemberChunk(chunk))
        if found is None or (found[0], at) in seen:
            continue
        stripe = found[0]
        seen.add((stripe, at))
        cells = hopeless_cells(context, stripe, at)
        if _marked(context, stripe, at) & context.code.data_mask & ~cells:
            cells = await _refused(context, stripe, at)
        for cell in cells_of(cells & context.code.data_mask):
            offset = context.layout.logical(stripe, cell) * context.chunk_bytes + at
            damaged[offset] = _why(context, stripe, cell, at)
    return damaged


def _marked(context: ArrayContext, stripe: Stripe, at: int) -> int:
    """Return the mask of the written cells whose page from byte *at* on cannot be read.

    Those of lost members are among them that misfit as the others give them back.
    """
    sums, marked = context.member_set.sums, 0
    refused = [] if sums is None else sums.refused_places()
    for cell in cells_of(context.code.all_mask & ~context.unwritten_cells(stripe)):
        role, begin = context.position(stripe, cell)
        unreadable = context.member_set.unreadable.pages(role, begin + at, begin + at + 1)
        if role >= 0 and (unreadable or (role, begin + at) in refused):
            marked |= 1 << cell
    return marked


async def _refused(context: ArrayContext, stripe: Stripe, at: int) -> int:
    """Read the page from byte *at* on of *stripe* as its readers do; return the cells that fail.

    What the others give back may misfit its checksum as well.
    """
    epoch = context.layout_epoch
    await context.locks.acquire(stripe)
    try:
        while epoch == context.layout_epoch:
            try:
                return await _refused_under_lock(context, stripe, at)
            except MemberLostError:
                continue  # one more page cannot be read, or a member is lost
            except RaidxError:  # of what comes before the read, which fails as well
                return hopeless_cells(context, stripe, at) | _marked(context, stripe, at)
        return 0  # the chunks lie elsewhere by now, where nothing is known of them yet
    finally:
        context.locks.release(stripe)


async def _refused_under_lock(context: ArrayContext, stripe: Stripe, at: int) -> int:
    if context.dirty_bitmap.guarded:
        await context.dirty_bitmap.finish((stripe,))
    await context.member_set.unreadable.mend((stripe,))
    refused = hopeless_cells(context, stripe, at)
    await context.journal.settle((stripe,))
    for cell in cells_of(_marked(context, stripe, at) & ~refused):
        reader = CellReader(context)
        reader.add(stripe, {cell: memoryview(bytearray(PAGE_BYTES))}, at, PAGE_BYTES)
        try:
            await reader.run()
        except UnrecoverableError:
            refused |= 1 << cell
    return refused


def _why(context: ArrayContext, stripe: Stripe, cell: CellIndex, at: int) -> str:
    role, begin = context.position(stripe, cell)
    place, sums = (role, begin + at), context.member_set.sums
    if sums is not None and (sums.is_suspect(*place) or place in sums.refused_places()):
        return MISFITS
    return UNREADABLE
