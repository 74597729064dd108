"""A disk's volatile write cache: a write ends when it is in the cache.

The disk writes the cache's content to the medium whenever it has nothing else to do: the next piece
upwards of the head, then from the lowest again ("cscan"), or the oldest ("fifo"). A piece that is
written again before that is written once. A read waits for the one piece that is being written; a
write that finds the cache full waits for room; a flush writes everything. All of it is computed
when the next request comes, so the cache needs no task.
"""

from __future__ import annotations

from raidx_fuse.members.simulated.service import ServiceQueue

_MB = 1e6


class WriteCache:
    """The write cache of the device of *queue*, of the size that its model says."""

    def __init__(self, queue: ServiceQueue) -> None:
        self._queue = queue
        self._size_bytes = queue.model.cache_mb * _MB
        self._pieces: dict[int, tuple[int, float]] = {}  # offset -> length, since when
        self._used_bytes = 0
        self._access_s = queue.model.write_access_ms / 1e3
        rate = queue.model.write_mb_s * _MB
        self._byte_s = 1 / rate if rate else 0.0

    def submit(self, now_s: float, is_write: bool, offset_bytes: int, length_bytes: int) -> float:
        """Accept an operation that arrives at *now_s*; return the time when it completes."""
        self._write_back(now_s)
        held = self._pieces.get(offset_bytes)
        if not is_write:
            if held is not None and held[0] >= length_bytes:
                return now_s + self._access_s + length_bytes * self._byte_s
            return self._queue.submit(now_s, False, offset_bytes, length_bytes)
        if held is not None:
            del self._pieces[offset_bytes]
            self._used_bytes -= held[0]
            length_bytes = max(length_bytes, held[0])
        room_s = now_s
        while self._pieces and self._used_bytes + length_bytes > self._size_bytes:
            room_s = self._write_one(now_s)
        self._pieces[offset_bytes] = (length_bytes, room_s)
        self._used_bytes += length_bytes
        return room_s + self._access_s + length_bytes * self._byte_s

    def flush(self, now_s: float) -> float:
        """Accept a flush; return the time when it completes."""
        self._write_back(now_s)
        while self._pieces:
            self._write_one(now_s)
        return self._queue.flush(now_s)

    def _write_back(self, until_s: float) -> None:
        """Write what an idle medium has begun to write before *until_s*."""
        while self._pieces and self._queue.free_s() < until_s:
            _, since_s = self._pieces[self._next()]
            if since_s >= until_s:
                return
            self._write_one(since_s)

    def _write_one(self, from_s: float) -> float:
        """Write the next piece to the medium, not before *from_s*; return when it is there."""
        offset = self._next()
        length, since_s = self._pieces.pop(offset)
        self._used_bytes -= length
        return self._queue.submit(max(from_s, since_s), True, offset, length)

    def _next(self) -> int:
        if self._queue.model.order == "fifo":
            return next(iter(self._pieces))
        head = self._queue.head_bytes
        return min(self._pieces, key=lambda offset: (offset < head, offset))
