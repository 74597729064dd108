"""Generated loads: they have the published statistics, a seed repeats them, shapes fit them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from load_statistics import statistics_of

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.loads.published import WORKLOADS, mean_of, powers, tilted
from raidx_fuse.lab.loads.request import (
    Request,
    block_of,
    faster,
    first,
    fit,
    fold,
    requests_of,
    scale,
)
from raidx_fuse.lab.loads.workloads import generate, variant

# Mean sizes that follow from the tables of the papers: volume over requests.
PAPERS_MEAN_BYTES = {
    "financial1": (2715.67 + 14918.69) * 2**20 / 5_334_987,
    "financial2": (6778.685 + 1860.74) * 2**20 / 3_699_195,
    "websearch1": (15608.88 + 1.78) * 2**20 / 1_055_448,
    "websearch2": (67394.82 + 7.83) * 2**20 / 4_579_809,
    "hm_0": 30.44 * 2**30 / 3_993_316,
    "hm_1": 8.81 * 2**30 / 609_311,
    "proj_0": 153.24 * 2**30 / 4_224_524,
    "proj_4": 144.64 * 2**30 / 6_465_639,
    "prxy_0": 56.84 * 2**30 / 12_518_968,
    "src2_2": 62.07 * 2**30 / 1_156_885,
}


def test_every_load_that_was_asked_for_is_there() -> None:
    traces = set(PAPERS_MEAN_BYTES) | {"tpcc"}
    assert set(WORKLOADS) == traces | {"uniform", "zipf", "hotspot"}


@pytest.mark.parametrize("name", WORKLOADS)
def test_generated_statistics_are_the_published_ones(name: str) -> None:
    work = WORKLOADS[name]
    count = 60_000
    seen = statistics_of(generate(name, seed=3, requests=count))
    assert seen.requests == count
    # Bursts make the sample of directions smaller than it looks: 1 - memory of it is independent.
    spread = (work.read_share * (1 - work.read_share) / count * 2 / (1 - work.op_memory)) ** 0.5
    assert seen.read_share == pytest.approx(work.read_share, abs=5 * spread + 1e-9)
    assert seen.mean_bytes == pytest.approx(work.mean_bytes, rel=0.03)
    assert seen.rate_s == pytest.approx(work.rate_s, rel=6 * work.cv / count**0.5)
    assert seen.cv == pytest.approx(work.cv, rel=0.1)
    assert seen.together_share == pytest.approx(work.batch_share, abs=0.01)
    assert seen.span_bytes <= work.span_bytes
    assert seen.span_bytes > 0.9 * work.span_bytes
    if name in PAPERS_MEAN_BYTES:
        assert work.mean_bytes == pytest.approx(PAPERS_MEAN_BYTES[name], rel=0.005)


@pytest.mark.parametrize("name", ["financial1", "websearch1", "hm_0", "hotspot"])
def test_a_seed_repeats_itself_and_blocks_do_not_matter(name: str) -> None:
    def columns(seed: int) -> list[Request]:
        return list(requests_of(generate(name, seed=seed, requests=5000)))

    assert columns(1) == columns(1)
    assert columns(1) != columns(2)
    at_s = [request.at_s for request in columns(1)]
    assert at_s == sorted(at_s)


def test_sequential_requests_continue_on_their_device() -> None:
    work = variant("uniform", sequential=0.5, streams=4, span_bytes=1 << 30)
    ends: dict[int, int] = {}
    continued = total = 0
    for request in requests_of(generate(work, seed=1, requests=20_000, block_requests=1000)):
        device = request.offset_bytes // (1 << 28)
        continued += ends.get(device) == request.offset_bytes
        ends[device] = request.offset_bytes + request.length_bytes
        total += 1
    assert continued / total == pytest.approx(0.5, abs=0.02)


def test_financial1_has_a_log_and_fixed_places_among_its_writes() -> None:
    log, places, end, count = [], [], 0, 0
    flat = variant("financial1", zipf=0.0, rewrite_share=0.0)  # no other places are hot
    for request in requests_of(generate(flat, seed=1, requests=20_000, block_requests=900)):
        if request.is_write:
            count += 1
            places.append(request.offset_bytes)
            if request.offset_bytes == end:
                log.append(request)
                end += 7 * 512
    assert len(log) / count == pytest.approx(0.17, abs=0.01)
    assert {request.length_bytes for request in log} == {7 * 512}  # 7 sectors a step
    uses = np.sort(np.unique(places, return_counts=True)[1])[::-1]
    assert uses[:16].sum() / count == pytest.approx(0.10, abs=0.01)  # 8, and what is paired with it


def test_what_shares_a_time_stamp_in_financial1_is_as_in_the_slice() -> None:
    seen = statistics_of(generate("financial1", seed=1, requests=20_000))
    assert 2.4 <= seen.group_size <= 2.75  # the slice: 2.69
    assert 0.25 <= seen.twin_share <= 0.32  # the slice: 0.27
    assert 0.20 <= seen.rewrite_share <= 0.30  # the slice: 0.27
    # Reads come rather alone: in the slice 65 % of the groups' requests are writes, of all 59 %.
    assert 0.03 <= seen.group_write_share - (1 - seen.read_share) <= 0.08


def test_the_second_request_of_a_pair_lies_on_the_next_device_at_one_distance() -> None:
    mib, devices = 1 << 20, 4
    work = variant(
        "uniform",
        pair_share=0.4,
        pair_bytes=((3 * mib, 1.0), (-mib, 1.0)),
        batch_share=0.2,
        streams=devices,
        span_bytes=devices * 64 * mib,
    )
    distances: dict[int, set[int]] = {}
    rows = list(requests_of(generate(work, seed=2, requests=8000)))
    pairs = [pair for pair in pairwise(rows) if pair[0].at_s == pair[1].at_s]
    assert 2 * len(pairs) / len(rows) == pytest.approx(0.4, abs=0.03)
    for one, two in pairs:
        assert (one.is_write, one.length_bytes) == (two.is_write, two.length_bytes)
        (first, at), (second, there) = (divmod(r.offset_bytes, 64 * mib) for r in (one, two))
        assert second == (first + 1) % devices
        if there < 64 * mib - 4096:  # not moved before the span's end
            distances.setdefault(first, set()).add((there - at) % (64 * mib))
    assert all(len(found) == 1 for found in distances.values())
    assert set.union(*distances.values()) <= {3 * mib, 63 * mib}


def test_appends_bring_company_and_reads_come_alone() -> None:
    rows = list(requests_of(generate("financial1", seed=3, requests=30_000)))
    after_log, after_write, others = [], [], []
    for one, two in pairwise(rows):
        together = one.at_s == two.at_s
        if one.is_write and one.length_bytes == 7 * 512 and one.offset_bytes < 20 << 20:
            after_log.append(together)
        elif one.is_write and two.is_write:
            after_write.append(together)
        elif one.is_write != two.is_write:
            others.append(together)
    assert np.mean(after_log) == pytest.approx(0.91, abs=0.03)
    assert np.mean(others) < 0.15 < 0.35 < np.mean(after_write)


def test_statistics_of_groups_are_counted() -> None:
    three = block_of([(0, True, 0, 512), (0, True, 9216, 512), (0, False, 0, 512)])
    alone = block_of([(1, True, 9216, 1024)])
    two = block_of([(2, False, 0, 512), (2, False, 4096, 512)])
    seen = statistics_of([three, alone, two])
    assert (seen.group_size, seen.group_write_share) == (2.5, 2 / 5)
    assert seen.twin_share == pytest.approx(2 / 5)
    assert seen.rewrite_share == pytest.approx(1 / 3)


def test_websearch_reuses_no_place_soon() -> None:
    work = variant("websearch1", sequential=0.0)
    places = [r.offset_bytes for r in requests_of(generate(work, seed=1, requests=70_000))]
    last: dict[int, int] = {}
    nearest = len(places)
    for index, place in enumerate(places):
        nearest = min(nearest, index - last.get(place, -len(places)))
        last[place] = index
    assert work.unused_for < nearest < len(places), "reuse comes, and only at long distance"


def test_zipf_is_skewed_and_hotspots_are_hot() -> None:
    flat, steep, hot = (
        statistics_of(generate(name, seed=1, requests=50_000)).top_share
        for name in ("uniform", "zipf", "hotspot")
    )
    assert steep > flat + 0.2
    assert hot > flat + 0.05
    hottest = variant("hotspot", slots=1000, hot_slots=0.01, hot_share=0.9)
    places = [r.offset_bytes for r in requests_of(generate(hottest, seed=1, requests=20_000))]
    counts = np.sort(np.unique(places, return_counts=True)[1])[::-1]
    assert counts[:10].sum() / counts.sum() == pytest.approx(0.9, abs=0.02)


def test_a_changed_number_changes_nothing_else() -> None:
    reads = list(requests_of(generate(variant("zipf", read_share=1.0), requests=1000)))
    writes = list(requests_of(generate(variant("zipf", read_share=0.0), requests=1000)))
    assert all(not r.is_write for r in reads)
    assert all(w.is_write for w in writes)
    assert [r.offset_bytes for r in reads] == [w.offset_bytes for w in writes]
    assert [r.at_s for r in reads] == [w.at_s for w in writes]


def test_tilted_mixes_have_the_mean_and_keep_their_sizes() -> None:
    mix = ((512, 0.5), (4096, 0.3), (65536, 0.2))
    for mean in (600.0, 4096.0, 60000.0):
        assert mean_of(tilted(mix, mean)) == pytest.approx(mean, rel=1e-6)
        assert [size for size, _ in tilted(mix, mean)] == [512, 4096, 65536]
    assert [size for size, _ in powers(4096, 65536, 10000)] == [4096, 8192, 16384, 32768, 65536]


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("uniform", {"log_share": 0.6, "fixed_share": 0.6}, "log_share and fixed_share"),
        ("uniform", {"log_share": 0.1}, "need log_bytes"),
        ("financal1", {}, "did you mean financial1"),
        ("uniform", {"reed_share": 1}, "did you mean read_share"),
        ("uniform", {"read_share": 1.5}, "outside 0 to 1"),
        ("uniform", {"rate_s": 0}, "above 0"),
        ("uniform", {"length_bytes": 1 << 40}, "longer than the span"),
        ("websearch1", {"slots": 1000}, "twice as many slots"),
        ("uniform", {"batch_share": 1.0}, "0.99"),
        ("financial1", {"batch_share": 0.3}, "batch_share includes the second requests of pairs"),
        ("uniform", {"pair_share": 0.1, "batch_share": 0.2}, "needs pair_bytes"),
    ],
)
def test_impossible_loads_are_refused(name: str, numbers: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        variant(name, **numbers)


# -- shapes ----------------------------------------------------------------------------------------

LOAD = [
    block_of([(0.0, True, 0, 512), (1.0, False, 1000, 100), (2.0, True, 9000, 2000)]),
    block_of([(3.0, True, 20480, 4096), (4.0, False, 1 << 20, 8192)]),
]


def test_folding_takes_addresses_modulo_the_image() -> None:
    folded = [r[2:] for r in requests_of(fold(LOAD, 16384))]
    assert folded == [(0, 512), (512, 1024), (8704, 2560), (4096, 4096), (0, 8192)]
    over = block_of([(0.0, True, 16384 - 512, 4096), (0.0, True, 0, 1 << 20)])
    assert [r[2:] for r in requests_of(fold([over], 16384))] == [(12288, 4096), (0, 16384)]


def test_scaling_multiplies_addresses_and_keeps_sizes() -> None:
    scaled = list(requests_of(scale(LOAD, 4 << 20, 2 << 20)))
    assert [r.offset_bytes for r in scaled] == [0, 1536, 17920, 40960, 2 << 20]
    assert [r.length_bytes for r in scaled] == [512, 512, 2048, 4096, 8192]


def test_without_fitting_what_lies_beyond_is_an_error() -> None:
    assert len(list(requests_of(fit(LOAD, 2 << 20, "none")))) == 5
    with pytest.raises(UsageError, match="reaches to byte"):
        list(fit(LOAD, 1 << 20, "none"))
    with pytest.raises(UsageError, match="no way to fit"):
        fit(LOAD, 1 << 20, "squeeze")


def test_time_can_be_compressed_and_cut() -> None:
    assert [r.at_s for r in requests_of(faster(LOAD, 4))] == [0, 0.25, 0.5, 0.75, 1.0]
    with pytest.raises(UsageError, match="factor"):
        faster(LOAD, 0)
    for count in range(7):
        assert len(list(requests_of(first(LOAD, requests=count)))) == min(count, 5)
    for seconds, count in ((0.0, 1), (1.5, 2), (2.0, 3), (3.5, 4), (9.0, 5)):
        assert len(list(requests_of(first(LOAD, seconds=seconds)))) == count
    assert len(list(requests_of(first(LOAD, 2, 3.5)))) == 2
    assert len(list(requests_of(first(LOAD, 5, 1.5)))) == 2
