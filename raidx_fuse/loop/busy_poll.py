"""Busy polling: a front end that has nothing to do looks for a request before it sleeps.

A caller that waits for each answer sends its next request after 5 to 20 us, while sleeping and
waking cost 30 us. Busy polling doubles its speed if it runs on another processor, and
cpu_latency.py doubles it again. Where polling does not pay (a slow caller, no free processor), the
pauses between two attempts double.

While one front end polls, no other task runs. So it looks for requests of all front ends of the
daemon (`Sources`), and sleeps when one of another has come.
"""

from __future__ import annotations

import os
import select

from raidx_fuse.loop.cpu_latency import CpuLatencyRequest

LOOKS = 150  # 50 us
PAUSE_MAX = 255
READY_MAX = 16  # so many have requests: a front end that is not among them sleeps


class Sources:
    """The file descriptors from which the front ends of one daemon receive requests."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.look = self._epoll.poll

    def add(self, fd: int) -> None:
        """Look at *fd*, too, until it is closed."""
        self._epoll.register(fd, select.EPOLLIN)


class BusyPoll:
    """Polls *sources* for one front end; *cpu_latency*, if set, is told whether that pays."""

    def __init__(self, sources: Sources, cpu_latency: CpuLatencyRequest | None = None) -> None:
        self.cpu_latency = cpu_latency
        self._look = sources.look
        # How many times to sleep at once, now and after the next poll in vain.
        self._pause = 0
        self._backoff = 0
        self._allowed = len(os.sched_getaffinity(0)) > 1

    def sees(self, fd: int) -> bool:
        """Poll for some 50 us, if that may pay; return whether a request has come at *fd*."""
        if not self._allowed:
            return False
        if self._pause:
            self._pause -= 1
            return False
        look = self._look
        for _ in range(LOOKS):
            if ready := look(0, READY_MAX):
                break
        else:
            if self.cpu_latency is not None:
                self.cpu_latency.miss()
            self._backoff = min(2 * self._backoff + 1, PAUSE_MAX)
            self._pause = self._backoff
            return False
        if all(other != fd for other, _ in ready):
            return False
        self._backoff >>= 1
        if self.cpu_latency is not None:
            self.cpu_latency.hit()
        return True
