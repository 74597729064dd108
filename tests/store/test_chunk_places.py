"""Where chunks of bundles get their places, and places that changed hands."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.format.table_page import chunks_that_fit, share_bytes
from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.placements.bundled import (
    UNASSIGNED,
    BundleLayout,
    bundle_code,
    make_bundles,
)
from raidx_fuse.layouts.planning.allocate import allocate, in_turn, maximum
from raidx_fuse.layouts.registry import make_layout
from raidx_fuse.members.ram import RamMember
from tests.store.test_chunk_table import layout_of, memory_of, shuffled


@given(
    st.lists(st.integers(1, 60), min_size=3, max_size=10),
    st.sampled_from([("raidx-zero", 1), ("raidx-copy", 2), ("raidx-parity", 3)]),
)
def test_the_allocation_is_the_papers_and_reaches_the_bound(
    counts: list[int], kind: tuple[str, int]
) -> None:
    name, length = kind
    most = maximum([count - 1 for count in counts], length)
    if not most:
        return
    layout = make_bundles(name, counts, 4096, length)
    assert layout.stripes == most
    assert layout.problem(range(layout.cells)) is None
    expected = allocate(
        counts, length, spare=1
    ).tolist()  # arrays of bundles of one chunk that are old, too
    assert [set(layout.roles(s)) for s in range(layout.stripes)] == [set(b) for b in expected]
    for stripe in range(layout.stripes):
        for cell in range(length):
            role, chunk = layout.place(stripe, cell)
            assert 0 <= chunk < counts[role] - 1, "one chunk of each member is free for moves"
            assert layout.inverse(role, chunk) == (stripe, cell)
    free = [len(layout.free_chunks(role)) for role in range(len(counts))]
    assert sum(free) + layout.cells == sum(counts)
    assert layout.code is bundle_code(name, length)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.none() | st.integers(0, 40))
def test_bundles_of_one_chunk_are_numbered_in_turn(counts: list[int], limit: int | None) -> None:
    """Section II of the paper: the first chunk of disk 1, the first chunk of disk 2, and so on."""
    table = in_turn(counts, spare=1, limit=limit).reshape(-1).tolist()
    rows = range(max(counts))
    expected = [role for row in rows for role, count in enumerate(counts) if row < count - 1]
    assert table == expected[:limit]


def test_an_old_array_of_bundles_of_one_chunk_keeps_its_greedy_numbering() -> None:
    old = make_layout("raidx-zero", 3, 0, 4096, chunk_counts=[9, 3, 5], length=1)
    new = make_layout("raidx-zero", 3, 0, 4096, chunk_counts=[9, 3, 5], length=1, numbering="turns")
    assert [old.place(Stripe(s), CellIndex(0))[0] for s in range(6)] == [0, 0, 0, 0, 0, 2]
    assert [new.place(Stripe(s), CellIndex(0)) for s in range(5)] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (1, 1),
    ]
    for name, wrong in (("raidx-copy", "turns"), ("raidx-zero", "best")):
        with pytest.raises(LayoutError, match="numbering is 'turns'"):
            make_layout(name, 3, 0, 4096, chunk_counts=[9, 3, 5], numbering=wrong)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 34), st.integers(12, 20))
def test_a_member_is_filled_to_its_last_chunk(size: int, offset: int, shift: int) -> None:
    chunk = 1 << shift
    count = chunks_that_fit(size, offset, chunk)
    assert count == 0 or offset + count * chunk + share_bytes(count) <= size
    more = count + 1
    assert offset + more * chunk + share_bytes(more) > size


def test_sixteen_million_chunks_are_laid_out_in_seconds() -> None:
    layout = make_bundles("raidx-zero", [12 << 20, 3 << 20, 1 << 20], 65536)
    assert layout.cells == (16 << 20) - 3
    assert np.count_nonzero(layout.disk == 0) == (12 << 20) - 1


async def test_a_place_that_changed_hands_on_a_member_that_is_lost() -> None:
    """A chunk moved within the lost member, and another one onto its first place: by the log."""
    rig = await shuffled("raidx-copy", 2)
    array, layout = rig.array, layout_of(rig)
    mover = ChunkMover(array.context, layout)
    first = int(layout.cells_of(0)[2])
    assert layout.place(*divmod(first, 2)) == (0, 2)
    free = int(layout.free_chunks(0)[0])
    assert await mover.move([(first, 0, free)])
    await array.context.journal.place()
    for other in range(layout.cells):
        moves = [(other, 0, 2)]
        if layout.disk[other] != 0 and mover.problem(moves) is None:
            assert await mover.move(moves)
            break
    await array.member_set.flush()  # the record is durable, its places are not written
    survivors = []
    for role in (1, 2, 3):
        copy = RamMember(len(memory_of(rig, role)), name=f"copy{role}")
        copy.memory[:] = memory_of(rig, role)
        survivors.append(copy)
    async with open_array(survivors) as recovered:
        assert recovered.member_set.lost == {0}
        table = recovered.context.layout
        assert isinstance(table, BundleLayout)
        assert table.problem(range(table.cells)) is None
        content = bytes(await recovered.read(0, len(rig.model)))
        assert content == rig.model
    await rig.close()


def test_who_came_later_hides_who_lay_there_at_first() -> None:
    """A cell whose initial member left lies where another one did: found by the crash campaign."""
    counts = (11, 11, 6, 7)
    bundles = 12  # which the others have room for: else the initial member could not have left
    layout = make_bundles("raidx-copy", counts, 4096, 2, bundles)
    layout.forget_initial_member(0)
    layout = make_bundles(
        "raidx-copy", (0, *counts[1:]), 4096, 2, layout.stripes, layout.initial_shape.as_dict()
    )
    (cell,) = np.flatnonzero(layout.disk == UNASSIGNED)[:1].tolist()
    former = int(layout.cells_of(3)[0])
    assert cell < former
    layout.assign(np.array([cell]), 3, np.array([0]))
    assert layout.cells_of(3)[0] == cell
    layout.move([(former, 3, 6)])  # what its own page says of it
    assert layout.cells_of(3)[[0, 6]].tolist() == [cell, former]
