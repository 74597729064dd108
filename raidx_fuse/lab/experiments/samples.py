"""Samples of the members in each section of an experiment: operations and mean queue by role."""

from __future__ import annotations

from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.members.simulated.virtual_time import sleep_until
from raidx_fuse.store.queue import MemberQueue


class Samples:
    """Samples the member queues of *array* every *section_s* seconds (0: never)."""

    def __init__(self, array: Array, section_s: float) -> None:
        self._array = array
        self._section_s = section_s
        self._rows: list[dict[str, list[float]]] = []
        self._last: dict[MemberQueue, tuple[int, float]] = {}
        self._last_s = trio.current_time()
        if section_s > 0:
            self._look()
            self._rows.clear()

    async def take(self) -> None:
        """Take a sample at the end of each section, until cancelled (a background task)."""
        if self._section_s <= 0:
            return
        start_s = trio.current_time()
        for number in range(1, 1 << 62):
            await sleep_until(start_s + number * self._section_s)
            self._look()

    def finish(self) -> None:
        """Take the sample of the last section, which ends with the experiment."""
        if self._section_s > 0 and trio.current_time() > self._last_s:
            self._look()

    def _look(self) -> None:
        elapsed_s = max(trio.current_time() - self._last_s, 1e-9)
        self._last_s = trio.current_time()
        operations: list[float] = []
        queues: list[float] = []
        for queue in self._array.member_set.queues:
            if queue is None:
                operations.append(0)
                queues.append(0.0)
                continue
            before = self._last.get(queue, (0, 0.0))
            now = (queue.reads + queue.writes, queue.queue_area)
            self._last[queue] = now
            operations.append(now[0] - before[0])
            queues.append(float(f"{(now[1] - before[1]) / elapsed_s:.6g}"))
        self._rows.append({"member_operations": operations, "member_queues": queues})

    def beside(self, sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return *sections* (of arrivals), each with the sample of the same time span."""
        rows = [*self._rows, *({} for _ in sections)]
        return [section | row for section, row in zip(sections, rows, strict=False)]
