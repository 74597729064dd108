"""Busy polling: a front end that has nothing to do looks for a request before it sleeps.

A caller that waits for each answer sends its next request after 5 to 20 us, while sleeping and
waking cost 30 us. Busy polling doubles its speed if it runs on another processor. Where polling
does not pay (a slow caller, no free processor), the pauses between two attempts double. While one
front end polls, no other task runs. So it looks for requests of all front ends of the daemon
(`Sources`), and sleeps when one of another has come.

The CPU latency request doubles the speed again. The processor of such a caller goes idle if nothing
else runs there. Waking a processor costs a virtual machine two exits to its host: 10 to 20 us here,
more than the request itself. Linux has an interface against that (PM QoS): while
/dev/cpu_dma_latency is open and holds 0, idle processors poll instead of sleeping. Measured here:
43 k random reads of 4 KiB per second, one at a time, become 96 k. The price is that an idle
processor looks busy to the host. The request is therefore made only while it pays: after `HITS_MIN`
requests that arrived during busy polling, until fewer than `HITS_KEPT` arrived in `LOOK_S`. It is
not made on machines with more than `PROCESSORS_MAX` processors, where it would keep all of them
awake for one caller.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Awaitable, Callable

import trio

LOOKS = 150  # 50 us
PAUSE_MAX = 255
READY_MAX = 16  # so many have requests: a front end that is not among them sleeps

DEVICE = "/dev/cpu_dma_latency"
HITS_MIN = 32
HITS_KEPT = 4
LOOK_S = 0.005
PROCESSORS_MAX = 16

_HELD = struct.pack("=i", 0)  # permitted wake-up latency in microseconds
_RELEASED = struct.pack("=i", 2_000_000_000)  # the kernel's own default

StartTask = Callable[[Callable[[], Awaitable[None]]], None]


class CpuLatencyRequest:
    """Holds the CPU latency request while it pays; *reason* says why it cannot, else None.

    *start_task* starts a trio task. *device* is opened immediately and kept open until `close`.
    """

    def __init__(self, start_task: StartTask, device: str = DEVICE) -> None:
        self.held = False
        self.reason: str | None = None
        self._start_task = start_task
        self._hits = 0
        self._fd = -1
        if (os.cpu_count() or 1) > PROCESSORS_MAX:
            self.reason = f"not on machines of more than {PROCESSORS_MAX} processors"
            return
        try:
            self._fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            self.reason = "needs root"
        except OSError:
            self.reason = f"this system has no {device}"

    def hit(self) -> None:
        """Count a request that arrived during busy polling."""
        self._hits += 1
        if self._hits >= HITS_MIN and not self.held and self._fd >= 0:
            self.held = True
            os.write(self._fd, _HELD)
            self._start_task(self._watch)

    def miss(self) -> None:
        """Count a busy poll during which no request arrived."""
        if not self.held:
            self._hits = 0

    async def _watch(self) -> None:
        try:
            hits = 0
            while self._hits >= hits + HITS_KEPT:
                hits = self._hits
                await trio.sleep(LOOK_S)
        finally:
            self.release()

    def release(self) -> None:
        """Withdraw the request: processors may sleep again."""
        if self.held:
            self.held = False
            self._hits = 0
            os.write(self._fd, _RELEASED)

    def close(self) -> None:
        """Withdraw the request and close the device. Closing alone would withdraw it too."""
        self.release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Sources:
    """The file descriptors from which the front ends of one daemon receive requests."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.look = self._epoll.poll

    def add(self, fd: int) -> None:
        """Look at *fd*, too, until it is closed."""
        self._epoll.register(fd, select.EPOLLIN)


class BusyPoll:
    """Polls *sources* for one front end; *cpu_latency* learns whether that pays."""

    def __init__(self, sources: Sources, cpu_latency: CpuLatencyRequest) -> None:
        self.sources = sources
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
            self.cpu_latency.miss()
            self._backoff = min(2 * self._backoff + 1, PAUSE_MAX)
            self._pause = self._backoff
            return False
        if all(other != fd for other, _ in ready):
            return False
        self._backoff >>= 1
        self.cpu_latency.hit()
        return True
