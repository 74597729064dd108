"""What `raidx save-metadata` keeps of an array that is open: see format/saved_metadata.py.

The configuration is that of the superblocks, not that in memory: a file must not have a change that
no member has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import crc32c
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError, RaidxError, Reason
from raidx_fuse.format.both_ends import readable_superblock
from raidx_fuse.format.log_record import HEAD
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.format.saved_metadata import SAMPLE_BYTES, Runs, Saved, SavedMember, runs_of
from raidx_fuse.format.superblock import Superblock
from raidx_fuse.layouts.numbers import Chunk, Stripe, cell_range
from raidx_fuse.members.base import Member
from raidx_fuse.members.threads import read_promptly
from raidx_fuse.store.page_store import PageStore, set_bits_in

SAMPLED_STRIPES = 64
SAMPLE_S = 2.0  # slow members give fewer sums: an unmount does not wait for all of them
T = TypeVar("T")


def evenly(items: list[T], count: int) -> list[T]:
    """Return at most *count* of *items*, spread evenly.

    >>> evenly([0, 1, 2, 3, 4, 5], 3), evenly([7], 3)
    ([0, 2, 4], [7])
    """
    return [items[n * len(items) // count] for n in range(count)] if len(items) > count else items


def page_store(array: Array, kind: str) -> PageStore:
    stores = (each for each in array.member_set.page_stores if isinstance(each, PageStore))
    return next(store for store in stores if store.kind == kind)


def _log_counts(array: Array) -> tuple[int, int]:
    """Return the epoch in the head of the log, and the generation of the page."""
    head = page_store(array, "journal")
    return int(HEAD.unpack_from(head.payload)[0]), head.generations.get(0, 0)


def sampled_stripes(array: Array) -> list[Stripe]:
    """Return written stripes, spread over the image; ascending."""
    context = array.context
    store = page_store(array, "written")
    pages = evenly(sorted(store.generations), SAMPLED_STRIPES)
    found: set[Stripe] = set()
    for page in pages:
        first = page * PAYLOAD_BITS
        end = min(first + PAYLOAD_BITS, context.layout.chunks)
        chunks = set_bits_in(store.payload, first, end).tolist() if first < end else []
        for chunk in evenly(chunks, -(-SAMPLED_STRIPES // len(pages))):
            found.add(context.layout.locate(Chunk(chunk))[0])
    return sorted(found)


def _sampled_places(context: ArrayContext, stripes: Iterable[Stripe]) -> dict[int, set[int]]:
    """Return role -> byte offsets of the first row of *stripes* there."""
    places: dict[int, set[int]] = {}
    for stripe in stripes:
        for cell in cell_range(0, len(context.code.cells)):
            if not context.code.row_of[cell] and context.layout.place(stripe, cell)[0] >= 0:
                role, offset = context.position(stripe, cell)
                places.setdefault(role, set()).add(int(offset))
    return places


async def sample(member: Member, offsets: Iterable[int], found: dict[int, int]) -> None:
    """Add to *found* the sums of the content of *member* at *offsets*.

    There is none where it is zero, which is everywhere and says nothing, or unreadable.
    """
    for offset in sorted(offsets):
        content = bytearray(SAMPLE_BYTES)
        try:
            await read_promptly(member, offset, [content])
        except MemberError:
            continue
        if content.count(0) < SAMPLE_BYTES:
            found[offset] = crc32c.crc32c(content)


def _pages(array: Array) -> dict[str, Runs]:
    """Return the pages of each kind that a power cut does not take."""
    found: dict[str, Runs] = {}
    for store in array.member_set.page_stores:
        if isinstance(store, PageStore):
            known = store.generations if array.read_only else store.durable_generations()
            found[store.kind] = runs_of(sorted(page for page, count in known.items() if count))
    return found


async def save(array: Array, members: Mapping[str, Member], saved_s: int) -> Saved:
    """Return what is to be kept of *array*; *members* are its present ones by UUID.

    The array may be closed already, as long as the members are open. Raises RaidxError if no
    superblock can be read.
    """
    superblocks: dict[str, Superblock] = {}
    for uuid, member in members.items():
        found = await readable_superblock(member)
        if found is not None and found.array_uuid == array.uuid:
            superblocks[uuid] = found
    if not superblocks:
        raise RaidxError(
            f"no superblock of array {array.name!r} can be read", reason=Reason.MEMBER_FAILED
        )
    ranks = {
        uuid: (len(one.config.lineage), one.config.starts, one.events)
        for uuid, one in superblocks.items()
    }
    config = superblocks[max(ranks, key=lambda uuid: ranks[uuid])].config
    places = _sampled_places(array.context, sampled_stripes(array))
    samples: dict[str, dict[int, int]] = {}
    with trio.move_on_after(SAMPLE_S):
        async with trio.open_nursery() as nursery:
            for record in config.members:
                there = members.get(record.member_uuid)
                if there is not None and record.role >= 0:
                    sums = samples[record.member_uuid] = {}
                    offsets = places.get(record.role, set())
                    nursery.start_soon(sample, there, offsets, sums)
    saved = []
    for record in config.members:
        one = superblocks.get(record.member_uuid)
        if one is None or one.config != config:
            saved.append(SavedMember(record.member_uuid))
            continue
        counts = one.sequence, one.base_events
        saved.append(SavedMember(one.member_uuid, *counts, samples.get(one.member_uuid, {})))
    return Saved(config, tuple(saved), *_log_counts(array), _pages(array), saved_s)
