"""The fewest moves that make room for bundles, against all that could be done, and the bounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from raidx_fuse.layouts.placements.bundled import BundleLayout, make_bundles
from raidx_fuse.layouts.planning.allocate import allocate, maximum
from raidx_fuse.layouts.planning.rebundle import Moves, plan_moves

NAMES = {1: "raidx-zero", 2: "raidx-copy"}


def drawn(rng: random.Random, width: int, length: int, most: int) -> tuple[BundleLayout, Any]:
    """Return a layout over members of random sizes, and which of its cells hold data."""
    while True:
        counts = [rng.randint(2, most) for _ in range(width)]
        if sum(count > 1 for count in counts) >= length:
            break
    layout = make_bundles(NAMES.get(length, "raidx-parity"), counts, 4096, length)
    live = np.zeros((layout.stripes, length), np.bool_)
    for bundle in range(layout.stripes):
        if rng.random() < 0.6:
            live[bundle] = [rng.random() < 0.7 for _ in range(length)]
    return layout, live


def after(disk: NDArray[np.uint8], moves: Moves) -> NDArray[np.uint8]:
    """Return the table with *moves* made; never two chunks of a bundle on one member."""
    table = disk.copy().reshape(-1)
    table[moves.cells] = moves.targets
    bundles: Any = table.reshape(disk.shape).tolist()
    assert all(len(set(bundle)) == disk.shape[1] for bundle in bundles)
    return np.array(bundles, np.uint8)


def fits(table: NDArray[np.uint8], caps: Sequence[int], more: int) -> bool:
    """Return whether *table* respects *caps* and leaves room for *more* bundles."""
    free = np.asarray(caps) - np.bincount(table.reshape(-1), minlength=len(caps))
    return bool((free >= 0).all()) and int(np.minimum(free, more).sum()) >= more * table.shape[1]


def cheapest(disk: NDArray[np.uint8], live: Any, caps: Sequence[int], more: int) -> int | None:
    """Return the fewest written chunks that must move, by trying every table there is."""
    length = disk.shape[1]
    sets: list[set[int]] = [
        set(chosen) for chosen in itertools.combinations(range(len(caps)), length)
    ]
    best = None
    for choice in itertools.product(sets, repeat=len(disk)):
        cost = sum(
            bool(live[bundle, column]) and int(disk[bundle, column]) not in chosen
            for bundle, chosen in enumerate(choice)
            for column in range(length)
        )
        if best is not None and cost >= best:
            continue
        if fits(np.array([sorted(chosen) for chosen in choice], np.uint8), caps, more):
            best = cost
    return best


@pytest.mark.parametrize("seed", [*range(12), 95])  # 95: there is no table
def test_no_table_needs_fewer_moves(seed: int) -> None:
    rng = random.Random(seed)
    length = rng.choice((2, 2, 3))
    layout, live = drawn(rng, 3, length, 4)
    disk = layout.disk.reshape(-1, length)[:5]
    live = live[: len(disk)]
    caps = [*(max(n, int((disk == r).sum())) for r, n in enumerate(layout.counts)), 0]
    caps[-1] = rng.randint(1, 6)
    if rng.random() < 0.3:  # a member leaves, too
        caps[0] = 0
    leaving = [0] if not caps[0] else []
    more = 0 if leaving else maximum(caps, length) - len(disk)
    moves = plan_moves(disk, live, caps, more=more, leaving=leaving)
    best = cheapest(disk, live, caps, more)
    if best is None:
        assert moves.stuck or moves.lacking
        return
    assert not moves.stuck
    assert not moves.lacking
    assert moves.written == best
    assert fits(after(disk, moves), caps, more)


@pytest.mark.parametrize("seed", range(60))
def test_the_maximum_is_reached_with_a_move_for_each_chunk_that_lacks(seed: int) -> None:
    rng = random.Random(seed)
    width = rng.randint(3, 8)
    length = rng.randint(1, 4) if width > 3 else rng.randint(1, 3)
    layout, live = drawn(rng, width, length, 60)
    disk = layout.disk.reshape(-1, length)
    caps = [count - 1 for count in layout.counts]
    caps += [rng.randint(1, 90) for _ in range(rng.randint(1, 10 - width))]
    more = maximum(caps, length) - layout.stripes
    moves = plan_moves(disk, live, caps, more=more)
    assert not moves.lacking
    table = after(disk, moves)
    used = np.bincount(table.reshape(-1), minlength=len(caps))
    free = [cap - int(n) for cap, n in zip(caps, used, strict=True)]
    assert min(free) >= 0
    assert len(allocate(free, length)) >= more
    before = np.bincount(disk.reshape(-1), minlength=len(caps))
    lacks = more * length - sum(
        min(more, cap - int(n)) for cap, n in zip(caps, before, strict=True)
    )
    assert len(moves) == max(0, lacks), "a chunk more than a move frees for each one that lacks"
    assert moves.written == int(live.reshape(-1)[moves.cells].sum())


def test_written_chunks_leave_a_member_before_others() -> None:
    layout = make_bundles("raidx-copy", [25, 30, 30, 30], 4096, 2)
    disk = layout.disk.reshape(-1, 2)
    live = np.zeros(disk.shape, np.bool_)
    live[::3] = True
    used = np.bincount(disk.reshape(-1), minlength=4)
    written = int(live[disk == 0].sum())
    caps = [0, *(int(n) for n in used[1:])]
    caps[1] += written // 2
    moves = plan_moves(disk, live, caps, leaving=[0])
    assert written > 4
    assert moves.written == len(moves) == written // 2
    assert moves.stuck == used[0] - written // 2
    table = after(disk, moves)
    assert np.bincount(table.reshape(-1), minlength=4)[1] == caps[1]
    assert int(live[table == 0].sum()) == written - written // 2


def test_half_a_million_bundles_are_planned_in_seconds() -> None:
    layout = make_bundles("raidx-parity", [600_000, 500_000, 400_000, 90_000], 65536, 3)
    disk = layout.disk.reshape(-1, 3)
    caps = [*(n - 1 for n in layout.counts), 450_000]
    more = maximum(caps, 3) - layout.stripes
    moves = plan_moves(disk, np.ones(disk.shape, np.bool_), caps, more=more)
    assert more > 0
    assert not moves.lacking
    assert fits(after(disk, moves), caps, more)
