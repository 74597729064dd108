"""Many small writes in flight: they share log records, and a kill loses none that was acknowledged.

Sixteen requests at a time: most are writes of 4 KiB, some of them with O_SYNC, some of 1 MiB, and
between them reads (checked) and fsync. Each 4 KiB says which block it is and how often it was
written.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.mount import aio
from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]

BLOCK_BYTES = 4096
LARGE_BLOCKS = 256
SECTOR_BYTES = 512
BLOCKS = 32 * LARGE_BLOCKS
DEPTH = 16


def content(block: int, version: int) -> bytes:
    """Return what *block* holds after so many writes."""
    return (block.to_bytes(4, "little") + version.to_bytes(4, "little")) * (BLOCK_BYTES // 8)


class Load:
    """The requests to *array*; *versions* are those answered, *begun* those sent, by block."""

    def __init__(self, array: RealArray, seed: int) -> None:
        self.array = array
        self.random = random.Random(seed)
        self.versions = [0] * BLOCKS
        self.begun = [0] * BLOCKS
        self.small = self.answered = 0

    def fill(self) -> None:
        with self.array.image.open("r+b", buffering=0) as image:
            for first in range(0, BLOCKS, LARGE_BLOCKS):
                many = range(first, first + LARGE_BLOCKS)
                image.write(b"".join(content(block, 0) for block in many))

    def run(self, requests: int, kill: Callable[[], None] | None = None) -> None:
        """Send so many; with *kill* call it then, while the last ones are under way."""
        flags = os.O_RDWR | os.O_DIRECT
        files = [os.open(self.array.image, flags), os.open(self.array.image, flags | os.O_SYNC)]
        queue = aio.Aio(DEPTH, LARGE_BLOCKS * BLOCK_BYTES)
        free, under_way = set(range(DEPTH)), dict[int, tuple[int, range]]()
        sent = 0
        killed = False
        try:
            while sent < requests or under_way:
                while free and sent < requests:
                    sent += 1
                    tag = free.pop()
                    under_way[tag] = self._send(queue, tag, files, under_way)
                if sent == requests and kill is not None:
                    kill()
                    kill, killed = None, True
                for tag, result in queue.wait():
                    self._over(result, queue.buffers[tag], *under_way.pop(tag), lost=killed)
                    free.add(tag)
        finally:
            queue.close()
            for file in files:
                with suppress(OSError):  # of a daemon that was killed
                    os.close(file)

    def _send(
        self, queue: aio.Aio, tag: int, files: list[int], under_way: dict[int, Any]
    ) -> tuple[int, range]:
        draw = self.random.random()
        if draw < 0.004:
            queue.submit(tag, aio.FSYNC, files[0], 0, 0)
            return aio.FSYNC, range(0)
        length = LARGE_BLOCKS if draw < 0.01 else 1
        busy = [blocks for _, blocks in under_way.values()]
        while True:
            first = self.random.randrange(BLOCKS // length) * length
            blocks = range(first, first + length)
            if not any(first < other.stop and other.start < blocks.stop for other in busy):
                break
        kind = aio.READ if draw > 0.85 else aio.WRITE
        if kind == aio.WRITE:
            self.small += length == 1
            for block in blocks:
                self.begun[block] += 1
            data = b"".join(content(block, self.begun[block]) for block in blocks)
            queue.buffers[tag][: len(data)] = data
        file = files[0.01 <= draw < 0.02]
        queue.submit(tag, kind, file, first * BLOCK_BYTES, length * BLOCK_BYTES)
        return kind, blocks

    def _over(self, result: int, data: Any, kind: int, blocks: range, *, lost: bool) -> None:
        if lost and result < 0:
            return
        assert result == len(blocks) * BLOCK_BYTES, (kind, blocks, result)
        self.answered += 1
        if kind == aio.READ:
            assert data[:result] == b"".join(content(b, self.versions[b]) for b in blocks)
        for block in blocks:
            if kind == aio.WRITE:
                self.versions[block] = self.begun[block]

    def check(self) -> None:
        """Each sector is as it was answered, or as it was sent when the daemon was killed."""
        found = self.array.read(BLOCKS * BLOCK_BYTES)
        torn = []
        for block in range(BLOCKS):
            has = found[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            if has == content(block, self.begun[block]):
                self.versions[block] = self.begun[block]
            elif has != content(block, self.versions[block]):
                may_be = {content(block, v[block])[:8] for v in (self.versions, self.begun)}
                sectors = [
                    has[at : at + SECTOR_BYTES] for at in range(0, BLOCK_BYTES, SECTOR_BYTES)
                ]
                for number, sector in enumerate(sectors):
                    assert sector[:8] in may_be, (block, number)
                    assert sector == sector[:8] * (SECTOR_BYTES // 8), (block, number)
                torn.append(block)
        with self.array.image.open("r+b", buffering=0) as image:
            for block in torn:
                image.seek(block * BLOCK_BYTES)
                image.write(content(block, self.begun[block]))
                self.versions[block] = self.begun[block]

    def records(self) -> float:
        """Return how many records the log got: those members write more that hold it."""
        writes = [member["writes"] for member in self.array.call("stats")["members"]]
        return float(sum(writes[:2]) - sum(writes[2:])) / 2


def test_small_writes_share_records_and_none_is_lost(array: RealArray) -> None:
    reason = aio.why_not()
    if reason is not None:
        pytest.skip(reason)
    array.create("raid5", 4, "256MiB").mount()
    array.raidx("set", "ARRAY", "journal=partial")
    load = Load(array, seed=1)
    load.fill()
    shares = []
    for _ in range(3):  # on a busy machine requests come one by one for a while: the best counts
        records, small = load.records(), load.small
        load.run(2000)
        shares.append((load.records() - records) / (load.small - small))
    assert min(shares) < 0.7, shares
    load.check()
    for _ in range(2):
        answered = load.answered
        pid = array.daemon_pid()
        load.run(1500, kill=lambda number=pid: os.kill(number, signal.SIGKILL))  # type: ignore[misc]
        assert load.answered - answered > 1000
        array.await_end(pid)
        array.clear()
        array.mount()
        load.check()
    array.wait_jobs()
    array.scrub()
    array.unmount()
