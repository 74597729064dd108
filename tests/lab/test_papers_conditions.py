"""Keys of experiments for the conditions of the papers: traces, controllers, locks, warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.errors import MemberError, UsageError
from raidx_fuse.lab.experiments.modelled import PAGE_BYTES, RANGE_BYTES, ControllerCache
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.experiments.spec import parse_experiment
from raidx_fuse.lab.loads.request import block_of, requests_of
from raidx_fuse.lab.loads.workloads import Source
from raidx_fuse.members.simulated.virtual_time import run, sleep

ONE = "ssd,read_access_ms=1,write_access_ms=2,read_mb_s=0,write_mb_s=0,channels=1,flush_ms=0"
SIZE = 64 << 20
SPC = "0,8,512,w,0.0\n2,8,512,w,0.0\n2,16,4096,r,0.5\n0,100,512,r,1.0\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """The path of a small SPC trace with two ASUs."""
    path = tmp_path / "small.spc"
    path.write_text(SPC)
    return str(path)


def offsets(source: Source) -> list[int]:
    """Return the addresses of *source*, in sectors."""
    return [request.offset_bytes // 512 for request in requests_of(source.load(SIZE))]


def test_asus_are_joined_overlaid_or_one_of_them(trace: str) -> None:
    assert offsets(Source(name=trace)) == [8, 2048 + 8, 2048 + 16, 100]
    assert offsets(Source(name=trace, asus="overlaid")) == [8, 8, 16, 100]
    assert offsets(Source(name=trace, asus="2")) == [8, 16]
    assert offsets(Source(name=trace, asus="overlaid", factor=8)) == [64, 64, 128, 800]
    with pytest.raises(UsageError, match="no request to ASU 7"):
        offsets(Source(name=trace, asus="7"))
    several: tuple[tuple[dict[str, Any], str], ...]
    several = ({"asus": "all"}, "asus is"), ({"factor": 0}, "factor of addresses")
    for wrong, what in several:
        with pytest.raises(UsageError, match=what):
            Source(name=trace, **wrong).check()
    with pytest.raises(UsageError, match="generated"):
        Source(name="uniform", asus="0").check()


def test_a_rate_is_that_of_the_requests_that_are_used(tmp_path: Path) -> None:
    """A quick first half, then a slow one: cut behind the first, it has the rate that is asked."""
    path = tmp_path / "slower.spc"
    times_s = [*(0.01 * n for n in range(100)), *(1 + 0.1 * n for n in range(100))]
    path.write_text("".join(f"0,{8 * n},512,r,{at_s:.2f}\n" for n, at_s in enumerate(times_s)))
    for how in ({"requests": 100}, {"seconds": 0.995}, {}):
        load = list(requests_of(Source(name=str(path), rate_s=50.0, **how).load(SIZE)))
        assert len(load) == (100 if how else 200)
        assert (len(load) - 1) / load[-1].at_s == pytest.approx(50.0)


def writes(count: int, gap_s: float, step: int) -> Any:
    """Return a load of small writes, *step* bytes apart."""
    return lambda _size: [block_of((n * gap_s, True, n * step, 4096) for n in range(count))]


def experiment(**changes: Any) -> Experiment:
    """Return an experiment on a RAID-5 whose every operation takes 1 or 2 ms."""
    fields: dict[str, Any] = {
        "layout": "raid5",
        "members": (ONE,) * 4,
        "load": writes(20, 0.0, 0),
        "settings": {"journal": "none", "parity.policy": "rmw"},
    }
    return Experiment(**{**fields, **changes})


def test_without_stripe_locks_writes_to_a_stripe_take_no_turns() -> None:
    row = {"layout": "upc", "members": (ONE,) * 6, "load": writes(6, 0.0, 65536)}
    turns = simulate(experiment(**row))["response_ms"]["max"]
    free = simulate(experiment(stripe_locks=False, **row))["response_ms"]["max"]
    assert turns >= 18.0  # six turns: each reads for 1 ms and writes for 2 ms
    assert free < turns - 4.0


def test_no_locks_and_content_or_a_log_exclude_each_other() -> None:
    several: tuple[dict[str, Any], ...] = ({"verify": True}, {"settings": {}}, {"content": True})
    for changes in several:
        with pytest.raises(UsageError, match="without stripe locks"):
            simulate(experiment(stripe_locks=False, **changes))
    wrongs: tuple[tuple[dict[str, Any], str], ...]
    wrongs = ({"warm_up_s": -1.0}, "warm-up"), ({"controller_bytes": -1}, "cache")
    for wrong, what in wrongs:
        with pytest.raises(UsageError, match=what):
            experiment(**wrong).check()
    with pytest.raises(UsageError, match="keeps no content"):
        simulate(experiment(controller_bytes=1 << 20, verify=True))


def test_what_arrives_during_the_warm_up_is_served_and_not_counted() -> None:
    def load(_size: int) -> Any:
        return [block_of((0.1 * n, False, n * 65536, 4096) for n in range(20))]

    whole = simulate(experiment(load=load))
    late = simulate(experiment(load=load, warm_up_s=0.95))
    assert (whole["requests"], late["requests"]) == (20, 10)
    reads = [sum(m["reads"] for m in result["members"]) for result in (whole, late)]
    assert reads == [20, 10]
    assert late["rate"] == pytest.approx(10, rel=0.1)
    with pytest.raises(UsageError, match="no request arrives after the warm-up"):
        simulate(experiment(load=load, warm_up_s=5.0))


def test_an_event_has_the_means_of_its_time() -> None:
    text = """
    [array]
    layout = "raid5"
    disks = 4
    disk_size = "64MiB"
    [load]
    source = "uniform"
    requests = 300
    rate = 50
    numbers = { read_share = 1.0 }
    [[events]]
    at = 1
    do = "fail"
    disk = 0
    [[events]]
    at = 2
    do = "replace"
    disk = 0
    """
    made, healthy = parse_experiment(text), parse_experiment(text.split("[[events]]")[0])
    assert isinstance(made, Experiment)
    assert isinstance(healthy, Experiment)
    result = simulate(made)
    (rebuild,) = (event for event in result["events"] if event["do"] == "replace")
    during = rebuild["during"]
    assert 0 < during["requests"] < result["requests"]
    assert during["response_ms"]["mean"] != result["response_ms"]["mean"]
    assert during["response_ms"]["mean"] > simulate(healthy)["response_ms"]["mean"]


def test_the_keys_stand_in_the_file(trace: str) -> None:
    text = f"""
    [array]
    layout = "upc"
    disks = 6
    model = "sas10k,order=ncq"
    controller = "8MiB"
    unsafe_no_stripe_locks = true
    settings = {{ journal = "none" }}
    [load]
    source = "{trace}"
    asus = "overlaid"
    factor = 8
    [report]
    warm_up = 0.25
    """
    made = parse_experiment(text)
    assert isinstance(made, Experiment)
    assert (made.controller_bytes, made.stripe_locks, made.warm_up_s) == (8 << 20, False, 0.25)
    assert simulate(made)["requests"] == 2
    with pytest.raises(UsageError, match="without stripe locks"):
        parse_experiment(text.replace('journal = "none"', 'journal = "full"'))


class Slow:
    """An array on which a write takes 10 ms; *ranges* are those written."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.reads = 0
        self.fails = False

    async def read(self, _offset: int, length: int) -> bytes:
        self.reads += 1
        await sleep(0.01)
        return bytes(length)

    async def write(self, offset: int, data: Any) -> None:
        await sleep(0.01)
        if self.fails:
            raise MemberError("disk0", "write", offset, 5)
        self.ranges.append((offset, len(data)))


def with_cache(pages: int, story: Any) -> Slow:
    """Run *story* with a cache of so many pages, and return the array behind it."""
    behind = Slow()

    async def main() -> None:
        cache = ControllerCache(behind, pages * PAGE_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.serve)
            await story(cache, behind)
            await cache.written()
            nursery.cancel_scope.cancel()

    run(main)
    return behind


def test_a_controllers_cache_answers_writes_at_once_and_reads_what_it_has() -> None:
    async def story(cache: ControllerCache, behind: Slow) -> None:
        start_s = trio.current_time()
        await cache.write(0, bytes(PAGE_BYTES))
        await cache.read(0, PAGE_BYTES)
        assert trio.current_time() - start_s < 0.001
        assert (cache.hits, behind.reads) == (1, 0)
        await cache.read(1 << 20, PAGE_BYTES)
        await cache.read(1 << 20, PAGE_BYTES)
        assert (cache.hits, behind.reads) == (2, 1)

    assert with_cache(100, story).ranges == [(0, PAGE_BYTES)]


def test_adjacent_pages_are_written_together_upwards() -> None:
    async def story(cache: ControllerCache, _behind: Slow) -> None:
        async with trio.open_nursery() as nursery:  # 16 ranges are under way meanwhile
            for number in range(16):
                nursery.start_soon(cache.write, (1000 + 2 * number) * PAGE_BYTES, bytes(512))
            await trio.sleep(0.001)
            for page in (9, 3, 2, 8, 1):
                await cache.write(page * PAGE_BYTES, bytes(PAGE_BYTES))

    behind = with_cache(100, story)
    together = sorted(behind.ranges[16:])
    assert together == [(PAGE_BYTES, 3 * PAGE_BYTES), (8 * PAGE_BYTES, 2 * PAGE_BYTES)]
    assert all(length == 512 for _, length in behind.ranges[:16])
    assert RANGE_BYTES > 3 * PAGE_BYTES


def test_a_full_cache_makes_writes_wait_and_an_error_comes_back() -> None:
    async def story(cache: ControllerCache, behind: Slow) -> None:
        start_s = trio.current_time()
        for page in range(0, 40, 2):
            await cache.write(page * PAGE_BYTES, bytes(PAGE_BYTES))
        assert trio.current_time() - start_s >= 0.02  # twice ten pages do not fit into four
        await cache.written()
        behind.fails = True
        await cache.write(200 * PAGE_BYTES, bytes(PAGE_BYTES))
        await cache.written()
        with pytest.raises(MemberError):
            await cache.write(300 * PAGE_BYTES, bytes(PAGE_BYTES))

    with_cache(4, story)
