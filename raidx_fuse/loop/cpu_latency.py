"""The CPU latency request: keep idle processors awake while a caller waits for each answer.

A caller with one request at a time sleeps until its answer comes, and its processor goes idle if
nothing else runs there. Waking a processor costs a virtual machine two exits to its host: 10 to 20
us here, more than the request itself. Linux has an interface against that (PM QoS): while
/dev/cpu_dma_latency is open and holds 0, idle processors poll instead of sleeping. Measured here:
43 k random reads of 4 KiB per second, one at a time, become 96 k.

The price is that an idle processor looks busy to the host. The request is therefore made only while
it pays: after `HITS_MIN` requests that arrived during busy polling (busy_poll.py), until fewer
than `HITS_KEPT` arrived in `LOOK_S`. It is not made on machines with more than `PROCESSORS_MAX`
processors, where it would keep all of them awake for one caller.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable

import trio

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
