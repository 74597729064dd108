"""The capacity of a raidx array: chunks by role, and the moves that make space for more bundles."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import RaidxError, Reason, TooSmallError, UsageError
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.format.table_page import chunks_on
from raidx_fuse.layouts.numbers import Role, role_range
from raidx_fuse.layouts.placements.bundled import CELLS_MAX, SPARE_CHUNKS, BundleLayout
from raidx_fuse.layouts.planning.allocate import maximum
from raidx_fuse.layouts.planning.rebundle import Moves, plan_moves
from raidx_fuse.layouts.registry import WIDTH_MAX
from raidx_fuse.members.threads import in_thread


class Capacity:
    """The capacity of the members of *context* and how it could be used. Nothing is changed."""

    def __init__(self, context: ArrayContext, layout: BundleLayout) -> None:
        self.context = context
        self.member_set = context.member_set
        self.layout = layout

    def _written_cells(self) -> Callable[[], NDArray[np.bool_]]:
        """Return a function that gives the bit map, (bundles, L), of the cells written now."""
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

    def caps(self, counts: Sequence[int], leaving: Collection[Role], spare: int) -> list[int]:
        """Return the maximum number of chunks on each role; *spare* chunks stay free for moves.

        A role that exceeds its maximum keeps its chunks. Leaving roles hold nothing, and lost roles
        receive nothing more.
        """
        used = [*self.layout.used_chunks(), *[0] * (len(counts) - self.layout.width)]
        caps = []
        for role, count in enumerate(counts):
            cap = used[role] if role in self.member_set.lost else max(0, count - spare)
            caps.append(0 if role in leaving else cap)
        return caps

    def more(self, caps: Sequence[int]) -> int:
        """Return how many more bundles fit, within the image limit and the metadata."""
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
        self, counts: Sequence[int], leaving: Collection[Role] = (), *, spare: int = SPARE_CHUNKS
    ) -> tuple[Moves, int]:
        """Return (moves that allow the most new bundles, number of those bundles).

        With *leaving*, the moves empty these roles instead. Chunks of lost members are placed
        first.
        """
        return self._planning(counts, leaving, spare)()

    async def plan_aside(
        self, counts: Sequence[int], leaving: Collection[Role] = (), *, spare: int = SPARE_CHUNKS
    ) -> tuple[Moves, int]:
        """Return what `plan` returns for the current table, computed in a thread.

        For commands: planning 58 million chunks takes 12 s, during which users' requests continue.
        """
        planning = self._planning(counts, leaving, spare)
        return await in_thread("planning the moves", planning, limit_s=math.inf)

    async def plan_removal(self, role: Role) -> Moves:
        """Return the moves that empty *role*. Raises RaidxError if that is impossible."""
        lost = self.member_set.lost
        if lost - {role}:
            raise RaidxError(
                f"role {min(lost - {role})} is lost: no other member can be removed",
                action="replace it, or remove it first",
                reason=Reason.DEGRADED,
            )
        spare = 0 if role in lost else SPARE_CHUNKS
        moves, _more = await self.plan_aside(self.layout.counts, [role], spare=spare)
        if moves.stuck:
            caps = self.caps(self.layout.counts, [role], spare)
            used = self.layout.used_chunks()
            free = sum(
                max(0, cap - n)
                for r, (cap, n) in enumerate(zip(caps, used, strict=True))
                if r != role
            )
            raise RaidxError(
                f"role {role} holds {used[role]} chunks, and the other members have {free} free: "
                f"{moves.stuck} of them would find no member without a chunk of their bundle",
                action="add a disk first, or put another one in its place with replace-disk",
                reason=Reason.ARRAY_FULL,
            )
        return moves

    def _planning(
        self, counts: Sequence[int], leaving: Collection[Role], spare: int
    ) -> Callable[[], tuple[Moves, int]]:
        """Return the work of `plan` as a function that uses only copies of mutable state."""
        growing = not leaving
        leaving = leaving or sorted(self.member_set.lost)
        caps = self.caps(counts, leaving, spare)
        more = self.more(caps) if growing else 0
        layout = self.layout
        disk = layout.disk[: layout.cells].reshape(-1, layout.length).copy()
        live = self._written_cells()

        def work() -> tuple[Moves, int]:
            return plan_moves(disk, live(), caps, more=more, leaving=leaving), more

        return work

    def counts_with(self, sizes: Sequence[int]) -> tuple[list[int], list[Role]]:
        """Return (chunks by role with new members of *sizes* bytes, roles of those members).

        Raises UsageError.
        """
        config = self.member_set.config
        counts = list(self.layout.counts)
        roles = sorted(config.vacant_roles())[: len(sizes)]
        roles += role_range(len(counts), len(counts) + len(sizes) - len(roles))
        counts += [0] * (max(roles) + 1 - len(counts))
        if len(counts) > WIDTH_MAX:
            raise UsageError(f"an array has at most {WIDTH_MAX} members", reason=Reason.LIMIT)
        for role, size in zip(roles, sizes, strict=True):
            counts[role] = chunks_on(config, size)
            if counts[role] <= SPARE_CHUNKS:
                least = self.member_set.data_offset + (SPARE_CHUNKS + 1) * config.chunk_bytes
                raise TooSmallError(
                    f"a member of {size} bytes is too small: with metadata and "
                    f"{SPARE_CHUNKS + 1} chunks it needs more than {least}",
                    action="use a larger one",
                )
        return counts, roles

    def size_with(self, more: int) -> int:
        """Return the size of the image in bytes with *more* bundles."""
        layout, limit = self.layout, self.member_set.config.size_bytes
        whole = (layout.stripes + more) * layout.code.data_count * layout.chunk_bytes
        return whole if limit is None else min(limit, whole)
