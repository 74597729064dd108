"""The RAIDX paper's Figs. 8 and 9 at small size: the author's tool, and what a link leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import pytest

SPAN = 448 << 20


@pytest.fixture
def runs(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("raidx_runs")


def test_the_tools_places_ascend_from_the_beginning_to_the_end(runs: ModuleType) -> None:
    load = runs.Load("diskSpotcheck", SPAN, 200)
    for number in range(runs.TOOL_PASSES):
        places = runs.tool_places(load, number)
        assert len(places) == 200
        assert places[0] == 0
        assert SPAN - runs.TOOL_BYTES - runs.PAGE < places[-1] <= SPAN - runs.TOOL_BYTES
        steps = [b - a for a, b in pairwise(places)]
        assert min(steps) >= runs.TOOL_BYTES - runs.PAGE
        assert sum(place > SPAN * 0.75 for place in places) > 60  # denser near the end: not 50
    assert runs.tool_places(load, 0) != runs.tool_places(load, 1)


def test_fig_8_as_in_the_paper_gains_what_the_link_leaves(runs: ModuleType) -> None:
    loads = (runs.Load("diskSpotcheck", SPAN, 40),) * 3
    kinds = (runs.DISK, runs.SSD)
    raid = runs.measure(runs.Run("raid0", kinds, loads, False)).seconds
    linked = runs.measure(runs.Run("raidx-zero", kinds, loads, network=runs.ZEROMQ)).seconds
    free = runs.measure(runs.Run("raidx-zero", kinds, loads)).seconds
    assert 0.8 < raid[0] / linked[0] < 1.2  # the chunks lie on both in turn, as raid0's
    assert 2.0 < raid[2] / linked[2] < 6.0  # the paper: over 2.5
    assert free[0] / free[2] > 2 * linked[0] / linked[2]


def test_fig_9_takes_a_connection_to_each_device(runs: ModuleType) -> None:
    """One link for all leaves no tuning what the paper gained; connections, far more."""
    loads = (runs.Load("diskSpotcheck", SPAN, 40),) * 2
    link_s = 2 * runs.TOOL_PASSES * 40 * runs.TOOL_BYTES / 60e6
    linked = runs.Run("raidx-zero", runs.SEVEN_OLD, loads, network=runs.ZEROMQ)
    first_s, second_s = runs.measure(linked).seconds
    assert second_s > link_s
    assert 1.2 < first_s / second_s < first_s / link_s < 7.7
    each = runs.measure(linked._replace(network=runs.IPC, own_links=True)).seconds
    assert 3 < each[0] / each[1] < 15


def test_fig_9_behind_one_link_is_near_its_bound_after_two_idle_times(runs: ModuleType) -> None:
    """2.24: ends of requests for two chunks counted as a stream, and stayed on the disks."""
    loads = (runs.Load("diskSpotcheck", SPAN, 25),) * 3
    linked = runs.Run("raidx-zero", runs.SEVEN, loads, network=runs.ZEROMQ)
    first_s, _second_s, third_s = runs.measure(linked).seconds
    assert first_s / third_s > 3.3


def test_waits_behind_a_link_are_not_taken_for_the_speed_of_a_disk(runs: ModuleType) -> None:
    """1.9: 16 reads that waited for one another made the disk seem 14 times as slow, 179 ms."""
    loads = (runs.Load("spotcheck", SPAN, 375),) * 2
    linked = runs.Run("raidx-zero", (runs.DISK, runs.SSD), loads, network=runs.ZEROMQ)
    first_s, second_s = runs.measure(linked).seconds
    assert first_s / second_s > 20


def test_a_mirror_of_unlike_members_is_read_by_speed_or_as_md_by_queue(runs: ModuleType) -> None:
    loads = (runs.Load("websearch1", 64 << 20, 1500),)
    order = runs.Run("raid1", (runs.SSD, runs.DISK), loads, False)
    ours, as_md = (runs.measure(o).seconds[0] for o in (order, order._replace(shortest=True)))
    assert 1.1 < as_md / ours < 3


def test_what_is_only_written_so_far_is_not_put_where_reading_takes_longer(
    runs: ModuleType,
) -> None:
    """Files that are copied lie in order on each disk: one more run is one more positioning."""
    loads = tuple(runs.Load(kind, SPAN, 16 << 20, clients=4) for kind in ("files", "read files"))
    linked = runs.Run("raidx-zero", runs.DISKS, loads, network=runs.IPC, own_links=True)
    tuned, untuned = (runs.measure(linked._replace(tuned=on)).seconds[1] for on in (True, False))
    assert tuned < 1.05 * untuned


def test_reading_back_from_disks_is_bounded_by_positioning_before_the_link(
    program: Callable[[str], ModuleType],
) -> None:
    disks = program("paper_raidx_disks")
    measure = program("raidx_runs").measure
    linked, _, free, *_ = disks.CASES
    link_s = disks.FILES / (linked.network.mb_s * 1e6)
    orders = {
        (case.words, packed): case.order(False, 0, packed=packed)
        for case in (linked, free)
        for packed in (False, True)
    }
    seconds = {
        key: measure(order._replace(loads=order.loads[3:])).seconds[0]  # the last, of reading
        for key, order in orders.items()
    }
    assert link_s < seconds[linked.words, True] < 1.1 * link_s
    assert 1.43 < seconds[linked.words, False] / seconds[linked.words, True] < 2
    assert 3 < seconds[free.words, False] / seconds[free.words, True] < 7
