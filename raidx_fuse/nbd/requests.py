"""Volumes as exports: what each one offers, and how a request is carried out on its volume.

From there a flush is `Array.flush` (array/array.py), then a round of `MemberSet.flush`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from raidx_fuse.errors import NotFastError, RaidxError
from raidx_fuse.members.nbd.protocol.server import Pieces, Request, Server
from raidx_fuse.members.nbd.protocol.wire import (
    STATE_HOLE,
    STATE_ZERO,
    Command,
    CommandFlag,
    Export,
    Flag,
)
from raidx_fuse.pool.volume import Volume

log = logging.getLogger(__name__)

EXTENTS_MAX = 1024  # of one answer; a client asks again from their end on
_STATUS_BYTES_MAX = (1 << 32) - (1 << 16)  # of one extent in an answer without extended headers
PART_BYTES = 1 << 20  # of a request that may have any length
_OFFERS = Flag.FLUSH | Flag.FUA | Flag.MULTI_CONN | Flag.CACHE
_CHANGES = Flag.TRIM | Flag.WRITE_ZEROES | Flag.FAST_ZERO
_FAILURES_LOGGED = 64  # after so many, only at powers of two (as fuse/operations.py)


def exports_of(volumes: Sequence[Volume]) -> dict[str, Export]:
    """Return what the server says of each volume, by name; the only one is also the default, "".

    Several connections are safe: a flush on one covers the writes of all.
    """
    exports = {}
    for volume in volumes:
        flags = _OFFERS | (Flag.READ_ONLY if volume.read_only else _CHANGES)
        exports[volume.name] = Export(volume.name, volume.size_bytes, flags)
    if len(exports) == 1:
        exports[""] = next(iter(exports.values()))
    return exports


class GoneError(RaidxError):
    """The client, or the server, left before a long request ended."""

    errno = errno.ESHUTDOWN


class RequestHandler:
    """Carries out the requests of one client on *volume*; *failures* and *bugs* are counted.

    *is_abandoned* says whether the client waits for no answers any more.
    """

    def __init__(
        self, volume: Volume, link: Server, is_abandoned: Callable[[], bool] = lambda: False
    ) -> None:
        self.failures = self.bugs = 0
        self._volume = volume
        self._link = link
        self._is_abandoned = is_abandoned

    async def answer(self, request: Request) -> Pieces:
        """Carry *request* out; return the reply. Never raises for what went wrong."""
        try:
            return await self._carried_out(request)
        except (NotFastError, GoneError) as error:
            return self._link.failed(request, error.errno, error.message)
        except RaidxError as error:
            self.failures += 1
            if self.failures <= _FAILURES_LOGGED or not self.failures & (self.failures - 1):
                log.error("%s failed (failure %d): %s", self._told(request), self.failures, error)
            return self._link.failed(request, error.errno or errno.EIO, error.message)
        except Exception as error:
            self.bugs += 1
            log.critical("bug: %s", self._told(request), exc_info=error)
            return self._link.failed(request, errno.EIO, "a bug in raidx: see its log")

    def _told(self, request: Request) -> str:
        name = request.command.name.lower()
        return f"{name} of {request.size_bytes} at {request.offset_bytes} of {self._volume.name}"

    async def _carried_out(self, request: Request) -> Pieces:
        volume, link = self._volume, self._link
        command, offset, size = request.command, request.offset_bytes, request.size_bytes
        if offset + size > volume.size_bytes:  # it was made smaller since
            return link.failed(request, errno.EINVAL, "beyond the end of the volume")
        if command is Command.READ:
            if not size:
                return link.done(request)
            volume.count_read(size)
            return link.data(request, await volume.read(offset, size))
        if command is Command.BLOCK_STATUS:
            return link.extents(request, self._extents(offset, size))
        if command is Command.WRITE:
            if size:
                volume.count_write(size)
                await volume.write(offset, request.payload)
        elif command in (Command.TRIM, Command.WRITE_ZEROES):
            fast_only = bool(request.flags & CommandFlag.FAST_ZERO)
            if not request.flags & CommandFlag.NO_HOLE:
                await volume.discard(offset, size, fast_only=fast_only)
            elif fast_only:
                return link.failed(request, errno.EOPNOTSUPP, "places are kept by writing zeros")
            else:
                await self._in_parts(volume.write_zeros, offset, size)
        elif command is Command.CACHE:
            await self._in_parts(lambda *part: volume.read(*part), offset, size)
        if command is Command.FLUSH or (request.flags and request.flags & CommandFlag.FUA):
            await volume.flush()
        return link.done(request)

    async def _in_parts(
        self, do: Callable[[int, int], Awaitable[object]], offset: int, size: int
    ) -> None:
        """Do a request of any length in parts, as long as its client waits for it.

        To cache a range is to read it.
        """
        for at in range(offset, offset + size, PART_BYTES):
            if at > offset:
                await trio.lowlevel.checkpoint()  # others are served in between
            if self._is_abandoned():
                raise GoneError("nobody waits for this request any more")
            await do(at, min(PART_BYTES, offset + size - at))

    def _extents(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Return the (length, state) of a range by the written map: holes read as zeros."""
        extents: list[tuple[int, int]] = []
        for length, written in self._volume.allocation(offset, min(size, _STATUS_BYTES_MAX)):
            state = 0 if written else STATE_HOLE | STATE_ZERO
            if extents and extents[-1][1] == state:
                extents[-1] = extents[-1][0] + length, state
            elif len(extents) == EXTENTS_MAX:
                break
            else:
                extents.append((length, state))
        return extents
