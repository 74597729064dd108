"""The response times of a driven load, and summaries of all requests or of sections."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from raidx_fuse.lab.loads.request import Bools, Floats

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}
ERRORS_KEPT = 20
SHORTEST_S = 1e-6  # of the classes of a distribution


class Recorder:
    """Collects requests as they end. Times are seconds from the start of the load.

    A response time runs from the moment a request was due (open loop) or sent (with a depth) to its
    end. *failed* counts the requests that failed; *errors* holds the first of their messages.
    """

    def __init__(self) -> None:
        self._at_s = array("d")
        self._response_s = array("d")
        self._length = array("q")
        self._is_write = array("b")
        self.failed = 0
        self.errors: list[str] = []
        self.held_back = 0
        self.end_s = 0.0

    def add(self, at_s: float, response_s: float, is_write: bool, length_bytes: int) -> None:
        self._at_s.append(at_s)
        self._response_s.append(response_s)
        self._length.append(length_bytes)
        self._is_write.append(is_write)
        if at_s + response_s > self.end_s:
            self.end_s = at_s + response_s

    def count_held_back(self) -> None:
        """Count one request that was sent late, because too many were under way."""
        self.held_back += 1

    def fail(self, message: str) -> None:
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append(message)

    def __len__(self) -> int:
        return len(self._at_s)

    def times(self) -> tuple[Floats, Floats, Bools]:
        """Return (arrival, response, is_write) of every request, in the order of their ends."""
        return (
            np.array(self._at_s),
            np.array(self._response_s),
            np.array(self._is_write, dtype=np.bool_),
        )

    def records(self) -> dict[str, list[Any]]:
        """Return every request, in the order of their ends, as columns."""
        return {
            "at_s": self._at_s.tolist(),
            "response_s": self._response_s.tolist(),
            "is_write": [bool(each) for each in self._is_write],
            "length_bytes": self._length.tolist(),
        }

    def distribution(self) -> dict[str, list[Any]]:
        """Return how many reads and writes took how long, in ten classes for each power of ten.

        Class i is of responses from *edges_ms* [i] to [i + 1]; the first one has shorter ones, too.
        """
        _at_s, response_s, is_write = self.times()
        if not len(response_s):
            return {"edges_ms": [], "reads": [], "writes": []}
        classes = np.floor(10 * np.log10(np.maximum(response_s, SHORTEST_S) * 1e3)).astype(int)
        first, count = int(classes.min()), int(np.ptp(classes)) + 1
        edges = 10 ** (np.arange(first, first + count + 1) / 10)
        return {
            "edges_ms": [_digits(float(edge)) for edge in edges],
            **{
                name: np.bincount(classes[which] - first, minlength=count).tolist()
                for name, which in (("reads", ~is_write), ("writes", is_write))
            },
        }

    def summary(self, from_s: float = 0.0, to_s: float = float("inf")) -> dict[str, Any]:
        """Return counts, rates and response times (ms) of the requests that arrived in a span."""
        at_s, response_s, is_write = self.times()
        inside = (at_s >= from_s) & (at_s < to_s)
        length = np.array(self._length, dtype=np.int64)[inside]
        response_s, is_write = response_s[inside], is_write[inside]
        last_s = min(to_s, self.end_s)
        seconds = max(last_s - from_s, 1e-9)
        return {
            "requests": len(response_s),
            "reads": int((~is_write).sum()),
            "writes": int(is_write.sum()),
            "read_bytes": int(length[~is_write].sum()),
            "write_bytes": int(length[is_write].sum()),
            "seconds": _digits(seconds),
            "rate": _digits(len(response_s) / seconds),
            "response_ms": spread(response_s),
            "read_ms": spread(response_s[~is_write]),
            "write_ms": spread(response_s[is_write]),
        }

    def sections(self, section_s: float) -> list[dict[str, Any]]:
        """Return a summary of each *section_s* seconds of arrivals, with where it begins."""
        at_s = self.times()[0]
        if not len(at_s) or section_s <= 0:
            return []
        count = int(at_s.max() // section_s) + 1
        return [
            {"from_s": _digits(n * section_s), **self.summary(n * section_s, (n + 1) * section_s)}
            for n in range(count)
        ]


def spread(response_s: Floats) -> dict[str, float]:
    """Return mean, percentiles and maximum of response times, in milliseconds."""
    if not len(response_s):
        return dict.fromkeys(("mean", *PERCENTILES, "max"), 0.0)
    values = np.percentile(response_s, list(PERCENTILES.values())) * 1e3
    return {
        "mean": _digits(float(response_s.mean()) * 1e3),
        **{name: _digits(float(v)) for name, v in zip(PERCENTILES, values, strict=True)},
        "max": _digits(float(response_s.max()) * 1e3),
    }


def _digits(value: float) -> float:
    """Return *value* to nine digits: a printed figure, not a memory image."""
    return float(f"{value:.9g}")
