"""A member that is an export of an NBD server: its operations as requests of the protocol.

Connections and their loss are in links.py, the lock in beat.py and keeper.py.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from raidx_fuse.errors import MemberError, RaidxError, Reason, TooSmallError, UsageError
from raidx_fuse.members.base import Identity, Member, ReadBuffer, WriteBuffer
from raidx_fuse.members.nbd.beat import BEAT_BYTES, BEAT_OFFSET, Holder
from raidx_fuse.members.nbd.connection import Call
from raidx_fuse.members.nbd.keeper import Lock, this_process
from raidx_fuse.members.nbd.links import Ask, Dial, Links
from raidx_fuse.members.nbd.protocol.wire import Command, CommandFlag, Flag, ProtocolError

LARGE_BYTES = 32 << 10  # smaller ones lie in the heap
_MAP_BYTES = 8 << 20
_PAGE_BYTES = 4096
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
DEPTH = 16  # requests under way for a queue
BLOCK_BYTES_MAX = 4096
UNFLUSHED_BYTES_MAX = 64 << 20
ZEROES_BYTES_MAX = 1 << 30  # of one request to write zeroes


class Copies:
    """Makes copies one behind the other in maps; a map lives as long as any copy in it.

    They are many and live long, so their memory is fresh ever again, and the faults on its pages
    cost four times as much as the copying: 110 us for 340 KiB, of which huge pages leave 26.
    """

    def __init__(self) -> None:
        self._map: memoryview = memoryview(b"")
        self._at = 0

    def of(self, buffers: Sequence[ReadBuffer], size_bytes: int) -> bytearray | memoryview:
        """Return a writable copy of *buffers*, *size_bytes* in all."""
        if not LARGE_BYTES <= size_bytes <= _MAP_BYTES:
            return bytearray().join(buffers)
        at = self._at
        if at + size_bytes > len(self._map):
            fresh = mmap.mmap(-1, _MAP_BYTES, flags=_OWN)
            with suppress(OSError):  # a kernel without huge pages
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._map, at = memoryview(fresh), 0
        self._at = at + -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
        whole = self._map[at : at + size_bytes]
        at = 0
        for buffer in buffers:
            end = at + len(buffer)
            whole[at:end] = buffer
            at = end
        return whole


class NbdMember(Member):
    """The export behind *dial*, which connects; *path* is its URI.

    *lock* is true if the member must not be in use elsewhere: then *holder* beats on it, unless it
    is opened *read_only*, when other holders are only looked for.
    """

    kind = "nbd"
    begins = True

    def __init__(
        self,
        path: str,
        dial: Dial,
        *,
        identity: Identity | None = None,
        read_only: bool = False,
        lock: bool = True,
        holder: Holder | None = None,
    ) -> None:
        """Connect. Raises MemberError, UsageError, BusyError."""
        self.path = path
        self.identity = identity
        self.read_only = read_only
        self.depth = DEPTH
        self._dial = dial
        pipe = dial()
        try:
            self._export = export = pipe.export
            self._check_export()
            self.size_bytes = export.size_bytes
            self._lock = Lock(path, holder or this_process(), pipe.now_s) if lock else None
            if self._lock is not None:
                self._lock.take_now(pipe, read_only)
        except BaseException as error:
            pipe.close()
            pipe.forget()
            if isinstance(error, OSError):
                number = error.errno or errno.EIO
                why = "no answer" if isinstance(error, TimeoutError) else error.strerror
                raise MemberError(path, "open", -1, number, why or str(error)) from None
            if isinstance(error, ProtocolError):
                raise MemberError(path, "open", -1, errno.EIO, error.message) from None
            raise
        sure = None if self._lock is None else self._lock.sure
        self._links = Links(self, dial, pipe, self._renew, sure)
        if self._lock is not None:
            self._lock.guard_by(self._links.drop, self._links.ask_again)
        self._fua = CommandFlag(0) if self._export.flags & Flag.FLUSH else CommandFlag.FUA
        self._closed = False
        self._copies = Copies()
        self._edges = trio.Lock()  # writes of parts of blocks
        self._changes = 0
        self._flushed_changes = -1
        self._flush_failed = False

    async def _renew(self, ask: Ask) -> None:
        if self._lock is not None:
            await self._lock.renew(ask)

    def _check_export(self) -> None:
        export = self._export
        if export.flags & Flag.READ_ONLY and not self.read_only:
            raise MemberError(self.path, "open", -1, errno.EROFS, "the export is read-only")
        if export.block_bytes > BLOCK_BYTES_MAX:
            raise UsageError(
                f"{self.path}: its blocks of {export.block_bytes} bytes are too large",
                action=f"have the server take blocks of {BLOCK_BYTES_MAX} bytes or less",
                reason=Reason.SERVER_REFUSED,
            )
        if export.size_bytes < 2 * BEAT_OFFSET or export.size_bytes % export.block_bytes:
            raise TooSmallError(
                f"{self.path}: its {export.size_bytes} bytes are too small, or no whole blocks",
                action="name a larger export",
            )
        if not export.flags & (Flag.FLUSH | Flag.FUA | Flag.READ_ONLY):
            raise UsageError(
                f"{self.path}: the server cannot flush, so nothing on it is ever safe",
                action="switch it on, for nbd-server: flush = true",
                reason=Reason.SERVER_REFUSED,
            )

    # -- operations ----------------------------------------------------------------------------

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        size_bytes = sum(map(len, buffers))
        self._check("read", offset_bytes, size_bytes)
        block, most = self._export.block_bytes, self._export.payload_bytes_max
        if (offset_bytes | size_bytes) % block or size_bytes > most:
            begin = offset_bytes // block * block
            end = -(-(offset_bytes + size_bytes) // block) * block
            whole = bytearray(end - begin)
            view = memoryview(whole)
            for at in range(0, len(whole), most):
                part = view[at : at + most]
                await self._links.do(Call(Command.READ, begin + at, len(part), [part]), "read")
            at = offset_bytes - begin
            for buffer in buffers:
                buffer[:] = view[at : at + len(buffer)]
                at += len(buffer)
        elif size_bytes:
            await self._links.do(Call(Command.READ, offset_bytes, size_bytes, buffers), "read")

    def begin(
        self,
        is_write: bool,
        offset_bytes: int,
        buffers: Sequence[ReadBuffer],
        done: Callable[[MemberError | None], None],
    ) -> bool:
        size_bytes = sum(map(len, buffers))
        export, end = self._export, offset_bytes + size_bytes
        if (
            self._closed
            or self._links.refusal is not None
            or (offset_bytes | size_bytes) % export.block_bytes
            or not 0 < size_bytes <= export.payload_bytes_max
            or not 0 <= offset_bytes <= end <= self.size_bytes
        ):
            return False  # `readv` and `writev` say why, or do it in parts
        if not is_write:
            call = Call(Command.READ, offset_bytes, size_bytes, buffers)
            return self._links.begin(call, lambda ended: done(self._links.error_of(ended, "read")))
        if self.read_only or not self._is_sure():
            return False
        data = self._copies.of(buffers, size_bytes)
        if self._lock is not None:
            self._lock.keep_page(offset_bytes, data)
        call = Call(Command.WRITE, offset_bytes, size_bytes, [data], self._fua)

        def ended(call: Call) -> None:
            self._changes += 1
            done(self._links.error_of(call, "write"))

        self._changes += 1  # at both ends, as in `_change`
        return self._links.begin(call, ended)

    def _is_sure(self) -> bool:
        """Return whether a write may go out now."""
        sure = self._lock is None or self._lock.sure()
        return sure and self._links.unflushed.size_bytes <= UNFLUSHED_BYTES_MAX

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        # The copy is kept until a flush, see links.py, so the caller's buffers are free.
        data = self._copies.of(buffers, sum(map(len, buffers)))
        self._check("write", offset_bytes, len(data))
        if not data:
            return
        block = self._export.block_bytes
        if (offset_bytes | len(data)) % block == 0:
            await self._write(offset_bytes, data)
            return
        async with self._edges:
            begin = offset_bytes // block * block
            end = -(-(offset_bytes + len(data)) // block) * block
            whole = bytearray(end - begin)
            for at in {0, len(whole) - block}:
                edge = memoryview(whole)[at : at + block]
                await self._links.do(Call(Command.READ, begin + at, block, [edge]), "read")
            whole[offset_bytes - begin : offset_bytes - begin + len(data)] = data
            await self._write(begin, whole)

    async def _write(self, offset_bytes: int, data: bytearray | memoryview) -> None:
        await self._may_write()
        if self._lock is not None:
            self._lock.keep_page(offset_bytes, data)
        most, view = self._export.payload_bytes_max, memoryview(data)
        for at in range(0, len(data), most):
            part = view[at : at + most]
            call = Call(Command.WRITE, offset_bytes + at, len(part), [part], self._fua)
            await self._change(call)

    async def _may_write(self) -> None:
        """Return when the member is known to be ours. Raises MemberError."""
        if self._lock is not None and not self._lock.sure():
            await self._lock.make_sure(self._links.do, self._export)
        if self._links.unflushed.size_bytes > UNFLUSHED_BYTES_MAX:
            await self.flush()

    async def _change(self, call: Call) -> None:
        self._changes += 1
        await self._links.change(call, "write")
        self._changes += 1  # at both ends: a flush in between does not cover it

    async def flush(self) -> None:
        self._check("flush", -1, 0)
        changes = self._changes
        if self.read_only or self._flushed_changes == changes:
            return
        if self._flush_failed:
            raise MemberError(self.path, "flush", -1, errno.EIO, "an earlier flush lost data")
        if self._export.flags & Flag.FLUSH:
            mark = self._links.unflushed.mark()
            try:
                await self._links.do(Call(Command.FLUSH), "flush")
            except MemberError:
                # The server's system may have dropped what it could not write, and forget it: a
                # second flush would succeed (as in local.py).
                self._flush_failed = True
                raise
            self._links.unflushed.flushed(mark)
        self._flushed_changes = changes

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        """Make a range read as zero by WRITE_ZEROES, which may free its space on the server."""
        self._check("write", offset_bytes, length_bytes)
        if not self._export.flags & Flag.WRITE_ZEROES or not length_bytes:
            return not length_bytes
        block = self._export.block_bytes
        begin = -(-offset_bytes // block) * block
        end = (offset_bytes + length_bytes) // block * block
        if begin >= end:
            await self.writev(offset_bytes, [bytes(length_bytes)])
            return True
        if offset_bytes < begin:
            await self.writev(offset_bytes, [bytes(begin - offset_bytes)])
        if end < offset_bytes + length_bytes:
            await self.writev(end, [bytes(offset_bytes + length_bytes - end)])
        await self._may_write()
        page = BEAT_OFFSET, BEAT_OFFSET + BEAT_BYTES
        if self._lock is None or end <= page[0] or page[1] <= begin:
            await self._zero(begin, end)
        else:  # the beat must be there at any time: `writev` keeps it
            await self._zero(begin, page[0])
            await self.writev(max(begin, page[0]), [bytes(min(end, page[1]) - max(begin, page[0]))])
            await self._zero(page[1], end)
        return True

    async def _zero(self, begin: int, end: int) -> None:
        for at in range(begin, end, ZEROES_BYTES_MAX):
            size_bytes = min(ZEROES_BYTES_MAX, end - at)
            await self._change(Call(Command.WRITE_ZEROES, at, size_bytes, (), self._fua))

    def note_watched(self) -> None:
        self._links.watched = True

    def is_settled(self) -> bool:
        return not self.overdue and not self._links.unsettled

    def close(self) -> None:
        """Say good-bye, and release the lock if the server is there."""
        if self._closed:
            return
        self._closed = True
        page = None if self._lock is None else self._lock.released()
        connected = bool(self._links.connections)
        self._links.close()
        if page is not None and connected:
            with suppress(OSError, RaidxError):  # else others wait until the beat is stale
                self._release(page)

    def _release(self, page: bytes) -> None:
        """Write the last beat, blocking, over a connection of its own.

        Over one that closes, servers drop requests whose answers they have not sent yet.
        """
        pipe = self._dial()
        try:
            pipe.write_now(BEAT_OFFSET, page, self.path)
        finally:
            pipe.close()
            pipe.forget()

    def _check(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        if self._closed:
            raise MemberError(self.path, operation, offset_bytes, errno.ENODEV, "member is closed")
        if self._links.refusal is not None:
            raise self._links.refusal
        if operation == "write" and self.read_only:
            raise MemberError(self.path, operation, offset_bytes, errno.EROFS, "opened read-only")
        if operation != "flush":
            self.check_range(operation, offset_bytes, length_bytes)
