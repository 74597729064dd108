"""The parity of stripes of which parts of the data are new: planned, read, computed.

Used where the parity of logged data follows: by the checkpoint, before a request that needs the
chains of such a stripe (unsettled.py), and by recovery (parity_replay.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import (
    Band,
    BandPlan,
    cells_of,
    unwritten_cells,
    write_plans,
)
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.member_io import MemberIO, MemberLostError, MemberRead
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.written_map import WrittenMap
from raidx_fuse.store.xor import sources, xor_into

Part = tuple[CellIndex, int, int]  # data cell, first byte, end byte: a range of new content
Choose = Callable[[BandPlan | None, BandPlan | None, Stripe], BandPlan]
Content = Callable[
    [Stripe, CellIndex, int, int], Any
]  # (stripe, cell, first byte, size) -> new bytes
Read = Callable[[Sequence[MemberRead]], Awaitable[None]]


def bands_of(parts: Sequence[Part]) -> list[Band]:
    """Return the bands of *parts*, which may overlap.

    >>> bands_of([(0, 0, 8), (2, 4, 12), (0, 6, 8)])
    [(0, 4, 1), (4, 6, 5), (6, 8, 5), (8, 12, 4)]
    """
    if len(parts) == 1:
        ((cell, low, high),) = parts
        return [(low, high, 1 << cell)]
    cuts = sorted({edge for _, low, high in parts for edge in (low, high)})
    found = []
    for low, high in pairwise(cuts):
        mask = 0
        for cell, start, end in parts:
            if start <= low and high <= end:
                mask |= 1 << cell
        if mask:
            found.append((low, high, mask))
    return found


def reconstruct(rmw: BandPlan | None, rcw: BandPlan | None, _stripe: Stripe) -> BandPlan:
    """Choose reconstruct-write if it is possible: it does not need the parity as it was."""
    plan = rcw or rmw
    assert plan is not None, "write_plans gives at least one plan"
    return plan


class StripeParity:
    """Computes parities of the array of *member_set*."""

    def __init__(self, member_set: MemberSet, written: WrittenMap) -> None:
        self.member_set = member_set
        self.written = written

    def place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, int]:
        """Return (role, byte offset on the member) of the first byte of a cell."""
        layout = self.member_set.layout
        role, chunk = layout.place(stripe, cell)
        return role, self.member_set.data_offset + chunk * layout.chunk_bytes

    async def compute(
        self,
        stripes: Iterable[tuple[Stripe, Sequence[Part]]],
        content: Content,
        read: Read,
        choose: Choose,
    ) -> dict[Stripe, list[MemberIO]]:
        """Return the writes of the parities of each stripe after its parts got new *content*.

        *read* reads the cells as they are before. Raises MemberError, or UnrecoverableError if the
        code cannot give back what a plan needs.
        """
        member_set = self.member_set
        layout, code = member_set.layout, member_set.layout.code
        place, shift = layout.place, layout.chunk_bytes.bit_length() - 1
        start, empty = member_set.data_offset, np.empty
        wanted = list(stripes)
        while True:
            reads: list[MemberRead] = []
            steps: list[tuple[Stripe, int, int, BandPlan, dict[CellIndex, Bytes], int, bool]] = []
            for stripe, parts in wanted:
                lost = 0
                if member_set.lost:
                    lost = layout.lost_cells(stripe, member_set.lost_at(stripe))
                unwritten = self.written.unwritten_data(layout, stripe)
                if unwritten:
                    unwritten = unwritten_cells(code, unwritten)
                for low, high, touched in bands_of(parts):
                    try:
                        plans = write_plans(code, touched, lost, unwritten & ~touched)
                    except Unrecoverable as error:
                        raise UnrecoverableError(
                            f"the parity of stripe {stripe}, which the journal lacks, cannot be "
                            "computed: too many members are lost",
                            action="attach the missing members",
                        ) from error
                    plan = choose(*plans, stripe)
                    if not plan.outputs:
                        continue
                    size = high - low
                    old: dict[CellIndex, Bytes] = {}
                    for cell in plan.reads:
                        buffer = old[cell] = empty(size, np.uint8)
                        role, chunk = place(stripe, cell)
                        reads.append((role, start + (chunk << shift) + low, [buffer.data], size))
                    steps.append((stripe, low, size, plan, old, touched, bool(lost)))
            try:
                # Not joined: the buffers are patched one by one. In order of their places.
                reads.sort(key=_by_place)
                await read(reads)
            except MemberLostError:
                continue  # plan again without that member
            writes: dict[Stripe, list[MemberIO]] = {stripe: [] for stripe, _ in wanted}
            for stripe, low, size, plan, old, touched, degraded in steps:
                new = {
                    cell: np.frombuffer(content(stripe, cell, low, size), np.uint8)
                    for cell in cells_of(touched)
                }
                changes = plan.kind == "rmw" and not degraded
                if changes:  # the change of each cell goes into each of its parities
                    for cell, data in new.items():
                        change = old[cell]
                        np.bitwise_xor(change, data, change)
                for output in plan.outputs:
                    if changes:
                        out = old[output.cell]
                        for cell in output.new:
                            np.bitwise_xor(out, old[cell], out)
                    else:
                        out = empty(size, np.uint8)
                        xor_into(out, sources(output, old, new))
                    role, chunk = place(stripe, output.cell)
                    offset = start + (chunk << shift) + low
                    writes[stripe].append((role, offset, [out.data], size))
            return writes


def _by_place(request: MemberRead) -> tuple[int, int]:
    return request[:2]
