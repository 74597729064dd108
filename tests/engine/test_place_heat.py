"""The heat of layouts whose chunks cannot move: what is counted, how it fades, how much it is."""

from __future__ import annotations

import numpy as np
import pytest

from raidx_fuse.engine.access_stats import BLOCK, FADING_S, NOTED_MAX, REGIONS_MAX, PlaceHeat
from raidx_fuse.engine.chunk_map import heat_of
from tests.support.arrays import Rig
from tests.support.load import opened

CHUNK = 4096


class Clock:
    """A clock that stands still until it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("layout", "width"),
    [
        *(("raid0", 2), ("raid1", 2), ("raid4", 3), ("raid5", 4), ("rdp", 6), ("evenodd", 5)),
        *(("xcode", 5), ("pcode", 6), ("upc", 6)),
        *(("raidx-zero", 3), ("raidx-copy", 3), ("raidx-parity", 5)),
    ],
)
async def test_every_layout_knows_where_its_load_goes(layout: str, width: int) -> None:
    rig = await opened(Rig(layout, width))
    array = rig.array
    for chunk in range(40):
        await array.write(chunk * CHUNK, bytes(CHUNK))
    for _ in range(300):
        await array.read(7 * CHUNK + 100, 100)
    heat = heat_of(array.context)
    assert (heat.region_chunks, int(np.argmax(heat.total))) == (1, 7)
    assert heat.reads[7] / heat.total.sum() > 0.6


def test_reads_writes_and_runs_are_told_apart_and_fade() -> None:
    clock = Clock()
    heat = PlaceHeat(100, [], clock)
    heat.note(10, 19, is_write=False)
    for _ in range(5):
        heat.note(50, 50, is_write=True)
    clock.now_s = 10.0
    seen = heat.look()
    assert (seen.reads[10:20].sum() * 10, seen.writes[50] * 10) == pytest.approx((10, 5), rel=0.01)
    assert seen.in_order.sum() * 10 == pytest.approx(9, rel=0.01)
    assert seen.write_share == pytest.approx(1 / 3)
    clock.now_s += 10 * FADING_S
    heat.note(1, 1, is_write=False)
    assert int(np.argmax(heat.look().total)) == 1


def test_memory_and_list_stay_small_whatever_the_image() -> None:
    heat = PlaceHeat(1 << 40, [], Clock())
    assert heat.look().region_chunks << 14 == 1 << 40
    for number in range(2 * NOTED_MAX):
        heat.note(number << 25, number << 25, is_write=False)
    heat.note(0, 3 * NOTED_MAX, is_write=True)
    assert len(heat.noted) < NOTED_MAX
    assert len(heat.look().total) <= REGIONS_MAX


def test_a_grown_image_is_counted_in_wider_regions_without_a_loss() -> None:
    heat = PlaceHeat(REGIONS_MAX - 1, [], Clock())
    for chunk in (3, REGIONS_MAX - 2, REGIONS_MAX, 5 * REGIONS_MAX):
        heat.note(chunk, chunk, is_write=False)
    seen = heat.look()
    assert seen.region_chunks == 8
    assert np.flatnonzero(seen.total).tolist() == [
        chunk // 8 for chunk in (3, REGIONS_MAX - 2, REGIONS_MAX, 5 * REGIONS_MAX)
    ]


def test_the_halves_have_every_other_block() -> None:
    heat = PlaceHeat(100, [], Clock())
    for number in range(10 * BLOCK):
        chunk = number // BLOCK
        heat.note(chunk, chunk, is_write=False)
        if number == 3 * BLOCK + 5:
            heat.digest()
    first, second = (np.flatnonzero(half.total).tolist() for half in heat.halves())
    assert (first, second) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    whole = heat.look()
    assert whole.total.sum() == pytest.approx(sum(h.total.sum() for h in heat.halves()) / 2)
