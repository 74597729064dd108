"""The image of a mounted array, or a device, as the target of a load: real I/O in threads."""

from __future__ import annotations

from typing import Any

from raidx_fuse.errors import SignatureFoundError
from raidx_fuse.format.signature import describe, find_signatures
from raidx_fuse.members.local import LocalMember

THREADS = 64


class Image:
    """The file or device at *path*, for `drive`.

    At most *threads* requests are under way at a time; further requests wait, and the wait counts
    in their response time. Raises MemberError, BusyError.
    """

    def __init__(self, path: str, *, threads: int = THREADS, read_only: bool = False) -> None:
        self._file = LocalMember(path, lock=False, read_only=read_only, depth=threads)
        self.path = path
        self.size_bytes = self._file.size_bytes

    async def read(self, offset_bytes: int, length_bytes: int) -> bytearray:
        """Return *length_bytes* at *offset_bytes*. Raises MemberError."""
        data = bytearray(length_bytes)
        await self._file.readv(offset_bytes, [data])
        return data

    async def write(self, offset_bytes: int, data: Any) -> None:
        """Write *data* at *offset_bytes*. Raises MemberError."""
        await self._file.writev(offset_bytes, [data])

    async def flush(self) -> None:
        """Make all earlier writes durable. Raises MemberError."""
        await self._file.flush()

    async def check_unused(self) -> None:
        """Raise SignatureFoundError if it carries a file system or another known signature."""
        found = await find_signatures(self._file)
        if found:
            raise SignatureFoundError(
                f"{self.path} carries {describe(found)}",
                action="add --overwrite-signature if the load may destroy it",
            )

    def close(self) -> None:
        self._file.close()
