"""Published statistics of the papers' traces: one table, each number with its source.

- [raidx]: table II of the RAIDX paper (run time, reads, volumes by direction).
- [bpu]: table II of the BPU paper (requests, write share, volume). Its GB are 2**30 bytes, as its
  column of averages confirms.
- [slice]: counted in slices of the real traces, which are kept beside the repository.
- [fit]: a Zipf law, fitted so that the number of requests yields the published number of distinct
  addresses, and Che's approximation yields the published LRU miss ratio.
- [assumed]: nothing is published. A round figure; vary it in experiments that depend on it.

Request sizes are a mix counted in a slice, or powers of two without one, `tilted` to the published
mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

Sizes = tuple[tuple[int, float], ...]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Workload:
    """The statistics that a generated load follows; `dataclasses.replace` makes variants.

    - *requests*: how many; *rate_s*: mean arrivals a second; *cv*: coefficient of variation of the
      times between arrivals; *batch_share*: share that arrives together with the one before.
    - *read_share*: share of reads; *op_memory*: probability that a request repeats the direction of
      the one before (bursts of reads); *read_sizes*, *write_sizes*: (bytes, weight).
    - *slots*: start addresses on a span of *span_bytes*. They are drawn by Zipf's law with exponent
      *zipf* (0: uniform) and scattered by a permutation, or *hot_share* of the requests go to the
      fraction *hot_slots* of them. A slot is not drawn again within *unused_for* requests.
    - *streams*: the span is divided into so many devices; *sequential*: share of the requests that
      begin where the last one on their device ended, without log and fixed places;
      *write_sequential*: of the writes, if not as of the reads.
    - *log_share*: share of the writes that append *log_bytes* each to a log on the first device;
      *log_batch*: how often the next request arrives together with an append (0: as with others);
      *fixed_share*: share of them that go to *fixed_places* slots, to one as often as to another.
    - *rewrite_share*: share of the other writes that repeat one of the last few, place and size.
    - *pair_share*: share of the requests in pairs of one time, direction and size. The second one
      lies on the next device, *pair_bytes* (bytes, weight) farther: one distance for each device.
    - *batch_mixed*: two neighbours not both writes arrive together so many times as often as two
      writes. *batch_share* includes all; *op_memory* counts a pair once.
    """

    name: str
    title: str
    requests: int
    rate_s: float
    read_share: float
    read_sizes: Sizes
    write_sizes: Sizes
    span_bytes: int
    slots: int
    zipf: float = 0.0
    cv: float = 1.0
    batch_share: float = 0.0
    op_memory: float = 0.0
    sequential: float = 0.0
    streams: int = 1
    unused_for: int = 0
    hot_slots: float = 0.0
    hot_share: float = 0.0
    align_bytes: int = 4 * KIB
    log_share: float = 0.0
    log_bytes: int = 0
    fixed_share: float = 0.0
    fixed_places: int = 0
    pair_share: float = 0.0
    pair_bytes: Sizes = ()
    batch_mixed: float = 1.0
    log_batch: float = 0.0
    write_sequential: float | None = None
    rewrite_share: float = 0.0

    @property
    def mean_bytes(self) -> float:
        reads, writes = mean_of(self.read_sizes), mean_of(self.write_sizes)
        return self.read_share * reads + (1 - self.read_share) * writes


def mean_of(sizes: Sizes) -> float:
    """Return the mean request size, in bytes, of a mix of *sizes*."""
    return sum(size * weight for size, weight in sizes) / sum(weight for _, weight in sizes)


def tilted(sizes: Sizes, mean_bytes: float) -> Sizes:
    """Return the mix nearest to *sizes* (least relative entropy) that has the mean *mean_bytes*.

    Each weight is multiplied by exp(t * size). The mean lies between smallest and largest size.
    """
    largest = max(size for size, _ in sizes)
    assert min(size for size, _ in sizes) < mean_bytes < largest, "a mean between the extremes"

    def at(tilt: float) -> Sizes:
        return tuple((s, w * exp(tilt * (s / largest - (tilt > 0)))) for s, w in sizes)

    low, high = -4000.0, 4000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(at(middle)) < mean_bytes else (low, middle)
    return at((low + high) / 2)


def _mix(*pairs: float) -> Sizes:
    return tuple((int(s), w) for s, w in zip(pairs[::2], pairs[1::2], strict=True))


def powers(smallest: int, largest: int, mean_bytes: float) -> Sizes:
    """Return the powers of two from *smallest* to *largest*, tilted to the mean *mean_bytes*."""
    count = (largest // smallest).bit_length()
    return tilted(tuple((smallest << k, 1.0) for k in range(count)), mean_bytes)


# [slice] Financial1, first 10,000 requests.
_FIN_READ = _mix(8192, 0.712, 512, 0.149, 3072, 0.058, 1024, 0.047, 2048, 0.012, 4096, 0.01)
_FIN_WRITE = _mix(
    *(3072, 0.297, 1024, 0.172, 512, 0.13, 3584, 0.128, 8192, 0.046, 2560, 0.043, 49152, 0.037),
    *(1536, 0.032, 4096, 0.017, 2048, 0.016, 12288, 0.014, 6656, 0.014, 7680, 0.011),
)
# [slice] Financial1: from the address of one write of a pair to that of the other, on its own ASU.
_FIN_PAIRS = _mix(
    *(0, 359, 124_014 * 512, 231, 611_703 * 512, 198, 1_002 * 512, 154, -114_468 * 512, 149),
    *(269_001 * 512, 94, 70_221 * 512, 75, 513_024 * 512, 27, 61_731 * 512, 16),
)
# [slice] hm_0: the reads of sample and slice, and their writes.
_HM0_READ = _mix(
    *(4096, 0.80, 32768, 0.064, 512, 0.02, 8192, 0.02, 16384, 0.012, 12288, 0.008, 65536, 0.005)
)
_HM0_WRITE = _mix(
    *(4096, 0.50, 8192, 0.13, 512, 0.13, 16384, 0.065, 1024, 0.04, 3072, 0.03, 1536, 0.02),
    *(36864, 0.017, 24576, 0.01, 7680, 0.01, 32768, 0.004, 65536, 0.004),
)
# [slice] hm_1, 13,069 writes; proj_0, 999 writes; WebSearch, 24,783 requests; TPC-C, 6,999.
_HM1_WRITE = _mix(
    *(8192, 0.695, 65536, 0.085, 16384, 0.06, 4096, 0.032, 24576, 0.016, 131072, 0.012),
    *(262144, 0.008, 32768, 0.008, 196608, 0.006, 40960, 0.004),
)
_WEBSEARCH = _mix(8192, 0.601, 32768, 0.198, 16384, 0.122, 24576, 0.078)
_TPCC_READ = _mix(8192, 0.998, 61440, 0.002)
_TPCC_WRITE = _mix(8192, 0.907, 16384, 0.039, 61440, 0.004, 512, 0.004, 2048, 0.01, 10752, 0.002)

WEEK_S = 604_800.0

_SIMPLE: dict[str, Any] = {
    **{"requests": 100_000, "rate_s": 100.0, "read_share": 0.5},
    **{"read_sizes": _mix(4096, 1.0), "write_sizes": _mix(4096, 1.0)},
    **{"span_bytes": GIB, "slots": GIB // (4 * KIB)},
}

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        # [raidx] 2715.67 MiB in 1,235,633 reads, 14918.69 MiB in 4,099,354 writes, 122.05 a second,
        # disk of 29.319 GB. [fit] 3.4 million places, exponent 1.09. [slice] cv, batches:
        # 17 % of the writes append 7 sectors to a log, 91 % of them with what follows; 10 % go to
        # eight places; 32 % go where one of the last eight went; of the others 20 %
        # continue, of reads 62 %. Half the requests are in pairs,
        # counted once below: a write arrives with the write before in 48 %, others in 9 %.
        Workload(
            name="financial1",
            title="SPC Financial1: OLTP at a bank",
            requests=5_334_987,
            rate_s=122.05,
            read_share=0.2316,
            read_sizes=tilted(_FIN_READ, 2715.67 * MIB / 1_235_633),
            write_sizes=tilted(_FIN_WRITE, 14918.69 * MIB / 4_099_354),
            span_bytes=int(29.319e9),
            slots=3_400_000,
            zipf=1.09,
            cv=3.2,
            batch_share=0.45,
            op_memory=0.42,
            sequential=0.62,
            write_sequential=0.20,
            rewrite_share=0.29,
            pair_share=0.50,
            pair_bytes=_FIN_PAIRS,
            batch_mixed=0.19,
            log_batch=0.91,
            streams=24,
            align_bytes=512,
            log_share=0.17,
            log_bytes=7 * 512,
            fixed_share=0.10,
            fixed_places=8,
        ),
        # [raidx] 6778.685 MiB in 3,046,112 reads, 1860.74 MiB in 653,083 writes, 90.24 a second.
        # [fit] 750,000 places, exponent 1.10. [assumed] span (the paper's 0.02 GB cannot hold the
        # 296,072 distinct addresses), arrivals and sequence as Financial1.
        Workload(
            name="financial2",
            title="SPC Financial2: OLTP at a bank, mostly reads",
            requests=3_699_195,
            rate_s=90.24,
            read_share=0.82345,
            read_sizes=tilted(_FIN_READ, 6778.685 * MIB / 3_046_112),
            write_sizes=tilted(_FIN_WRITE, 1860.74 * MIB / 653_083),
            span_bytes=8 * GIB,
            slots=750_000,
            zipf=1.10,
            cv=3.2,
            batch_share=0.45,
            op_memory=0.57,
            sequential=0.45,
            streams=19,
            align_bytes=512,
        ),
        # [raidx] 15608.88 MiB in 1,055,236 reads, 334.92 a second. [fit] 570,000 slots, no address
        # again within 30,000 requests (the LRU hit ratios say so). [slice] three ASUs of 17 GB.
        Workload(
            name="websearch1",
            title="SPC WebSearch1: a search engine",
            requests=1_055_448,
            rate_s=334.92,
            read_share=0.9998,
            read_sizes=tilted(_WEBSEARCH, 15608.88 * MIB / 1_055_236),
            write_sizes=_mix(8192, 1.0),
            span_bytes=3 * 17_902_723_072,
            slots=570_000,
            cv=1.3,
            sequential=0.10,
            streams=3,
            unused_for=30_000,
            align_bytes=8 * KIB,
        ),
        # [raidx] 67394.82 MiB in 4,578,819 reads, 297.47 a second. The rest as WebSearch1.
        Workload(
            name="websearch2",
            title="SPC WebSearch2: a search engine",
            requests=4_579_809,
            rate_s=297.47,
            read_share=0.99978,
            read_sizes=tilted(_WEBSEARCH, 67394.82 * MIB / 4_578_819),
            write_sizes=_mix(8192, 1.0),
            span_bytes=3 * 17_902_723_072,
            slots=728_000,
            cv=1.3,
            sequential=0.10,
            streams=3,
            unused_for=30_000,
            align_bytes=8 * KIB,
        ),
        # [bpu] 30.44 GB, 65 % writes. [slice] writes of 6,400 B; span; 14 to 35 % arrive within two
        # microseconds of the one before (74 to 78 % within a millisecond). [fit] the places.
        Workload(
            name="hm_0",
            title="MSR hm_0: hardware monitor",
            requests=3_993_316,
            rate_s=3_993_316 / WEEK_S,
            read_share=0.35,
            read_sizes=tilted(_HM0_READ, (30.44 * GIB / 3_993_316 - 0.65 * 6_400) / 0.35),
            write_sizes=tilted(_HM0_WRITE, 6_400),
            span_bytes=14_906_370_560,
            slots=605_000,
            zipf=0.96,
            cv=6.0,
            batch_share=0.3,
            op_memory=0.9,
            sequential=0.04,
        ),
        # [bpu] 8.81 GB, 5 % writes. [slice] writes of 21,187 B, span; its cv of 21 is that of the
        # writes alone. [assumed] sizes of reads, places, cv.
        Workload(
            name="hm_1",
            title="MSR hm_1: hardware monitor",
            requests=609_311,
            rate_s=609_311 / WEEK_S,
            read_share=0.95,
            read_sizes=powers(4 * KIB, 64 * KIB, (8.81 * GIB / 609_311 - 0.05 * 21_187) / 0.95),
            write_sizes=tilted(_HM1_WRITE, 21_187),
            span_bytes=27_310_669_824,
            slots=100_000,
            zipf=0.96,
            cv=6.0,
            batch_share=0.3,
            op_memory=0.9,
            sequential=0.01,
        ),
        # [bpu] 153.24 GB, 88 % writes, largest 0.7 MB. [fit] the places. [slice] span, cv of a
        # quiet start. [assumed] reads as large as writes (the slice's 7 KB are not the week's).
        Workload(
            name="proj_0",
            title="MSR proj_0: project directories",
            requests=4_224_524,
            rate_s=4_224_524 / WEEK_S,
            read_share=0.12,
            read_sizes=powers(4 * KIB, 512 * KIB, 153.24 * GIB / 4_224_524),
            write_sizes=powers(4 * KIB, 512 * KIB, 153.24 * GIB / 4_224_524),
            span_bytes=17_211_323_904,
            slots=363_000,
            zipf=1.02,
            cv=5.0,
            batch_share=0.25,
            op_memory=0.9,
            sequential=0.05,
        ),
        # [bpu] 144.64 GB, 2 % writes, largest 0.06 MB. [fit] the places. [assumed] span, arrivals.
        Workload(
            name="proj_4",
            title="MSR proj_4: project directories",
            requests=6_465_639,
            rate_s=6_465_639 / WEEK_S,
            read_share=0.98,
            read_sizes=powers(4 * KIB, 64 * KIB, 144.64 * GIB / 6_465_639),
            write_sizes=powers(4 * KIB, 64 * KIB, 144.64 * GIB / 6_465_639),
            span_bytes=5_080_000 * 24 * KIB,
            slots=5_080_000,
            zipf=0.60,
            cv=5.0,
            batch_share=0.25,
            op_memory=0.9,
            sequential=0.05,
        ),
        # [bpu] 56.84 GB, 97 % writes. [fit] the places. [assumed] span, mix, arrivals.
        Workload(
            name="prxy_0",
            title="MSR prxy_0: firewall and web proxy",
            requests=12_518_968,
            rate_s=12_518_968 / WEEK_S,
            read_share=0.03,
            read_sizes=powers(512, 64 * KIB, 56.84 * GIB / 12_518_968),
            write_sizes=powers(512, 64 * KIB, 56.84 * GIB / 12_518_968),
            span_bytes=232_000 * 64 * KIB,
            slots=232_000,
            zipf=1.28,
            cv=5.0,
            batch_share=0.25,
            op_memory=0.9,
            sequential=0.04,
            align_bytes=512,
        ),
        # [bpu] 62.07 GB, 69 % writes, largest 0.13 MB. [assumed] all of places and arrivals.
        Workload(
            name="src2_2",
            title="MSR src2_2: source control",
            requests=1_156_885,
            rate_s=1_156_885 / WEEK_S,
            read_share=0.31,
            read_sizes=powers(4 * KIB, 128 * KIB, 62.07 * GIB / 1_156_885),
            write_sizes=powers(4 * KIB, 128 * KIB, 62.07 * GIB / 1_156_885),
            span_bytes=400_000 * 128 * KIB,
            slots=400_000,
            zipf=0.90,
            cv=5.0,
            batch_share=0.25,
            op_memory=0.9,
            sequential=0.05,
        ),
        # No figure of the BYU trace was found. [slice] of another TPC-C trace: 63 % reads, pages of
        # 8 KiB, hardly a page twice, cv 1.07. [assumed] rate, span (20 warehouses of 300 MB).
        Workload(
            name="tpcc",
            title="TPC-C, 20 warehouses",
            requests=500_000,
            rate_s=150.0,
            read_share=0.626,
            read_sizes=_TPCC_READ,
            write_sizes=_TPCC_WRITE,
            span_bytes=6 * GIB,
            slots=6 * GIB // (8 * KIB),
            cv=1.07,
            op_memory=0.12,
            sequential=0.01,
            align_bytes=512,
        ),
        # Not traces: simple loads, for experiments that vary one property at a time.
        Workload(
            name="uniform",
            title="pages of 4 KiB anywhere",
            **_SIMPLE,
        ),
        Workload(
            name="zipf",
            title="pages of 4 KiB, by Zipf's law",
            **_SIMPLE,
            zipf=1.0,
        ),
        Workload(
            name="hotspot",
            title="pages of 4 KiB, nine of ten on a tenth of the places",
            **_SIMPLE,
            hot_slots=0.1,
            hot_share=0.9,
        ),
    )
}
