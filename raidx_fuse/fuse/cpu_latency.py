"""Keep idle processors awake while a caller waits for each answer.

A caller with one request at a time sleeps until its answer comes, and with it its processor, if
nothing else runs there. Waking one costs a virtual machine two changes to its host and back: 10 to
20 us here, more than the request itself. Linux has a promise against that, made for just such
programs: while /dev/cpu_dma_latency is open and holds 0, idle processors wait actively. Measured
here: 43 k random reads of 4 KiB a second, one at a time, become 96 k.

The price is that an idle processor looks busy to the host, so the promise is asked for only while
it pays: after `HITS_MIN` requests that came while the daemon looked on (session_loop.py), until
fewer than `HITS_KEPT` came in `LOOK_S`. On machines of more than `PROCESSORS_MAX` it is not asked
for, since it would keep all of them awake for one caller; those rarely are small virtual machines.
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

_HELD = struct.pack("=i", 0)  # microseconds that waking up may take
_RELEASED = struct.pack("=i", 2_000_000_000)  # the kernel's own default

StartTask = Callable[[Callable[[], Awaitable[None]]], None]


class CpuLatencyRequest:
    """Asks for the promise when it pays. *reason* says why it cannot, None if it can.

    *start_task* starts a trio task; *device* is opened at once and held until `close`.
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
        """Note that a request came while its arrival was looked for."""
        self._hits += 1
        if self._hits >= HITS_MIN and not self.held and self._fd >= 0:
            self.held = True
            os.write(self._fd, _HELD)
            self._start_task(self._watch)

    def miss(self) -> None:
        """Note that none came in time."""
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
        """Let processors sleep again."""
        if self.held:
            self.held = False
            self._hits = 0
            os.write(self._fd, _RELEASED)

    def close(self) -> None:
        """Release and close. Closing alone would release too."""
        self.release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
