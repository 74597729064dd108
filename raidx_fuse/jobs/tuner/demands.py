"""The throughput model that judges plans: what members have to do, and what a request takes."""

from __future__ import annotations

from dataclasses import dataclass

from raidx_fuse.layouts.numbers import Role

SEEK_S = 1e-3  # only disks with heads take so long to position
PAID_BACK_S = 86400.0  # a move, made in idle time, must save its own cost within a day

Share = tuple[float, float]  # latency, busy time: seconds a second


@dataclass(slots=True)
class Demands:
    """The model: seconds of service per second: *busy_s* by role; *latency_s* of all.

    *others* = N - 1, the requests that are under way besides one.
    """

    busy_s: dict[Role, float]
    latency_s: float
    others: float

    def time_s(self) -> float:
        """Return the expected time of all accesses of a second."""
        total = sum(self.busy_s.values())
        squares = sum(busy * busy for busy in self.busy_s.values())
        return self.latency_s + (self.others * squares / total if total > 0 else 0.0)

    def moved(self, source: Role, target: Role, less: Share, more: Share) -> Demands:
        """Return the demands when *source* has *less* and *target* *more* to do."""
        busy_s = dict(self.busy_s)
        busy_s[source] = max(0.0, busy_s[source] - less[1])
        busy_s[target] += more[1]
        return Demands(busy_s, self.latency_s - less[0] + more[0], self.others)
