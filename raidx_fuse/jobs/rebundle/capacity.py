"""What fits on the members of a raidx array: chunks by role, and moves that make room for more."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import UsageError
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.format.table_page import chunks_that_fit
from raidx_fuse.layouts.placements.bundled import CELLS_MAX, SPARE_CHUNKS, BundleLayout
from raidx_fuse.layouts.planning.allocate import maximum
from raidx_fuse.layouts.planning.rebundle import Moves, plan_moves
from raidx_fuse.layouts.registry import WIDTH_MAX
from raidx_fuse.members.threads import in_thread


class Capacity:
    """The room on the members of *context*, and how it could be used; nothing is changed."""

    def __init__(self, context: ArrayContext, layout: BundleLayout) -> None:
        self.context = context
        self.member_set = context.member_set
        self.layout = layout

    def _living(self) -> Callable[[], NDArray[np.bool_]]:
        """Return what says of each cell, (bundles, L), whether it holds anything now."""
        layout = self.layout
        chunks, stripes, length = layout.chunks, layout.stripes, layout.length
        data = layout.code.data_count
        packed = np.frombuffer(bytes(self.context.written.bits), dtype=np.uint8)

        def live() -> NDArray[np.bool_]:
            bits = np.unpackbits(packed, count=chunks, bitorder="little")
            written: NDArray[np.bool_] = bits.astype(np.bool_).reshape(stripes, data)
            parities = np.repeat(written.any(axis=1, keepdims=True), length - data, axis=1)
            return np.hstack([written, parities])

        return live

    def caps(self, counts: Sequence[int], leaving: Collection[int], spare: int) -> list[int]:
        """Return how many chunks each role may hold: all but the *spare* ones for moves.

        What is more on it already may stay. Leaving roles hold nothing, lost ones nothing more.
        """
        used = [*self.layout.used_chunks(), *[0] * (len(counts) - self.layout.width)]
        caps = []
        for role, count in enumerate(counts):
            cap = used[role] if role in self.member_set.lost else max(0, count - spare)
            caps.append(0 if role in leaving else cap)
        return caps

    def more(self, caps: Sequence[int]) -> int:
        """Return how many more bundles there can be, within image limit and metadata."""
        layout, limit = self.layout, self.member_set.config.size_bytes
        data = layout.code.data_count
        most = maximum(caps, layout.length)
        if limit is not None:
            most = min(most, -(-limit // (data * layout.chunk_bytes)))
        bits = self.member_set.config.regions.pages("written").pages * PAYLOAD_BITS
        most = min(most, bits // data)
        while not self.context.dirty_bitmap.has_room_for(most):
            most -= self.context.dirty_bitmap.per_region
        most = min(most, max(layout.stripes, CELLS_MAX // layout.length))
        return max(0, most - layout.stripes)

    def plan(
        self, counts: Sequence[int], leaving: Collection[int] = (), *, spare: int = SPARE_CHUNKS
    ) -> tuple[Moves, int]:
        """Return the moves that make room for as many bundles as can be, and how many that are;
        with *leaving*, those that empty these roles instead.

        What lost members hold finds other places first.
        """
        return self._planning(counts, leaving, spare)()

    async def plan_aside(
        self, counts: Sequence[int], leaving: Collection[int] = (), *, spare: int = SPARE_CHUNKS
    ) -> tuple[Moves, int]:
        """Return what `plan` returns for the table of this moment, planned in a thread.

        For commands: 12 s on 58 million chunks, and users' requests go on meanwhile.
        """
        planning = self._planning(counts, leaving, spare)
        return await in_thread("planning the moves", planning, limit_s=math.inf)

    def _planning(
        self, counts: Sequence[int], leaving: Collection[int], spare: int
    ) -> Callable[[], tuple[Moves, int]]:
        """Return the work of `plan`, which touches nothing that changes meanwhile."""
        growing = not leaving
        leaving = leaving or sorted(self.member_set.lost)
        caps = self.caps(counts, leaving, spare)
        more = self.more(caps) if growing else 0
        layout = self.layout
        disk = layout.disk[: layout.cells].reshape(-1, layout.length).copy()
        live = self._living()

        def work() -> tuple[Moves, int]:
            return plan_moves(disk, live(), caps, more=more, leaving=leaving), more

        return work

    def counts_with(self, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the chunks by role with newcomers of *sizes* bytes, and the newcomers' roles.

        Raises UsageError.
        """
        config = self.member_set.config
        counts = list(self.layout.counts)
        roles = sorted(config.vacant_roles())[: len(sizes)]
        roles += range(len(counts), len(counts) + len(sizes) - len(roles))
        counts += [0] * (max(roles) + 1 - len(counts))
        if len(counts) > WIDTH_MAX:
            raise UsageError(f"an array has at most {WIDTH_MAX} members")
        for role, size in zip(roles, sizes, strict=True):
            counts[role] = chunks_that_fit(size, self.member_set.data_offset, config.chunk_bytes)
            if counts[role] <= SPARE_CHUNKS:
                least = self.member_set.data_offset + (SPARE_CHUNKS + 1) * config.chunk_bytes
                raise UsageError(
                    f"a member of {size} bytes is too small: with metadata and "
                    f"{SPARE_CHUNKS + 1} chunks it needs more than {least}",
                    action="use a larger one",
                )
        return counts, roles

    def size_with(self, more: int) -> int:
        """Return the image's size with *more* bundles."""
        layout, limit = self.layout, self.member_set.config.size_bytes
        whole = (layout.stripes + more) * layout.code.data_count * layout.chunk_bytes
        return whole if limit is None else min(limit, whole)
