"""A member that is an export of an NBD server: its operations as requests of the protocol.

Connections and their loss are in links.py. The lock of an export (`Lock`), claimed when a member is
opened and kept by heartbeats, has its rules and their reasons in heartbeat.py.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import NoReturn

import trio
from trio import lowlevel

from raidx_fuse.errors import (
    BusyError,
    InUseError,
    MemberError,
    RaidxError,
    Reason,
    TooSmallError,
    UsageError,
)
from raidx_fuse.loop.tasks import TICK_S, rest
from raidx_fuse.members.base import Identity, Member, ReadBuffer, WriteBuffer, host_error
from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.members.nbd.heartbeat import (
    CLAIM_S,
    DROP_S,
    FENCE_S,
    GRACE_S,
    HEARTBEAT_BYTES,
    HEARTBEAT_OFFSET,
    HEARTBEAT_S,
    LOOK_S,
    LOOKS_MAX,
    STALE_S,
    SUPERBLOCK_MAGIC,
    SUPERBLOCK_OFFSETS,
    Heartbeat,
    decode_heartbeat,
    in_use,
)
from raidx_fuse.members.nbd.links import Ask, Call, Connection, Dial, Links
from raidx_fuse.members.nbd.protocol.wire import Command, CommandFlag, Export, Flag, ProtocolError
from raidx_fuse.members.threads import has_no_loop, run_without_loop

_HEAD_BYTES = 4096  # a whole block of any export


class Holder:
    """One process that holds members: *uid* is unique, *text* is its name in messages.

    Its task in the event loop sends the heartbeats of all its members, with the same number, which
    is *round*. So if one member shows that a foreign holder is dead, its others with the same
    number need not be watched as well.
    """

    def __init__(self, uid: bytes, text: str) -> None:
        self.uid = uid
        self.text = text
        self.round = 1
        self.dead: dict[bytes, int] = {}  # holder -> the number of its last heartbeat
        self._locks: list[Lock] = []  # that were verified in this event loop
        self._sends = False

    def heartbeat(self, held: bool = True) -> Heartbeat:
        return Heartbeat(self.uid, self.round, held, self.text)

    def knows_dead(self, heartbeat: Heartbeat) -> bool:
        """Return whether *heartbeat* is of the last rounds of a holder that is known to be dead."""
        last = self.dead.get(heartbeat.holder)
        return last is not None and abs(heartbeat.number - last) <= 1

    def send_for(self, lock: Lock) -> None:
        """Send heartbeats for *lock* until it is released or lost."""
        if lock not in self._locks:
            self._locks.append(lock)
        if not self._sends:
            self._sends = True
            lowlevel.spawn_system_task(self._send)

    async def _send(self) -> None:
        try:
            while self._locks:
                async with trio.open_nursery() as nursery:
                    while self._locks:
                        await rest(HEARTBEAT_S)
                        self._locks = [lock for lock in self._locks if lock.held]
                        self.round += 1
                        for lock in self._locks:
                            nursery.start_soon(lock.heartbeat)
                            nursery.start_soon(lock.guard)
                    nursery.cancel_scope.cancel()
        finally:
            self._sends = False
            self._locks = []


@cache
def _holder_of(pid: int) -> Holder:
    """Return the holder for members that this process, *pid*, opens: unique among all machines and
    boots.
    """
    started = kernel_text("/proc/self/stat").rpartition(")")[2].split()[19]
    unique = f"{kernel_text('/proc/sys/kernel/random/boot_id').strip()} {pid} {started}"
    uid = hashlib.blake2b(unique.encode(), digest_size=16).digest()
    return Holder(uid, f"process {pid} on {socket.gethostname()}")


def _durable(export: Export) -> CommandFlag:
    """Return the flag of a write that is durable when it is answered, 0 if a flush must follow."""
    return CommandFlag.FUA if export.flags & Flag.FUA else CommandFlag(0)


class Lock:
    """The lock of the member *path*, which *holder* wants; *clock* is that of `Pipe.now_s`.

    *drop* is called when nothing may go out any more, with whether to drop only what has not left
    this machine; *ask_again* when it may.
    """

    def __init__(self, path: str, holder: Holder, clock: Callable[[], float]) -> None:
        self._path = path
        self.holder = holder
        self._clock = clock
        self._claimed = False  # our page was written
        self._verified = False  # and was still there after CLAIM_S
        self._heartbeat_s = -inf  # when the last look was begun that a heartbeat followed
        self._looking = self._guarding = False
        self._dropped_s = inf  # the last heartbeat after which all was dropped
        self._heartbeats: list[Call] = []  # that have not ended
        self._late = False  # one that ended without an answer may still be on its way
        self.drop: Callable[[bool], None] = lambda _: None
        self.ask_again: Callable[[], None] = lambda: None
        self._lost: MemberError | None = None
        self._one = trio.Lock()
        self._ask: Ask | None = None

    async def take(self, ask: Ask, export: Export, read_only: bool) -> None:
        """Find out that no other process holds the member, and claim it.

        An export that is no member yet is claimed by the first write only: until then its page may
        be content of others. With *read_only* nothing is written. Raises BusyError, MemberError.
        """
        if await self._is_member(ask) and not read_only:
            await self._claim(ask, export)
        else:
            await self._wait_until_free(ask)

    async def _is_member(self, ask: Ask) -> bool:
        for at in SUPERBLOCK_OFFSETS:
            if (await self._read(ask, at, _HEAD_BYTES)).startswith(SUPERBLOCK_MAGIC):
                return True
        return False

    def sure(self) -> bool:
        """Return whether a write may go out: the lock is verified and its heartbeat is fresh."""
        return self._verified and self._is_fresh() and self._lost is None

    def _is_fresh(self) -> bool:
        """Return whether the last heartbeat is so young that no process can have taken over."""
        return self._clock() - self._heartbeat_s < FENCE_S

    def _note_heartbeat(self, looked_s: float) -> None:
        """Note that a heartbeat followed the look that began at *looked_s*."""
        self._heartbeat_s = max(looked_s, self._heartbeat_s)
        self.ask_again()

    def _too_slow(self) -> MemberError:
        why = f"its server takes more than {CLAIM_S:g} s to answer"
        return MemberError(self._path, "write", -1, errno.ETIMEDOUT, why)

    async def make_sure(self, ask: Ask, export: Export) -> None:
        """Claim the member, or find out that it is still ours. Raises MemberError."""
        async with self._one:
            if self.sure():
                return
            self._check()
            if not self._claimed:
                try:
                    await self._claim(ask, export)
                except BusyError as error:
                    self._lose(error)
            if not self._verified:
                await trio.sleep(CLAIM_S)
            await self._renew(ask)
            self._verified = True
            self.ask_again()
            self._ask = ask
            self.holder.send_for(self)

    async def _wait_until_free(self, ask: Ask) -> float:
        """Return when the look was begun that showed that no other process holds the member.

        Raises BusyError, MemberError.
        """
        own = self.holder
        looked_s, first = self._clock(), decode_heartbeat(await self._read(ask))
        if first is None or not first.held or first.holder == own.uid or own.knows_dead(first):
            return looked_s
        for _ in range(int(STALE_S / LOOK_S)):
            if has_no_loop():
                time.sleep(LOOK_S)  # noqa: ASYNC251  # there is nothing else to run
            else:
                await trio.sleep(LOOK_S)
            looked_s, now = self._clock(), decode_heartbeat(await self._read(ask))
            if now is None or not now.held or now.holder == own.uid:
                return looked_s
            if now != first:
                raise in_use(self._path, now)
        own.dead[first.holder] = first.number
        return looked_s

    async def _claim(self, ask: Ask, export: Export) -> None:
        """Write the first heartbeat, durably, when no other process holds the member.

        Raises BusyError, MemberError.
        """
        fua = _durable(export)
        for _ in range(LOOKS_MAX):
            looked_s = await self._wait_until_free(ask)
            if await self._write(ask, looked_s, flags=fua):
                if not fua and export.flags & Flag.FLUSH:
                    await ask(Call(Command.FLUSH))
                self._claimed = True
                return
        raise self._too_slow()

    async def renew(self, ask: Ask) -> None:
        """Look at the page and write a heartbeat; over a new connection, before anything else.

        Raises MemberError if another process has taken over.
        """
        if self._claimed:
            self._check()
            await self._renew(ask)

    async def _renew(self, ask: Ask) -> None:
        for _ in range(LOOKS_MAX):
            if self._may_be_late() and not self._is_fresh():
                await self._watch(ask)
            looked_s = self._clock()
            await self._look(ask)
            if await self._write(ask, looked_s):
                self._note_heartbeat(looked_s)
                return
        raise self._too_slow()

    async def _look(self, ask: Ask, *, patient: bool = False) -> None:
        """Raise MemberError if the page is not ours any more."""
        found = decode_heartbeat(await self._read(ask, patient=patient))
        if found is None:
            self._lose(InUseError(f"{self._path}: its beat is gone: the export has lost content"))
        held = self._verified and self._clock() - self._heartbeat_s < STALE_S
        if held and found.holder in self.holder.dead:
            return  # a late one of the holder before us, which cannot have come back: ours follows
        if found.holder != self.holder.uid:
            self._lose(in_use(self._path, found))

    async def heartbeat(self) -> None:
        """Look at the page and write it, unless the last look has not ended yet.

        While nothing else is asked, each of the two answers is taken at a tick, when the process
        wakes anyway. What was seen may be a tick old then, which is harmless while law 2 holds.
        """
        if self._looking or self._ask is None:
            return
        ask, looked_s, patient = self._ask, self._clock(), self.sure()
        with suppress(MemberError):  # the next write finds out why (`make_sure`)
            self._looking = True
            try:
                await self._look(ask, patient=patient)
            finally:
                self._looking = False
            if self._may_be_late() and not self._is_fresh():
                return  # law 5: `_renew` finds out
            if await self._write(ask, looked_s, patient=patient):
                self._note_heartbeat(looked_s)

    async def guard(self) -> None:
        """Let nothing go out any more DROP_S after the last heartbeat.

        What is still on this machine is dropped at once. What is under way elsewhere is dropped, as
        far as closing reaches it, if the lock is not renewed within GRACE_S.
        """
        if self._guarding or self._dropped_s == self._heartbeat_s:
            return  # nothing was sent since: `sure` forbids it until the next heartbeat
        self._guarding = True
        try:
            while (left_s := self._heartbeat_s + DROP_S - self._clock()) > 0:
                if left_s > HEARTBEAT_S + TICK_S:
                    return  # the next heartbeat comes before
                await rest(left_s)
            if self._ask is None:
                return
            self.drop(True)
            with trio.move_on_after(GRACE_S), suppress(MemberError):
                await self._renew(self._ask)
            if not self.sure():
                self.drop(False)
                self._dropped_s = self._heartbeat_s
        finally:
            self._guarding = False

    async def _read(
        self,
        ask: Ask,
        offset_bytes: int = HEARTBEAT_OFFSET,
        size_bytes: int = HEARTBEAT_BYTES,
        *,
        patient: bool = False,
    ) -> bytes:
        page = bytearray(size_bytes)
        call = Call(Command.READ, offset_bytes, size_bytes, [page])
        call.patient = patient
        await ask(call)
        return bytes(page)

    async def _write(
        self, ask: Ask, looked_s: float, *, patient: bool = False, flags: int = 0
    ) -> bool:
        """Write a heartbeat after a look at *looked_s*; False if that is too long ago (law 4)."""
        page = self.holder.heartbeat().encode()
        call = Call(Command.WRITE, HEARTBEAT_OFFSET, HEARTBEAT_BYTES, [page], flags)
        call.patient = patient
        call.guard = lambda: self._clock() - looked_s < CLAIM_S or self._is_fresh()
        call.expires = True
        self._heartbeats.append(call)
        try:
            await ask(call)
        except MemberError as error:
            if error.errno == errno.EAGAIN:
                return False
            raise
        finally:
            self._heartbeats.remove(call)
            self._late |= call.sent or not call.done
        return True

    def _may_be_late(self) -> bool:
        """Return whether a heartbeat of ours may be on its way over a lost connection."""
        return self._late or any(call.sent for call in self._heartbeats)

    async def _watch(self, ask: Ask) -> None:
        """Find out whether another one puts its page back (law 5). Raises MemberError if so."""
        for _ in range(int(STALE_S / LOOK_S)):
            await self._look(ask)
            if self._is_fresh():
                return  # another task has watched
            await trio.sleep(LOOK_S)
        self._late = False
        for call in self._heartbeats:
            call.sent = False

    def _lose(self, error: BusyError) -> NoReturn:
        """Never write again. Raises MemberError."""
        why = error.message.removeprefix(f"{self._path}: ")
        self._lost = MemberError(self._path, "write", -1, error.errno, why)
        self.drop(False)
        raise self._lost

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def keep_page(self, offset_bytes: int, data: bytearray | memoryview) -> None:
        """Put our heartbeat into *data* for *offset_bytes*, so that it does not erase the page."""
        at = HEARTBEAT_OFFSET - offset_bytes
        if self._claimed and -HEARTBEAT_BYTES < at < len(data):
            page = self.holder.heartbeat().encode()
            begin, end = max(at, 0), min(at + HEARTBEAT_BYTES, len(data))
            data[begin:end] = page[begin - at : end - at]

    def released(self) -> bytes | None:
        """End the lock; return the page that says so, None if the page is not ours."""
        self._ask = None  # ends the heartbeats
        if not self._claimed or self._lost is not None:
            return None
        self._lost = MemberError(self._path, "write", -1, BusyError.errno, "was closed")
        return self.holder.heartbeat(held=False).encode()

    @property
    def held(self) -> bool:
        return self._ask is not None and self._lost is None


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

    *lock* is true if the member must not be in use elsewhere: then *holder* locks it, unless it is
    opened *read_only*, when other holders are only looked for.
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
            self._lock = Lock(path, holder or _holder_of(os.getpid()), pipe.now_s) if lock else None
            if self._lock is not None:
                ask = Connection(path, pipe).do_alone
                run_without_loop(self._lock.take, ask, export, read_only)
        except BaseException as error:
            pipe.close()
            if isinstance(error, OSError):
                why = "no answer" if isinstance(error, TimeoutError) else error.strerror
                raise host_error(path, "open", error, detail=why or str(error)) from None
            if isinstance(error, ProtocolError):
                raise MemberError(path, "open", -1, errno.EIO, error.message) from None
            raise
        sure = None if self._lock is None else self._lock.sure
        self._links = Links(self, dial, pipe, self._renew, sure)
        if self._lock is not None:
            self._lock.drop, self._lock.ask_again = self._links.drop, self._links.ask_again
        self._fua = CommandFlag(0) if self._export.flags & Flag.FLUSH else CommandFlag.FUA
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
        if export.size_bytes < 2 * HEARTBEAT_OFFSET or export.size_bytes % export.block_bytes:
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
                await self._links.do(Call(Command.READ, begin + at, len(part), [part]))
            at = offset_bytes - begin
            for buffer in buffers:
                buffer[:] = view[at : at + len(buffer)]
                at += len(buffer)
        elif size_bytes:
            await self._links.do(Call(Command.READ, offset_bytes, size_bytes, buffers))

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
            self.closed
            or self._links.refusal is not None
            or (offset_bytes | size_bytes) % export.block_bytes
            or not 0 < size_bytes <= export.payload_bytes_max
            or not 0 <= offset_bytes <= end <= self.size_bytes
        ):
            return False  # `readv` and `writev` say why, or do it in parts
        if not is_write:
            call = Call(Command.READ, offset_bytes, size_bytes, buffers)
            return self._links.begin(call, lambda ended: done(self._links.error_of(ended)))
        if self.read_only or not self._is_sure():
            return False
        data = self._copies.of(buffers, size_bytes)
        if self._lock is not None:
            self._lock.keep_page(offset_bytes, data)
        call = Call(Command.WRITE, offset_bytes, size_bytes, [data], self._fua)

        def ended(call: Call) -> None:
            self._changes += 1
            done(self._links.error_of(call))

        self._changes += 1  # at both ends, as in `_change`
        return self._links.begin(call, ended)

    def _is_sure(self) -> bool:
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
                await self._links.do(Call(Command.READ, begin + at, block, [edge]))
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
        await self._links.change(call)
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
                await self._links.do(Call(Command.FLUSH))
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
        page = HEARTBEAT_OFFSET, HEARTBEAT_OFFSET + HEARTBEAT_BYTES
        if self._lock is None or end <= page[0] or page[1] <= begin:
            await self._zero(begin, end)
        else:  # the heartbeat must be there at any time: `writev` keeps it
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
        if self.closed:
            return
        self.closed = True
        page = None if self._lock is None else self._lock.released()
        connected = bool(self._links.connections)
        self._links.close()
        if page is not None and connected:
            with suppress(OSError, RaidxError):  # else others wait until the heartbeat is stale
                run_without_loop(self._release, page)

    async def _release(self, page: bytes) -> None:
        """Write the last heartbeat over a connection of its own.

        Over one that closes, servers drop requests whose answers they have not sent yet.
        """
        pipe = self._dial()
        try:
            ask, fua = Connection(self.path, pipe).do_alone, _durable(pipe.export)
            await ask(Call(Command.WRITE, HEARTBEAT_OFFSET, HEARTBEAT_BYTES, [page], fua))
            if not fua:
                await ask(Call(Command.FLUSH))
        finally:
            pipe.close()

    def _check(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        if self._links.refusal is not None and not self.closed:
            raise self._links.refusal
        self.refuse(operation, offset_bytes, length_bytes)
