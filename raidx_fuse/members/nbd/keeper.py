"""Holding the lock of exports: claims when members are opened, beats while they are held.

The rules and their reasons are in beat.py. One task of an event loop beats for all members.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from math import inf

import trio
from trio import lowlevel

from raidx_fuse.errors import BusyError, InUseError, MemberError
from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.members.nbd.beat import (
    BEAT_BYTES,
    BEAT_OFFSET,
    BEAT_S,
    CLAIM_S,
    DROP_S,
    FENCE_S,
    GRACE_S,
    LOOK_S,
    LOOKS_MAX,
    STALE_S,
    SUPERBLOCK_MAGIC,
    SUPERBLOCK_OFFSETS,
    Beat,
    Holder,
    decode_beat,
    in_use,
    waiting,
)
from raidx_fuse.members.nbd.connection import Call
from raidx_fuse.members.nbd.pipe import Pipe
from raidx_fuse.members.nbd.protocol.wire import Command, Export, Flag
from raidx_fuse.tasks import TICK_S, rest

_HEAD_BYTES = 4096  # a whole block of any export

Ask = Callable[[Call, str], Awaitable[None]]


@cache
def _holder_of(pid: int) -> Holder:
    """Return the holder that is the process *pid*: this one. Unique on all machines and boots."""
    started = kernel_text("/proc/self/stat").rpartition(")")[2].split()[19]
    unique = f"{kernel_text('/proc/sys/kernel/random/boot_id').strip()} {pid} {started}"
    uid = hashlib.blake2b(unique.encode(), digest_size=16).digest()
    return Holder(uid, f"process {pid} on {socket.gethostname()}")


def this_process() -> Holder:
    """Return the holder for members that this process opens."""
    return _holder_of(os.getpid())


class Lock:
    """The lock of the member *path*, which *holder* wants; *clock* is that of `Pipe.now_s`."""

    def __init__(self, path: str, holder: Holder, clock: Callable[[], float]) -> None:
        self._path = path
        self.holder = holder
        self._clock = clock
        self._claimed = False  # our page was written
        self._verified = False  # and was still there after CLAIM_S
        self._beat_s = -inf  # when the last look was begun that a beat followed
        self._looking = self._guarding = False
        self._dropped_s = inf  # the last beat after which all was dropped
        self._beats: list[Call] = []  # that have not ended
        self._late = False  # one that ended without an answer may still be on its way
        self._drop: Callable[[bool], None] = lambda _: None
        self._ask_again: Callable[[], None] = lambda: None
        self._lost: MemberError | None = None
        self._one = trio.Lock()
        self._ask: Ask | None = None

    def take_now(
        self, pipe: Pipe, read_only: bool, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Find out that nobody else holds the member, and claim it, blocking.

        An export that is no member yet is claimed by the first write only: until then its page may
        be content of others. With *read_only* nothing is written. Raises BusyError, OSError.
        """
        heads = (pipe.read_now(at, _HEAD_BYTES, self._path) for at in SUPERBLOCK_OFFSETS)
        is_member = any(head.startswith(SUPERBLOCK_MAGIC) for head in heads)
        for _ in range(LOOKS_MAX):
            looked_s = self._clock()
            page = pipe.read_now(BEAT_OFFSET, BEAT_BYTES, self._path)
            looks = waiting(decode_beat(page), self.holder, self._path)
            with suppress(StopIteration):
                next(looks)
                while True:
                    sleep(LOOK_S)
                    looked_s = self._clock()
                    looks.send(pipe.read_now(BEAT_OFFSET, BEAT_BYTES, self._path))
            if read_only or not is_member:
                return
            if self._may_beat(looked_s):
                pipe.write_now(BEAT_OFFSET, self.holder.beat().encode(), self._path)
                self._claimed = True
                return
        raise self._too_slow()

    def guard_by(self, drop: Callable[[bool], None], ask_again: Callable[[], None]) -> None:
        """Have *drop* called when nothing may go out any more, and *ask_again* when it may.

        *drop* takes whether to drop only what has not left this machine.
        """
        self._drop, self._ask_again = drop, ask_again

    def sure(self) -> bool:
        """Return whether a write may go out: we hold the member, and have beaten lately."""
        return self._verified and self._is_fresh() and self._lost is None

    def _may_beat(self, looked_s: float) -> bool:
        """Return whether our page may be written after a look that began at *looked_s*."""
        return self._clock() - looked_s < CLAIM_S or self._is_fresh()

    def _is_fresh(self) -> bool:
        """Return whether the last beat is so young that nobody can have taken over."""
        return self._clock() - self._beat_s < FENCE_S

    def _beaten(self, looked_s: float) -> None:
        """Note that a beat followed the look that began at *looked_s*."""
        self._beat_s = max(looked_s, self._beat_s)
        self._ask_again()

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
                await self._claim(ask)
                if export.flags & Flag.FLUSH:
                    await ask(Call(Command.FLUSH), "flush")
                self._claimed = True
            if not self._verified:
                await trio.sleep(CLAIM_S)
            await self._renew(ask)
            self._verified = True
            self._ask_again()
            self._ask = ask
            keeper().add(self)

    async def _claim(self, ask: Ask) -> None:
        """Write the first beat when nobody holds the member. Raises MemberError."""
        for _ in range(LOOKS_MAX):
            looked_s = self._clock()
            looks = waiting(decode_beat(await self._read(ask)), self.holder, self._path)
            try:
                next(looks)
                while True:
                    await trio.sleep(LOOK_S)
                    looked_s = self._clock()
                    looks.send(await self._read(ask))
            except StopIteration:
                pass
            except BusyError as error:
                self._lose(error)
            if await self._write(ask, looked_s):
                return
        raise self._too_slow()

    async def renew(self, ask: Ask) -> None:
        """Check that the page is ours and beat; over a new connection, before anything else.

        Raises MemberError if another one has taken over.
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
                self._beaten(looked_s)
                return
        raise self._too_slow()

    async def _look(self, ask: Ask, *, patient: bool = False) -> None:
        """Raise MemberError if the page is not ours any more."""
        beat = decode_beat(await self._read(ask, patient=patient))
        if beat is not None and self._is_late(beat):
            return  # ours follows
        if beat is None or beat.holder != self.holder.uid:
            what = "its beat is gone: the export has lost content" if beat is None else beat.text
            self._lose(in_use(self._path, beat) if beat else InUseError(f"{self._path}: {what}"))

    async def beat(self) -> None:
        """Beat once, unless the last look at the page has not ended yet.

        While nothing else is asked, each of the two answers is taken at a tick, so that it wakes
        nobody. What was seen may be a tick old then: that does while the last beat is so young that
        nobody can have taken over (law 2).
        """
        if self._looking or self._ask is None:
            return
        ask, looked_s, patient = self._ask, self._clock(), self.sure()
        with suppress(MemberError):  # who writes finds out why (`make_sure`)
            self._looking = True
            try:
                await self._look(ask, patient=patient)
            finally:
                self._looking = False
            if self._may_be_late() and not self._is_fresh():
                return  # law 5: `_renew` finds out
            if await self._write(ask, looked_s, patient=patient):
                self._beaten(looked_s)

    async def guard(self) -> None:
        """See to it that nothing goes out any more DROP_S after the last beat.

        What is still on this machine is dropped at once. What is under way elsewhere is dropped, as
        far as closing reaches it, if the member is not known to be ours again within GRACE_S.
        """
        if self._guarding or self._dropped_s == self._beat_s:
            return  # nothing was sent since: `sure` forbids it until the next beat
        self._guarding = True
        try:
            while (left_s := self._beat_s + DROP_S - self._clock()) > 0:
                if left_s > BEAT_S + TICK_S:
                    return  # the next beat comes before
                await rest(left_s)
            if self._ask is None:
                return
            self._drop(True)
            with trio.move_on_after(GRACE_S), suppress(MemberError):
                await self._renew(self._ask)
            if not self.sure():
                self._drop(False)
                self._dropped_s = self._beat_s
        finally:
            self._guarding = False

    async def _read(self, ask: Ask, *, patient: bool = False) -> bytes:
        page = bytearray(BEAT_BYTES)
        call = Call(Command.READ, BEAT_OFFSET, BEAT_BYTES, [page])
        call.patient = patient
        await ask(call, "read")
        return bytes(page)

    async def _write(self, ask: Ask, looked_s: float, *, patient: bool = False) -> bool:
        """Beat after a look that began at *looked_s*; False if that is too long ago (law 4)."""
        page = self.holder.beat().encode()
        call = Call(Command.WRITE, BEAT_OFFSET, BEAT_BYTES, [page])
        call.patient = patient
        call.guard, call.expires = (lambda: self._may_beat(looked_s)), True
        self._beats.append(call)
        try:
            await ask(call, "write")
        except MemberError as error:
            if error.errno == errno.EAGAIN:
                return False
            raise
        finally:
            self._beats.remove(call)
            self._late |= call.sent or not call.done
        return True

    def _may_be_late(self) -> bool:
        """Return whether a beat of ours may be on its way over a lost connection."""
        return self._late or any(call.sent for call in self._beats)

    async def _watch(self, ask: Ask) -> None:
        """Find out whether another one puts its page back (law 5). Raises MemberError if so."""
        for _ in range(int(STALE_S / LOOK_S)):
            await self._look(ask)
            if self._is_fresh():
                return  # another task has watched
            await trio.sleep(LOOK_S)
        self._late = False
        for call in self._beats:
            call.sent = False

    def _is_late(self, beat: Beat) -> bool:
        """Return whether *beat* is of who held the member before us, and cannot have come back."""
        held = self._verified and self._clock() - self._beat_s < STALE_S
        return held and beat.holder in self.holder.dead

    def _lose(self, error: BusyError) -> None:
        """Never write again. Raises MemberError."""
        why = error.message.removeprefix(f"{self._path}: ")
        self._lost = MemberError(self._path, "write", -1, error.errno, why)
        self._drop(False)
        raise self._lost

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def keep_page(self, offset_bytes: int, data: bytearray | memoryview) -> None:
        """Put our beat into *data* for *offset_bytes*, so that it does not erase the page."""
        at = BEAT_OFFSET - offset_bytes
        if self._claimed and -BEAT_BYTES < at < len(data):
            page = self.holder.beat().encode()
            begin, end = max(at, 0), min(at + BEAT_BYTES, len(data))
            data[begin:end] = page[begin - at : end - at]

    def released(self) -> bytes | None:
        """Return the page that says that we have left the member, None if it is not ours.

        The lock ends with it.
        """
        self._ask = None  # the keeper then forgets it
        if not self._claimed or self._lost is not None:
            return None
        self._lost = MemberError(self._path, "write", -1, BusyError.errno, "was closed")
        return self.holder.beat(held=False).encode()

    @property
    def held(self) -> bool:
        """Whether it is to be kept."""
        return self._ask is not None and self._lost is None


class Keeper:
    """Beats for all locks that were verified in one event loop."""

    def __init__(self) -> None:
        self._locks: list[Lock] = []
        self._running = False

    def add(self, lock: Lock) -> None:
        """Beat for *lock* from now on."""
        if lock not in self._locks:
            self._locks.append(lock)
        if not self._running:
            self._running = True
            lowlevel.spawn_system_task(self._run)

    async def _run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                while self._locks:
                    await rest(BEAT_S)
                    self._locks = [lock for lock in self._locks if lock.held]
                    for holder in {id(lock.holder): lock.holder for lock in self._locks}.values():
                        holder.round += 1
                    for lock in self._locks:
                        nursery.start_soon(lock.beat)
                        nursery.start_soon(lock.guard)
                nursery.cancel_scope.cancel()
        finally:
            self._running = False


_keeper: lowlevel.RunVar[Keeper] = lowlevel.RunVar("raidx_nbd_keeper")


def keeper() -> Keeper:
    """Return the keeper of the current event loop."""
    try:
        return _keeper.get()
    except LookupError:
        fresh = Keeper()
        _keeper.set(fresh)
        return fresh
