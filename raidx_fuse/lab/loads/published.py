"""Workloads with the published statistics of the papers' traces, which are in published.toml.

Each number there has its source.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from math import exp
from typing import Any

Sizes = tuple[tuple[int, float], ...]

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
    align_bytes: int = 4096
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


def powers(smallest: int, largest: int, mean_bytes: float) -> Sizes:
    """Return the powers of two from *smallest* to *largest*, tilted to the mean *mean_bytes*."""
    count = (largest // smallest).bit_length()
    return tilted(tuple((smallest << k, 1.0) for k in range(count)), mean_bytes)


def _published() -> dict[str, Workload]:
    text = (files(__package__) / "published.toml").read_text()
    document = tomllib.loads(text)
    tables: dict[str, dict[str, Any]] = {}
    for name, own in document["workloads"].items():
        tables[name] = tables.get(own.pop("like", ""), {}) | own
    return {name: _workload(name, dict(each), document["mixes"]) for name, each in tables.items()}


def _workload(name: str, numbers: dict[str, Any], mixes: dict[str, list[list[float]]]) -> Workload:
    requests, read_share = numbers["requests"], numbers["read_share"]
    volume_bytes = numbers.pop("gib", 0) * GIB
    if "seconds" in numbers:
        numbers["rate_s"] = requests / numbers.pop("seconds")
    numbers["pair_bytes"] = tuple(map(tuple, numbers.get("pair_bytes", ())))
    written_bytes = numbers["write_sizes"].get("bytes")  # in a request, if it is known
    rest_bytes = volume_bytes / requests  # the mean of what has none of its own
    if written_bytes is not None:
        rest_bytes = (rest_bytes - round(1 - read_share, 9) * written_bytes) / read_share
    for key in ("read_sizes", "write_sizes"):
        of = numbers[key]
        mean_bytes = of["mib"] * MIB / of["in"] if "mib" in of else of.get("bytes", rest_bytes)
        if "powers" in of:
            smallest, largest = of["powers"]
            numbers[key] = powers(smallest, largest, mean_bytes)
        else:
            mix = tuple((int(size), weight) for size, weight in mixes[of["mix"]])
            numbers[key] = tilted(mix, mean_bytes) if mean_bytes else mix
    return Workload(name, **numbers)


WORKLOADS: dict[str, Workload] = _published()
