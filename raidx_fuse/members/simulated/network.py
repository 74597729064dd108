"""Members behind a modelled network: one link that all share, and servers that go and come back.

    request  |-- waits for the link --|= its bytes =|~ latency ~|
    server                                                      |-- the member's own time --|
    reply                                                        then the same way back

A read is a short message and a long reply, a write the other way round. Messages use the link one
after the other: with *duplex* those to the servers and those from them have one link each. What
each waits for is a queue of one server with the link's bandwidth, as the network queue of the RAIDX
paper. Latency and jitter come on top, and overlap.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.simulated.virtual_time import sleep_until

HEAD_BYTES = 32  # of a request or reply without data, as in NBD
DEPTH = 16  # requests under way at one server
_MB = 1e6


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """A network: *mb_s* is the bandwidth in 10^6 bytes a second, 0 for no limit.

    *latency_ms* is that of one message, one way; up to *jitter_ms* is added to it, drawn for each.
    """

    mb_s: float = 0.0
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    duplex: bool = True

    def check(self) -> None:
        """Raise UsageError for numbers that no network has."""
        for name in ("mb_s", "latency_ms", "jitter_ms"):
            value = getattr(self, name)
            if not 0 <= value < 1e9:
                raise UsageError(f"{name} of a network cannot be {value}")


class Link:
    """The link of all members of an array, deterministic by *seed*.

    *carried_bytes* and *busy_s* count what it has carried, both ways.
    """

    def __init__(self, model: NetworkModel, seed: int) -> None:
        model.check()
        self.carried_bytes = 0
        self.busy_s = 0.0
        self._model = model
        self._random = random.Random(seed)
        self._free_s = [0.0, 0.0]
        self._byte_s = 1 / (model.mb_s * _MB) if model.mb_s else 0.0

    def send(self, now_s: float, size_bytes: int, *, back: bool) -> float:
        """Accept a message at *now_s*, *back* from a server; return when it arrives."""
        model = self._model
        way = int(back and model.duplex)
        took_s = size_bytes * self._byte_s
        self._free_s[way] = end_s = max(now_s, self._free_s[way]) + took_s
        self.carried_bytes += size_bytes
        self.busy_s += took_s
        return end_s + (model.latency_ms + model.jitter_ms * self._random.random()) / 1e3


class NetworkMember(WrapperMember):
    """*inner* on a server of its own behind *link*."""

    def __init__(self, inner: Member, link: Link) -> None:
        super().__init__(inner)
        self.kind = "network"
        self.depth = DEPTH
        self._link = link
        self._back_s = 0.0

    def lose(self, until_s: float) -> None:
        """Let the server answer nothing until *until_s*; then it carries out what it was sent."""
        self._back_s = max(self._back_s, until_s)

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        return False

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return False

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        await self._go(0)
        if not self.inner.try_readv(offset_bytes, buffers):
            await self.inner.readv(offset_bytes, buffers)
        await self._come_back(sum(map(len, buffers)))

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        await self._go(sum(map(len, buffers)))
        if not self.inner.try_writev(offset_bytes, buffers):
            await self.inner.writev(offset_bytes, buffers)
        await self._come_back(0)

    async def flush(self) -> None:
        await self._go(0)
        await self.inner.flush()
        await self._come_back(0)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        await self._go(0)
        done = await self.inner.punch(offset_bytes, length_bytes)
        await self._come_back(0)
        return done

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return None

    async def _go(self, size_bytes: int) -> None:
        """Return when a request with *size_bytes* of data is at the server, which is there."""
        now_s = trio.current_time()
        await sleep_until(self._link.send(now_s, HEAD_BYTES + size_bytes, back=False))
        while trio.current_time() < self._back_s:
            await sleep_until(self._back_s)

    async def _come_back(self, size_bytes: int) -> None:
        now_s = trio.current_time()
        await sleep_until(self._link.send(now_s, HEAD_BYTES + size_bytes, back=True))
