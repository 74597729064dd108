"""The connections of one member: which call goes where, reconnection, and what is sent again.

Calls that find no connection wait until there is one. Meanwhile connecting is tried again and again
(RETRY_S, doubled up to RETRY_MAX_S). The limit is that of the queue (``io.timeout_s``), which
excludes a member that does not answer, or PATIENCE_S where there is no queue; a call under which
connections were lost, or nothing at all arrived, for so long is not sent again. What may be sent
again, and why order is kept, is in unsettled.py.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.beat import BEAT_BYTES, BEAT_OFFSET
from raidx_fuse.members.nbd.connection import CHANGES, PATIENCE_S, Call, Connection
from raidx_fuse.members.nbd.pipe import Pipe
from raidx_fuse.members.nbd.protocol.wire import Command, CommandFlag, Export, Flag
from raidx_fuse.members.nbd.unsettled import Unflushed, Unsettled
from raidx_fuse.members.overdue import give_up
from raidx_fuse.members.threads import in_thread
from raidx_fuse.tasks import rest

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 4  # where the server allows several
CALLS_FOR_ANOTHER = 8  # under way on each connection before another one is made
RETRY_S, RETRY_MAX_S = 0.05, 2.0
AGAIN = (errno.ECONNRESET, errno.ETIMEDOUT)  # of a recovery: another connection may do better

Dial = Callable[[], Pipe]
Ask = Callable[[Call, str], Awaitable[None]]


class Links:
    """The connections of *member*, the first one over *pipe*, others made by *dial*.

    *renew* is called with each connection that follows a time without any, before it is used.
    Changes are sent only while *sure*, if given, returns true (`Call.guard`). *refusal* is the
    error of every operation from now on, or None. *unflushed*: see there.
    """

    def __init__(
        self,
        member: Member,
        dial: Dial,
        pipe: Pipe,
        renew: Callable[[Ask], Awaitable[None]],
        sure: Callable[[], bool] | None = None,
    ) -> None:
        self.refusal: MemberError | None = None
        self.unflushed = Unflushed()
        self._member = member
        self._path = member.path
        self._dial = dial
        self._export = pipe.export
        self._several = bool(pipe.export.flags & Flag.MULTI_CONN)
        self._renew = renew
        self._sure = sure
        self._recovering: Connection | None = None
        self._watched = False  # whether callers limit the time of their calls
        self._connections = [Connection(pipe, self._ended, self._cut, lambda: self._watched)]
        self._waiting: list[Call] = []  # for a connection, in order
        self._gates: list[Call] = []  # changes that have not begun, for a connection
        self._unsettled = Unsettled()
        self._dialling = False
        self._delay_s = 0.0  # before the next try, 0 again once a call was answered
        self._closed = False
        self._token: trio.lowlevel.TrioToken | None = None  # of the event loop that uses them

    def note_watched(self) -> None:
        """Note that callers limit the time of their calls from now on."""
        self._watched = True

    @property
    def unsettled(self) -> bool:
        """Whether a write of a lost connection may still be carried out."""
        return bool(self._unsettled)

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return bool(self._connections)

    async def do(self, call: Call, operation: str) -> None:
        """Carry out *call*, which is no change but of the beat. Raises MemberError."""
        self._submit(call)
        await self._end_of(call, operation)

    async def change(self, call: Call, operation: str) -> None:
        """Carry out *call*, which changes bytes: not over a write that may still land there.

        Raises MemberError.
        """
        offset_bytes, size_bytes = call.offset_bytes, call.size_bytes
        while True:
            if not self._connections:
                # The recovery must have ended: it may fail, and what it sent be unsettled then.
                gate = Call(call.command, offset_bytes, size_bytes)
                self._gates.append(gate)
                self._dial_soon()
                await self._end_of(gate, operation)
                continue
            lost = self._unsettled.overlapping(offset_bytes, size_bytes)
            if lost is None:
                break
            if not lost.pipe.has_witness:
                why = "an earlier write of a lost connection may still land there"
                raise MemberError(self._path, operation, offset_bytes, errno.EIO, why)
            await lost.ended.wait()
        call.guard_by(self._sure)
        self._submit(call)
        await self._end_of(call, operation)

    def begin(self, call: Call, then: Callable[[Call], None]) -> bool:
        """Carry out *call* without a task, and call *then*; False if it has to wait for something.

        A write never lands under one that a lost connection may still carry out.
        """
        if not self._connections or (self._unsettled and call.command in CHANGES):
            return False
        call.call_then(then)
        if call.command in CHANGES:
            call.guard_by(self._sure)
        self._submit(call)
        return True

    def ask_again(self) -> None:
        """Send the changes that waited until the member was known to be ours."""
        for connection in self._all():
            connection.wake()

    def drop(self, held_back_only: bool) -> None:
        """Abort the connections with changes that have no answer: none goes out any more.

        With *held_back_only* those only that still have bytes on this machine. Where sending means
        delivery (a Unix socket), nothing can be dropped but what the pipe did not take.
        """
        for connection in self._all():
            pipe = connection.pipe
            if held_back_only and not pipe.holds_back():
                continue
            if connection.is_stuck or (pipe.can_drop and connection.has_guarded):
                connection.cut("whether the member is still ours is not known")

    def _all(self) -> list[Connection]:
        recovering = [] if self._recovering is None else [self._recovering]
        return self._connections + recovering

    async def _end_of(self, call: Call, operation: str) -> None:
        await call.wait()
        error = self.error_of(call, operation)
        if error is not None:
            raise error

    def error_of(self, call: Call, operation: str) -> MemberError | None:
        """Return the error with which *call* has ended, or None."""
        if not call.error:
            return None
        at = -1 if call.command == Command.FLUSH else call.offset_bytes
        return self.refusal or MemberError(self._path, operation, at, call.error, call.message)

    def close(self) -> None:
        """Say good-bye without waiting.

        Members are also closed in threads; then the event loop closes the connections soon.
        """
        self._closed = True
        if self._token is not None and not self._in_loop():
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._close)
                return
        self._close()

    def _in_loop(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def _close(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.end_now()
            for call in connection.take_back():
                call.end(errno.ENODEV, "member is closed")
        self._end_waiting(errno.ENODEV, "member is closed")

    def _submit(self, call: Call) -> None:
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        connections = self._connections
        if not connections:
            self._waiting.append(call)
            self._dial_soon()
            return
        # One after the other is filled: what goes over few connections is sent and answered in
        # batches, and a server works on all requests of a connection at once.
        for best in connections:
            if best.under_way <= CALLS_FOR_ANOTHER and not best.leaving:
                best.submit(call)
                return
        taking = [each for each in connections if not each.leaving]
        if not taking:
            self._waiting.append(call)  # until the last of them is cut (`_cut`)
            return
        min(taking, key=lambda each: each.under_way).submit(call)
        if self._several and len(connections) < CONNECTIONS_MAX:
            self._dial_soon()

    def _ended(self, call: Call) -> None:
        """Note the end of *call*, before its task runs."""
        self._delay_s = 0.0
        kept = call.command in CHANGES and not call.flags & CommandFlag.FUA
        if kept and not call.error and not _is_beat(call):
            self.unflushed.add(call)

    def _end_waiting(self, number: int, message: str) -> None:
        """End all calls without a connection by an error; writes among them may still land."""
        waiting, self._waiting = self._waiting, []
        self._end_all(waiting, number, message)
        self._open_gates(number, message)

    def _end_all(self, calls: Sequence[Call], number: int, message: str) -> None:
        for call in calls:
            if call.sent and call.command in CHANGES and not _is_beat(call):
                give_up(self._member, call.offset_bytes, call.size_bytes)
            call.end(number, message)

    def _open_gates(self, number: int = 0, message: str = "") -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.end(number, message)

    # -- connections ---------------------------------------------------------------------------

    def _cut(self, connection: Connection, reason: str) -> None:
        """Take back the calls of a lost connection, and have them sent again."""
        if connection in self._connections:
            self._connections.remove(connection)
        back = connection.take_back()
        again = [call for call in back if not call.cancelled]
        with suppress(RuntimeError):  # the event loop has ended: nothing is sent any more
            self._unsettled.add(connection.pipe, _sent_ranges(back))
            silent = connection.silent
            if reason:  # if silent, the calls' errors say it
                level = logging.INFO if silent else logging.WARNING
                told = "%s: connection lost (%s), %d requests"
                log.log(level, told, self._path, reason, len(again))
            now_s = trio.current_time()
            old = [call for call in again if call.age_s(now_s) > PATIENCE_S or silent]
            again = [call for call in again if call not in old]
            why = reason if silent else f"no answer over many connections: {reason}"
            self._end_all(old, errno.ETIMEDOUT, why)
            if self._connections:
                for call in again:
                    self._submit(call)
            else:
                self._waiting[:0] = again
                if self._waiting:
                    self._dial_soon()

    def _dial_soon(self) -> None:
        if not self._dialling and not self._closed:
            self._dialling = True
            trio.lowlevel.spawn_system_task(self._dial_until_connected)

    async def _dial_until_connected(self) -> None:
        """Make one connection, and give it the calls that wait."""
        deadline_s = trio.current_time() + PATIENCE_S
        try:
            while not self._closed:
                if self._delay_s:
                    await rest(self._delay_s)  # the process wakes at ticks anyway
                self._delay_s = min(max(RETRY_S, 2 * self._delay_s), RETRY_MAX_S)
                try:
                    await self._dial_once()
                    return
                except RaidxError as refusal:
                    error = refusal.message
                if self._connections:
                    return  # another one was wanted for speed only
                if trio.current_time() >= deadline_s:
                    self._end_waiting(errno.ETIMEDOUT, f"no connection to the server: {error}")
                    return
        finally:
            self._dialling = False

    async def _dial_once(self) -> None:
        """Connect, and give the connection the calls that wait. Raises RaidxError."""
        pipe = await in_thread(self._path, self._dial, discard=lambda late: late.close())
        connection = Connection(pipe, lambda call: None, self._cut_again, lambda: self._watched)
        if self._closed:
            connection.end_now()
            return
        try:
            self._check_same(pipe.export)
            if not self._connections:
                self._recovering = connection
                await self._recover(connection)
        except MemberError as error:
            connection.end_now()
            if error.errno in AGAIN:
                raise
            self._refuse(error)
            return
        finally:
            self._recovering = None
        connection.on_end, connection.on_cut = self._ended, self._cut
        self._connections.append(connection)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._submit(call)
        self._open_gates()

    async def _recover(self, connection: Connection) -> None:
        """Renew the lock, and write again what no flush has covered. Raises MemberError."""

        async def ask(call: Call, operation: str) -> None:
            connection.submit(call)
            await call.wait()
            if call.error:
                offset_bytes = call.offset_bytes
                raise MemberError(self._path, operation, offset_bytes, call.error, call.message)

        await self._renew(ask)
        self._waiting = [call for call in self._waiting if not call.cancelled]
        later = [call for call in self._waiting if call.command in CHANGES]  # these will be sent
        for call in self.unflushed.newest(later):
            call.guard_by(self._sure)
            await ask(call, "write")

    def _cut_again(self, connection: Connection, reason: str) -> None:
        """End the calls of a connection that was lost during the recovery."""
        back = connection.take_back()
        with suppress(RuntimeError):
            self._unsettled.add(connection.pipe, _sent_ranges(back))
        for call in back:
            call.end(errno.ECONNRESET, reason)

    def _check_same(self, export: Export) -> None:
        """Raise MemberError if a new connection leads to another export than the first one."""
        ours = self._export
        kept = Flag.READ_ONLY | Flag.FLUSH | Flag.WRITE_ZEROES | Flag.MULTI_CONN
        same = not (export.flags ^ ours.flags) & kept and export.size_bytes == ours.size_bytes
        if not same or export.block_bytes != ours.block_bytes:
            raise MemberError(self._path, "open", -1, errno.ESTALE, "the export has changed")

    def _refuse(self, error: MemberError) -> None:
        """Refuse every operation from now on."""
        log.error("%s", error.message)
        self.refusal = error
        self._end_waiting(error.errno, error.message)


def _is_beat(call: Call) -> bool:
    """Return whether *call* writes the beat: no order is kept for it, and none is needed."""
    return (call.offset_bytes, call.size_bytes) == (BEAT_OFFSET, BEAT_BYTES)


def _sent_ranges(calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Return the byte ranges of the writes among *calls* that a server may carry out."""
    return [
        (call.offset_bytes, call.offset_bytes + call.size_bytes)
        for call in calls
        if call.sent and call.command in CHANGES and not _is_beat(call)
    ]
