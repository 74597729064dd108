"""The queue monitor of BPU: the present length of every member's queue, and the load's state.

The paper's Queue Monitor (section V.C) "captures real-time information of I/O queues" and is
"consistent with the I/O queue all the time". Here the member queues report each change to it, so
nothing is computed while nothing waits, and the time spent in each state is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from raidx_fuse.engine.parity_policy.bpu import LIGHT, STATES, Thresholds, state_of
from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.store.queue import MemberQueue


class QueueMonitor:
    """Watches queues from `attend` until `leave`.

    * *lengths_s*: the queue length of each role in seconds, 0 for a role without a member.
    * *mean_s*: their mean over the present members.
    * *state*: the state of the load.
    * *limits*: the thresholds from which the state follows.
    * *by_hand*: the service times in seconds set by hand, by kind ("read", "write"), for all
      members; None stands for the measured one of each.
    """

    def __init__(self, clock: Callable[[], float], limits: Thresholds) -> None:
        self.lengths_s: list[float] = []
        self.mean_s = 0.0
        self.state = LIGHT
        self.limits = limits
        self.by_hand: dict[str, float | None] = {"read": None, "write": None}
        self.active = False
        self._clock = clock
        self._queues: list[MemberQueue | None] = []
        self._present = 1
        self._since_s = 0.0
        self._seconds: dict[str, float] = dict.fromkeys(STATES, 0.0)

    def attend(self, queues: Sequence[MemberQueue | None]) -> None:
        """Watch *queues* (by role) from now on, instead of those watched before."""
        self.leave()
        self.active = True
        self._queues = list(queues)
        self._present = sum(queue is not None for queue in queues) or 1
        self.lengths_s = [0.0] * len(queues)
        self._since_s = self._clock()
        for role, queue in by_role(queues):
            if queue is not None:
                self.lengths_s[role] = self._length_s(queue)
                queue.watch(partial(self._changed, role, queue))
        self.refresh()

    def leave(self) -> None:
        """Stop watching."""
        if self.active:
            self.refresh()
        self.active = False
        for queue in self._queues:
            if queue is not None:
                queue.watch(None)
        self._queues = []
        self.lengths_s = [0.0] * len(self.lengths_s)
        self.mean_s = 0.0

    def set_service(self, kind: str, by_hand: float | None) -> None:
        """Set A_R (*kind* "read") or A_W ("write") *by_hand*; None: measured."""
        self.by_hand[kind] = by_hand
        self.refresh()

    def service_s(self, kind: str, queue: MemberQueue) -> float:
        """Return A_R or A_W of the member with *queue*, in seconds."""
        by_hand = self.by_hand[kind]
        if by_hand is not None:
            return by_hand
        return queue.read_service_s if kind == "read" else queue.write_service_s

    def set_limits(self, limits: Thresholds) -> None:
        """Derive the state from *limits* from now on."""
        self.limits = limits
        self.refresh()

    def refresh(self) -> None:
        """Compute every length again, after a change of the service times or the limits."""
        for role, queue in by_role(self._queues):
            if queue is not None:
                self.lengths_s[role] = self._length_s(queue)
        self._note(self._clock())

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent in each state so far, while watching."""
        if self.active:
            self._note(self._clock())
        return dict(self._seconds)

    def _length_s(self, queue: MemberQueue) -> float:
        """Return L = N_R * A_R + N_W * A_W (equation 3), divided by what is served at a time.

        The paper's disks serve one request after the other. A member that serves d of them at once
        has the same work done in a d-th of the time, and next to one that does not, L would call
        it busy where nothing waits.
        """
        reads_s = queue.reads_waiting * self.service_s("read", queue)
        writes_s = queue.writes_waiting * self.service_s("write", queue)
        return (reads_s + writes_s) / max(1, queue.member.depth)

    def _changed(self, role: Role, queue: MemberQueue, now_s: float) -> None:
        self.lengths_s[role] = self._length_s(queue)
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        """Count the time until now for the state so far, then update mean and state."""
        self._seconds[self.state] += now_s - self._since_s
        self._since_s = now_s
        self.mean_s = sum(self.lengths_s) / self._present
        self.state = state_of(self.mean_s, self.limits)
