"""The memory that the requests of all clients of a door may take.

A client fills the payload of a write as its bytes come, at most 32 MiB, and keeps it until the
request is carried out. Beyond the limit only the client that has kept memory for longest is read
on: it ends its request, or is dropped as too slow, so the others always come to their turn.
"""

from __future__ import annotations

import trio

MEMORY_BYTES_MAX = 256 << 20


class Budget:
    """Counts the memory of each client, an object; *most_bytes* is the limit for all of them."""

    def __init__(self, most_bytes: int = MEMORY_BYTES_MAX) -> None:
        self.used_bytes = 0
        self._most_bytes = most_bytes
        self._kept: dict[object, int] = {}  # by client; who began first comes first
        self._freed = trio.Event()

    def note(self, client: object, size_bytes: int) -> None:
        before = self._kept.get(client, 0)
        if size_bytes:
            self._kept[client] = size_bytes
        else:
            self._kept.pop(client, None)
        self.used_bytes += size_bytes - before
        if size_bytes < before:
            self._freed.set()
            self._freed = trio.Event()

    def has_room(self, client: object) -> bool:
        """Return whether *client* may be read on."""
        return self.used_bytes < self._most_bytes or next(iter(self._kept), client) is client

    async def wait(self) -> None:
        await self._freed.wait()
