"""The load of each member from a pattern of chunk writes or a recovery, as in the upc paper.

Each chunk write is counted by itself (section 2.2 of the paper): the chunk and every parity that
changes with it are read once and written once. Nothing is merged or cached, so that the counts show
the cost of the code, without the savings of an engine.

A pattern is a list of logical chunks, written as items with commas between them:

    7                  one write to chunk 7
    0-3                one write to each of the chunks 0, 1, 2, 3
    all                one write to each chunk of the first stripe (uniform single writes)
    row:R              one write to each data chunk of row R of the first stripe
    random:N[:SEED]    N writes to random chunks of the first *width* stripes, SEED 0 unless given
    x after an item    repeats it: 0-3x10
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.layout_info import WIDTH_MAX
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Stripe, cell_range, chunk_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import write_plans

_ITEM = re.compile(
    r"(?:(?P<first>\d+)(?:-(?P<last>\d+))?|(?P<all>all)|row:(?P<row>\d+)"
    r"|random:(?P<count>\d+)(?::(?P<seed>\d+))?)(?:x(?P<times>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Load:
    """Operations on each member: *reads* and *writes*, by role."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def total(self) -> tuple[int, ...]:
        return tuple(r + w for r, w in zip(self.reads, self.writes, strict=True))

    @property
    def imbalance(self) -> float:
        """The operations of the busiest member over the mean; 1.0 is even, 0.0 is no operation."""
        total = self.total
        return max(total) * len(total) / sum(total) if sum(total) else 0.0


def parse_writes(spec: str, layout: Layout) -> list[Chunk]:
    """Return the logical chunks that the pattern *spec* writes, in order.

    The module docstring lists the items. Raises LayoutError for an invalid item and for a chunk
    beyond the end of the layout.
    """
    code = layout.code
    chunks: list[Chunk] = []
    for text in spec.split(","):
        item = _ITEM.fullmatch(text.strip())
        if item is None:
            raise LayoutError(
                f"{text.strip()!r} is no pattern of writes; use 7, 0-3, all, row:1 or random:100:1"
            )
        if item["first"]:
            first = int(item["first"])
            found = list(chunk_range(first, int(item["last"] or first) + 1))
        elif item["all"]:
            found = [layout.logical(Stripe(0), c) for c in cell_range(0, code.data_count)]
        elif item["row"]:
            row = int(item["row"])
            cells = cell_range(0, code.data_count)
            found = [layout.logical(Stripe(0), c) for c in cells if code.row_of[c] == row]
        else:
            end = min(layout.chunks, max(layout.phases(), layout.width) * code.data_count)
            rng = np.random.default_rng(int(item["seed"] or 0))
            found = rng.integers(0, end, int(item["count"])).tolist()
        if not found:
            raise LayoutError(f"{text.strip()!r} names no data chunk of {layout.name}")
        if max(found) >= layout.chunks:
            raise LayoutError(f"chunk {max(found)} is beyond the end ({layout.chunks} chunks)")
        chunks += found * int(item["times"] or 1)
    return chunks


def write_load(layout: Layout, chunks: Iterable[Chunk]) -> Load:
    """Return the operations of single writes to *chunks*: each changed cell is read and written."""
    operations = [0] * layout.width
    for chunk in chunks:
        stripe, cell = layout.locate(chunk)
        for changed in (cell, *map(CellIndex, layout.code.affects[cell])):
            operations[layout.place(stripe, changed)[0]] += 1
    return Load(tuple(operations), tuple(operations))


def small_write_operations(code: Code) -> float:
    """Return how many reads and writes a write within one chunk costs, in the mean of all chunks.

    Read-modify-write or reconstruct-write, whichever reads less.

    >>> from raidx_fuse.layouts.codes.horizontal import single_parity
    >>> [small_write_operations(single_parity(width)) for width in (3, 4)]
    [3.0, 4.0]
    """
    total = 0
    for cell in range(code.data_count):
        found = (plan for plan in write_plans(code, 1 << cell, 0, 0) if plan is not None)
        plan = min(found, key=lambda plan: plan.pre_reads)
        total += plan.pre_reads + len(plan.writes) + len(plan.outputs)
    return total / code.data_count


def reading_members(layout: Layout) -> int:
    """Return how many members have data, or a copy of it, and serve a long read at once."""
    code, apart = layout.code, max(1, layout.stripes // WIDTH_MAX)
    stripes = {*range(min(layout.phases(), layout.stripes)), *range(0, layout.stripes, apart)}
    is_copied = code.data_count == 1
    cells = cell_range(0, code.data_count + code.parity_count * is_copied)
    return len({layout.place(Stripe(stripe), cell)[0] for stripe in stripes for cell in cells})


def conventional_reads(code: Code, column: int) -> int:
    """Return the number of distinct reads when every cell of *column* uses its first chain.

    The paper's conventional recovery (section 2.3.1), without a choice among chains.
    """
    lost = code.column_masks[column]
    reads = 0
    for cell in code.column_cells[column]:
        chain = next((mask for mask in code.chain_masks if mask >> cell & 1), 0)
        reads |= chain
    return (reads & ~lost).bit_count()
