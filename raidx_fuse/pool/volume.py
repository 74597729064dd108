"""A volume: the byte-addressed disk that a front end (FUSE, a test, a simulation) reads and writes.

    front end -> Volume.read(offset, size) -> the array's own read, with no call in between

A volume is one extent of one array, from its first byte, and binds the array's own methods. A
further method call would cost 0.1 us of a 17 us request, a further ``async def`` 0.5 us.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from raidx_fuse.errors import UsageError

Read = Callable[[int, int], Awaitable[bytes | memoryview]]
Write = Callable[[int, bytes], Awaitable[None]]
Flush = Callable[[], Awaitable[None]]
Resizing = Callable[[], AbstractAsyncContextManager[None]]

NAME_BYTES_MAX = 255


class Volume:
    """A named range of bytes.

    Attributes: *name* (the file's name in the mount); *size_bytes*; *read_only*; *read*
    ``(offset_bytes, length_bytes)`` returns exactly that many bytes, valid until the caller's next
    await; *write* ``(offset_bytes, data)`` writes all of *data*; *flush* returns when everything
    written before is durable. All three raise RaidxError, and may complete without suspending.
    Ranges must lie inside the volume: the front end clips or refuses others.
    """

    __slots__ = ("_on_resize", "flush", "name", "read", "read_only", "size_bytes", "write")

    def __init__(
        self,
        name: str,
        size_bytes: int,
        *,
        read: Read,
        write: Write,
        flush: Flush,
        read_only: bool = False,
    ) -> None:
        check_name(name)
        self.name = name
        self.size_bytes = size_bytes
        self.read = read
        self.write = write
        self.flush = flush
        self.read_only = read_only
        self._on_resize: list[Resizing] = []

    def on_resize(self, resizing: Resizing) -> None:
        """Register *resizing*: *size_bytes* changes only inside the context that it returns."""
        self._on_resize.append(resizing)

    async def resize(self, size_bytes: int) -> None:
        """Take a larger size; return when the kernel of every front end knows it.

        A size that is not larger changes nothing.
        """
        if size_bytes <= self.size_bytes:
            return
        async with AsyncExitStack() as front_ends:
            for resizing in self._on_resize:
                await front_ends.enter_async_context(resizing())
            self.size_bytes = size_bytes


def check_name(name: str) -> None:
    """Raise UsageError unless *name* can be a file name."""
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} cannot be a volume's name: it must be a valid file name")
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise UsageError(f"the volume name {name[:20]!r}... is longer than {NAME_BYTES_MAX} bytes")
