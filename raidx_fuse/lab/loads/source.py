"""The source of a load: a trace file or a generated load, by name, with its shaping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.loads.published import WORKLOADS
from raidx_fuse.lab.loads.request import Block, Load
from raidx_fuse.lab.loads.shape import FITS, faster, first, fit, times
from raidx_fuse.lab.loads.traces import JOINED, Trace, check_asus
from raidx_fuse.lab.loads.workloads import generate, variant

ABSTRACT = ("uniform", "zipf", "hotspot")  # they have no span of their own: they use the image's


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A load by name.

    - *name*: a generated load, or the path of a trace.
    - *requests*, *seconds*: use only the first ones; seconds count in the load's own time.
    - *speed*: the load runs so many times as fast; or *rate_s*: so many requests a second on
      average.
    - *factor*: addresses are multiplied by it, before they are fitted; sizes stay.
    - *fit*: how addresses are mapped onto the image (shape.py).
    - *asus*: of a trace, see traces.py.
    - *seed*, *numbers* (fields of `Workload`): for generated loads only.
    """

    name: str
    requests: int | None = None
    seconds: float | None = None
    speed: float = 1.0
    rate_s: float | None = None
    factor: int = 1
    fit: str = "fold"
    asus: str = JOINED
    seed: int = 0
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_generated(self) -> bool:
        return self.name in WORKLOADS

    def at(self, path: str) -> Source:
        """Return the same load from the trace at *path*."""
        return replace(self, name=path)

    def check(self) -> None:
        """Raise UsageError if a field is impossible, before anything is built."""
        if self.fit not in FITS:
            raise UsageError(f"no way to fit addresses {self.fit!r}: {', '.join(FITS)}")
        if not self.speed > 0 or not (self.rate_s is None or self.rate_s > 0):
            raise UsageError("speed and rate are above 0")
        if not 1 <= self.factor <= 1 << 20:
            raise UsageError(f"the factor of addresses is a whole number from 1, not {self.factor}")
        if self.requests is not None and self.requests < 1:
            raise UsageError(f"a load has at least one request, not {self.requests}")
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise UsageError(f"a load takes more than 0 seconds, not {self.seconds}")
        check_asus(self.asus)
        if self.is_generated and self.asus != JOINED:
            raise UsageError(f"{self.name} is generated: it has no ASUs to choose from")
        if self.is_generated:
            variant(self.name, **self.numbers)
        elif self.numbers:
            raise UsageError(f"{self.name} is a trace: its numbers cannot be chosen")
        elif Path(self.name).exists():
            Trace(self.name, asus=self.asus)
        else:
            raise UsageError(
                f"{self.name!r} is neither a file nor a generated load",
                action=f"generated are {', '.join(WORKLOADS)}",
            )

    def load(self, size_bytes: int) -> Iterator[Block]:
        """Return the load for an image of *size_bytes*. Raises UsageError, also while iterating."""
        self.check()
        return self._generated(size_bytes) if self.is_generated else self._traced(size_bytes)

    def _generated(self, size_bytes: int) -> Iterator[Block]:
        work = variant(self.name)
        if self.name in ABSTRACT and "span_bytes" not in self.numbers:
            work = variant(work, span_bytes=size_bytes)
        work = variant(work, **self.numbers)
        if self.rate_s is not None:
            work = replace(work, rate_s=self.rate_s / self.speed)
        # With a duration, more requests may be needed than the published trace has.
        count = 1 << 62 if self.seconds is not None else work.requests
        count = self.requests if self.requests is not None else count
        load = first(generate(work, seed=self.seed, requests=count), None, self.seconds)
        return self._fitted(faster(load, self.speed), size_bytes, work.span_bytes)

    def _traced(self, size_bytes: int) -> Iterator[Block]:
        trace = Trace(self.name, asus=self.asus)
        speed = self.speed
        if self.rate_s is not None and trace.rate_s:
            speed = self.rate_s / trace.rate_s
        span_bytes = trace.span_bytes if self.fit == "scale" else 0
        load = first(trace, self.requests, self.seconds)
        return self._fitted(faster(load, speed), size_bytes, span_bytes)

    def _fitted(self, load: Load, size_bytes: int, span_bytes: int) -> Iterator[Block]:
        if self.factor > 1:
            load = times(load, self.factor)
        return fit(load, size_bytes, self.fit, span_bytes * self.factor)
