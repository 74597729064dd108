"""The history of a pool: bounded, saved and read again, and the hotspots in it."""

from __future__ import annotations

import json

import pytest

from raidx_fuse.errors import FormatError
from raidx_fuse.pool.balance.utilisation import VolumeLoad
from raidx_fuse.pool.monitor import (
    History,
    HotspotRule,
    Monitor,
    Observation,
    VolumeCounters,
    violated_share,
)


def is_hotspot(history: History, rule: HotspotRule) -> bool:
    return Monitor(arrays={"a": history}).is_hotspot("a", rule)


def observed(*utilisations: float, latency_s: float = 0.0) -> History:
    history = History(4)
    for number, utilisation in enumerate(utilisations):
        history.add(Observation(10.0 * number, utilisation, 0.0, latency_s))
    return history


def test_more_than_the_share_of_the_window_must_be_above_tau() -> None:
    rule = HotspotRule(tau=0.8, share=0.75, window=4)
    assert violated_share(observed(0.9, 0.9, 0.9, 0.1), rule) == 0.75
    assert not is_hotspot(observed(0.9, 0.9, 0.9, 0.1), rule)  # 75 % is not more than 75 %
    assert is_hotspot(observed(0.9, 0.9, 0.9, 0.9), rule)
    assert not is_hotspot(observed(0.8, 0.8, 0.8, 0.8), rule)  # at the threshold: Eq. 2 holds


def test_only_the_newest_window_counts_and_it_must_be_full() -> None:
    rule = HotspotRule(window=3)
    assert not is_hotspot(observed(0.9, 0.9), rule)
    assert not is_hotspot(observed(0.9, 0.9, 0.9, 0.1, 0.1, 0.1), rule)
    assert is_hotspot(observed(0.1, 0.1, 0.1, 0.9, 0.9, 0.9), rule)


def test_latency_counts_where_it_is_limited() -> None:
    slow = observed(0.1, 0.1, latency_s=0.05)
    assert not is_hotspot(slow, HotspotRule(window=2))
    assert is_hotspot(slow, HotspotRule(window=2, latency_s=0.03))


def test_a_history_is_bounded_and_keeps_the_newest() -> None:
    history = History(1, 3)
    for number in range(10):
        history.add([float(number)])
    assert len(history) == 3
    assert history.newest(5).ravel().tolist() == [7.0, 8.0, 9.0]
    assert history.newest(2).ravel().tolist() == [8.0, 9.0]


def test_loads_are_differences_of_counters() -> None:
    monitor = Monitor()
    assert monitor.note_volumes(100.0, {"v": VolumeCounters(5, 5, 500, 500)}) == {}
    loads = monitor.note_volumes(110.0, {"v": VolumeCounters(25, 5, 20980, 500)})
    assert loads == {"v": VolumeLoad(2.0, 0.0, 1024.0, 0.0)}
    loads = monitor.note_volumes(120.0, {"v": VolumeCounters(25, 15, 20980, 41460)})
    assert loads == {"v": VolumeLoad(0.0, 1.0, 0.0, 4096.0)}
    mean = monitor.mean_load("v", 10)
    assert mean == VolumeLoad(1.0, 0.5, 1024.0, 4096.0)  # sizes are means of requests
    assert monitor.mean_load("unknown", 10) == VolumeLoad()
    monitor.note_volumes(210.0, {})
    assert not monitor.volumes


def test_a_monitor_is_saved_and_read_again() -> None:
    monitor = Monitor(length=5)
    for number in range(9):
        monitor.note_array("a", Observation(float(number), 0.9, 0.5, 0.001))
        monitor.note_volumes(10.0 * number, {"v": VolumeCounters(number * 7, 0, number * 700, 0)})
    again = Monitor.from_bytes(monitor.to_bytes())
    assert again.to_bytes() == monitor.to_bytes()
    assert again.arrays["a"].newest(9)[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert again.mean_load("v", 5) == monitor.mean_load("v", 5)
    assert again.is_hotspot("a", HotspotRule(window=5))
    assert not again.is_hotspot("b", HotspotRule())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"length": 0},
        {"length": 1 << 40},
        {"arrays": {"a": [[1, 2, 3]]}},
        {"arrays": {"a": [[1, 2, 3, float("nan")]]}},
        {"volumes": 7},
        {"times": {"a": [1, 2]}},
        {"arrays": {"a": []}},
    ],
)
def test_what_is_no_history_is_refused(change: dict[str, object]) -> None:
    document = {
        "version": 2,
        "fresh": {},
        "length": 5,
        "arrays": {},
        "volumes": {},
        "times": {},
    } | change
    with pytest.raises(FormatError, match="history"):
        Monitor.from_bytes(json.dumps(document).encode())


def test_other_bytes_are_refused() -> None:
    for data in (b"", b"[]", b"\xff\xfe", b"{"):
        with pytest.raises(FormatError):
            Monitor.from_bytes(data)
