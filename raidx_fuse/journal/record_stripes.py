"""Which stripes the records of a log change, and which records an array can have written."""

from __future__ import annotations

from collections.abc import Iterable

from raidx_fuse.format.log_record import Record
from raidx_fuse.layouts.numbers import Chunk, MemberChunk, Stripe, chunk_range
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.store.member_set import MemberSet

CHUNKS_MAX = 1 << 20


def stripes_changed(
    records: Iterable[Record], layout: Layout, data_offset: int
) -> frozenset[Stripe] | None:
    """Return the stripes that *records* change; None if that cannot be told.

    It cannot be told of a chunk of a raidx member that is absent: only its share of the look-up
    table says whose chunk it is; nor during a restripe; nor if the records name more than
    `CHUNKS_MAX` chunks as written or unwritten, because looking them up would delay the start.
    """
    if isinstance(layout, RestripeLayout):
        return None
    found: set[Stripe] = set()
    size, chunks = layout.chunk_bytes, 0
    for record in records:
        for role, offset, data in record.data:
            first = (offset - data_offset) // size
            for chunk in range(first, (offset - data_offset + len(data) - 1) // size + 1):
                place = layout.inverse(role, MemberChunk(chunk))
                if place is not None:
                    found.add(place[0])
                elif isinstance(layout, BundleLayout):
                    return None
        for number, count in (*record.written, *record.unwritten):
            end = min(number + count, layout.chunks)
            chunks += end - number
            if chunks > CHUNKS_MAX:
                return None
            found.update(layout.locate(Chunk(c))[0] for c in chunk_range(number, end))
        found.update(stripe for stripe, _, _ in record.unsettled)
        found.update(stripe for stripe, _ in record.settled)
        if isinstance(layout, BundleLayout):
            found.update(Stripe(cell // layout.length) for cell, _, _ in record.table)
    return frozenset(found)


class Limits:
    """The limits of a valid record of *member_set*'s array, whose written map holds *chunks* bits.

    The map, not the image, is the limit: a record may name chunks of bundles that are not counted
    in the superblocks. `replay` then clears their bits again.
    """

    def __init__(self, member_set: MemberSet, chunks: int) -> None:
        self._layout = layout = member_set.layout
        self._chunks = chunks
        self._data_offset = member_set.data_offset
        member_chunks = member_set.config.regions.data.length // layout.chunk_bytes
        self._ends = {
            role: member_set.data_offset
            + layout.chunk_bytes
            * (layout.counts[role] if isinstance(layout, BundleLayout) else member_chunks)
            for role in member_set.config.roles()
        }

    def problem(self, record: Record) -> str | None:
        """Return a text that says what is impossible about *record*, or None if it is valid."""
        for role, offset, data in record.data:
            end = offset + len(data)
            if role not in self._ends or not self._data_offset <= offset < end <= self._ends[role]:
                return f"{len(data)} bytes at {offset} of role {role}"
        for first, count in (*record.written, *record.unwritten):
            if not 0 < count <= self._chunks - first:
                return f"{count} chunks from {first} of {self._chunks}"
        for stripe in (*(s for s, _, _ in record.unsettled), *(s for s, _ in record.settled)):
            if stripe >= self._layout.stripes or not self._layout.code.parity_count:
                return f"the parity of stripe {stripe}"
        return self._table_problem(record)

    def _table_problem(self, record: Record) -> str | None:
        layout = self._layout
        for cell, role, chunk in record.table:
            if not isinstance(layout, BundleLayout):
                return "a move of a chunk where there is no look-up table"
            if cell >= layout.cells or role not in self._ends or chunk >= layout.counts[role]:
                return f"chunk {chunk} of role {role} for cell {cell}"
        if record.mark is not None:
            limit = layout.image_chunks if isinstance(layout, RestripeLayout) else -1
            if record.mark > limit:
                return f"a watermark of {record.mark}"
        return None
