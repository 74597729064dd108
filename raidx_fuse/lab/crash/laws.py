"""Laws that the campaign holds arrays to: at writes that reach a disk, and at acknowledgements.

A broken law is a violation at once, whether or not a cut at that moment would have cost anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from raidx_fuse.array.array import Array
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, by_role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume


@contextmanager
def acknowledged(arrays: Iterable[Array]) -> Iterator[None]:
    """Judge the request inside, which *arrays* acknowledge at its end. Raises AssertionError.

    Nothing is acknowledged on an unpublished configuration: every member that stays must have the
    one with which the request began, or a newer (law 3 of store/member_set.py).
    """
    before = [(array, array.member_set.config.events) for array in arrays]
    yield
    for array, events in before:
        assert array.member_set.reaches(events), (
            f"array {array.name} acknowledges a request on an unpublished configuration"
        )


def arrays_of(pool: Pool, volume: Volume) -> list[Array]:
    """Return the arrays that have bytes of *volume*: two while it moves.

    A move that is over has still to take the volume out of the table of the array that it has left:
    what was written there is durable on the other one, and no request waits for that table.
    """
    transfer = pool.transfers.get(volume.uuid)
    if transfer is not None and not transfer.is_over:
        return [transfer.source.array, transfer.target.array]
    return [pool.find(volume.uuid)[0].array]


def writer_of(pool: Pool, volume: Volume) -> list[Array]:
    """Return the array that acknowledges a write to *volume*; none while it moves.

    Then it is the one that has these bytes when the write has waited for the window.
    """
    arrays = arrays_of(pool, volume)
    return arrays if len(arrays) == 1 else []


class DiskLaws:
    """Judges the writes to the members of *arrays*. Raises AssertionError.

    1. No write goes beyond the size of a member.
    2. While somebody is away, no home write goes to a stripe of theirs that is not noted as changed
       (engine/changed_regions.py): whoever it comes from, for it is judged by its place. Exempt are
       zeros at unwritten places, which do not count, and what a rebuild gives its own member.
    3. The array has refused nothing because of a law of its own (raidx_fuse/laws.py).
    """

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._arrays = list(arrays)

    def judge(self, disk: Member, offset_bytes: int, data: bytes) -> None:
        """Judge a write of *data* to *disk* before it takes effect."""
        assert 0 <= offset_bytes <= disk.size_bytes - len(data), (
            f"{disk.path}: a write of {len(data)} bytes at {offset_bytes} goes beyond its end"
        )
        for array in self._arrays:
            said = array.member_set.laws.said
            assert not said, said[0]
            context = array.context
            if offset_bytes < context.member_set.data_offset or not context.changes.active:
                continue
            for role, queue in by_role(array.member_set.queues):
                if queue is not None and queue.member.path == disk.path:  # perhaps wrapped
                    self._judge_home(array, role, offset_bytes, data)

    def _judge_home(self, array: Array, role: Role, offset_bytes: int, data: bytes) -> None:
        context = array.context
        first = offset_bytes - context.member_set.data_offset >> context.shift
        end = offset_bytes + len(data) - 1 - context.member_set.data_offset >> context.shift
        layout = context.layout
        if isinstance(layout, BundleLayout):
            end = min(end, layout.counts[role] - 1)  # behind the chunks lies the look-up table
        for chunk in range(first, end + 1):
            found = layout.inverse(role, MemberChunk(chunk))
            if found is None:
                continue
            stripe, cell = found
            assert self._may_change(array, role, stripe, cell, data), (
                f"role {role}: stripe {stripe} changes, and is not noted while a member is away"
            )

    def _may_change(
        self, array: Array, role: Role, stripe: Stripe, cell: CellIndex, data: bytes
    ) -> bool:
        context = array.context
        member_set = array.member_set
        if context.changes.is_noted(stripe):
            return True
        if not context.layout.lost_cells(stripe, member_set.lost_at(stripe)):
            return True  # whoever is away has nothing of it
        if stripe >= member_set.watermarks.get(role, context.layout.stripes):
            return True  # its rebuild has not come there
        return not any(data) and bool(context.unwritten_cells(stripe) >> cell & 1)
