"""The connections of one member: which call goes where, reconnection, and what is sent again.

Many requests are under way on a connection (`Connection`). Those that tasks make in one turn of the
event loop are sent by one system call; replies that arrive together are processed together. A
request that finds the connection idle is sent at once. Whether a request may go out is asked when
it is sent, not when it is made (`Call.guard`): seconds may lie between the two, if the server takes
nothing or this process is stopped.

Calls that find no connection wait until there is one, while connecting is tried again and again
(RETRY_S, doubled up to RETRY_MAX_S). The limit is that of the queue (``io.timeout_s``), which
excludes a member that does not answer, or PATIENCE_S where there is no queue; a call under which
connections were lost, or nothing at all arrived, for so long is not sent again.

Two things outlive a lost connection: acknowledged writes that no flush covers (`Unflushed`), and
writes that the server may still carry out (`Unsettled`).

    write A sent .... connection cut            A is carried out
                         A sent again, answered        write B here would be lost under A

Why order is kept:

* A write without an answer is sent again, because both copies have the same content. Its bytes are
  *unsettled*: no newer write reaches them until the server's process is known to have ended
  (`Pipe.server_ended`). Without such a witness a newer write is refused, as it is over a hung local
  write (members/base.py), and its member is excluded. Reads are answered: they find that content
  before and after the late copy.
* A server that was killed may have lost writes that it had answered but not flushed, because NBD
  promises nothing else. So a copy of each is kept until a flush that began after its answer has
  succeeded. When the last connection is lost, the copies are written again, then the writes without
  an answer, and only then newer requests. A flush is sent again after them, so a flush that
  succeeds covers all that was answered before it, whichever server process did it.
* Only the newest content of each byte is written again (`Unflushed.newest`): late copies, also of
  what is written again, then have the same content as what follows them.
* A flush goes over one connection. Several are used only if the server says (multi-conn) that a
  flush on one covers the answered writes of all.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from trio import lowlevel

from raidx_fuse.errors import MemberError, RaidxError, single
from raidx_fuse.loop.tasks import TICK_S, rest
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.heartbeat import HEARTBEAT_BYTES, HEARTBEAT_OFFSET, HEARTBEAT_S
from raidx_fuse.members.nbd.pipe import Pipe
from raidx_fuse.members.nbd.protocol.client import Client, Exchange, Ranges
from raidx_fuse.members.nbd.protocol.wire import Command, CommandFlag, Errno, Export, Flag
from raidx_fuse.members.threads import ThreadPolicy, current_policy, in_thread

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
_LOOK_S = 5.0  # between two looks whether anything has arrived
_RECEIVE_BYTES = 1 << 18
_SEND_BYTES = 1 << 18  # what is sent next goes behind so much, and one request
CHANGES = (Command.WRITE, Command.WRITE_ZEROES, Command.TRIM)


@dataclass(slots=True, eq=False)
class Call(Exchange):
    """One request of a task, which may be sent several times, on different connections.

    *patient*: its end may be noticed up to a tick later. *sent*: a server may carry it out.
    *cut_s*: when a connection was lost under it for the first time, 0.0 for never.
    *cancelled*: its task waits no more. *guard* returns whether it may be sent now, None: at any
    time; if not, it waits until it may, or if it *expires*, ends with EAGAIN. *then* is called with
    it at its end: no task waits for it.
    """

    cut_s: float = field(default=0.0, init=False)
    done: bool = field(default=False, init=False)
    sent: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    patient: bool = field(default=False, init=False)
    expires: bool = field(default=False, init=False)
    guard: Callable[[], bool] | None = field(default=None, init=False)
    task: lowlevel.Task | None = field(default=None, init=False)
    then: Callable[[Call], None] | None = field(default=None, init=False)

    @property
    def is_content(self) -> bool:
        """Whether it changes content: for a heartbeat no order is kept, and none is needed."""
        is_beat = (self.offset_bytes, self.size_bytes) == (HEARTBEAT_OFFSET, HEARTBEAT_BYTES)
        return self.command in CHANGES and not is_beat

    def error_of(self, path: str) -> MemberError | None:
        """Return the error of the member *path* with which it ended, or None."""
        if not self.error:
            return None
        at = -1 if self.command == Command.FLUSH else self.offset_bytes
        operation = "write" if self.command in CHANGES else self.command.name.lower()
        return MemberError(path, operation, at, self.error, self.message)

    async def wait(self) -> None:
        """Suspend until the call has ended."""
        if self.done:
            return

        def abort(_: object) -> lowlevel.Abort:
            self.task, self.cancelled = None, True
            return lowlevel.Abort.SUCCEEDED

        self.task = lowlevel.current_task()
        await lowlevel.wait_task_rescheduled(abort)

    def end(self, error: int = 0, message: str = "") -> None:
        """Wake the task that waits."""
        self.error, self.message, self.done = error, message, True
        task, self.task = self.task, None
        if task is not None:
            lowlevel.reschedule(task)
        if self.then is not None:
            self.then(self)


class Connection:
    """Sends calls to the member *path* over *pipe*, and ends them.

    *on_end* is called for each call that ended, before its task runs. *on_cut* is called once with
    this connection and the reason ("": the event loop has ended) when it is lost; `take_back` then
    returns the calls without an answer. Both may be replaced.

    *leaving*: the server has said that it shuts down. It answers what is under way, but takes no
    more calls; the connection is cut after the last answer.

    *_idle*: only patient calls are under way. Their replies are looked for once a tick, when the
    process wakes anyway: else each of them would wake it.

    *is_watched* returns whether callers limit the time of their calls. While they do not, a
    connection on which nothing arrives for PATIENCE_S, with calls under way, is cut as *silent*.
    """

    def __init__(
        self,
        path: str,
        pipe: Pipe,
        on_end: Callable[[Call], None] = lambda call: None,
        on_cut: Callable[[Connection, str], None] = lambda connection, reason: None,
        is_watched: Callable[[], bool] = lambda: True,
    ) -> None:
        self._path = path
        self.pipe = pipe
        self.silent = False
        self._is_watched = is_watched
        self._arrivals = 0  # how often something was received
        self._link: Client[Call] = Client(pipe.export)
        self.on_end = on_end
        self.on_cut = on_cut
        self._unsent: list[Call] = []
        self._sender: lowlevel.Task | None = None
        self._behind: list[Call] = []  # of some of these the pipe keeps a rest
        self._idle = False
        self._rest: trio.CancelScope | None = None  # of the receiver, while it waits idly
        self._started = False
        self.is_cut = False
        self.leaving = False
        self._refused: list[Call] = []  # because the server shuts down: not carried out
        self._policy: ThreadPolicy | None = None
        self._held = False

    @property
    def under_way(self) -> int:
        return len(self._link.exchanges) + len(self._unsent)

    async def do(self, call: Call) -> None:
        """Send *call* and wait for its end. Raises MemberError."""
        self.submit(call)
        await self.end_of(call)

    async def end_of(self, call: Call) -> None:
        """Wait for the end of *call*, which was submitted. Raises MemberError."""
        await call.wait()
        if error := call.error_of(self._path):
            raise error

    async def do_alone(self, call: Call) -> None:
        """Carry out *call* in this task while nothing else uses the connection.

        That needs no event loop. Raises MemberError, OSError, ProtocolError.
        """
        self.pipe.begin_now()
        self._unsent.append(call)
        self._send()
        while self._behind:
            await self.pipe.wait_sendable()
            if not self._send():
                raise TimeoutError(errno.ETIMEDOUT, "half of a request may not go on any more")
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        while not (call.done or self.leaving):
            if not await self._receive(buffer):
                raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        if error := call.error_of(self._path):
            raise error

    def submit(self, call: Call) -> None:
        """Send *call*; it ends later, at once if the connection was cut meanwhile."""
        if self.is_cut:  # during a recovery, between two of its calls; nothing else would end it
            call.end(errno.ECONNRESET, LOST)
            return
        self._unsent.append(call)
        alone = self.under_way == 1
        self._idle = call.patient and (self._idle or alone)
        if self._rest is not None and (not call.patient or alone):
            self._rest.cancel()
        if not self._started:
            self._started = True
            self._policy = current_policy() if self.pipe.real else None
            lowlevel.spawn_system_task(self._run, name=f"nbd {self.pipe.export.name}")
        elif alone and not self._behind:
            self._send_now()
        else:
            self.wake_sender()
        self._hold()

    def _send(self) -> bool:
        """Send what may go, and end what has expired; False if there is nothing. Raises OSError.

        While the pipe keeps a rest, only that is sent: what is not in the pipe can be taken back.
        """
        pieces: list[bytes | bytearray | memoryview] = []
        if self._behind:
            if not self._may_finish():
                return False
            calls = self._behind
        else:
            unsent, self._unsent, calls, size_bytes = self._unsent, [], [], 0
            if len(unsent) > 1:  # the heartbeats first, for which the guards of others wait
                unsent.sort(key=lambda call: call.guard is not None and not call.expires)
            for call in unsent:
                if size_bytes >= _SEND_BYTES:
                    self._unsent.append(call)
                elif call.guard is None or call.guard():
                    pieces += self._link.request(call)
                    calls.append(call)
                    size_bytes += call.size_bytes if call.command == Command.WRITE else 0
                elif call.expires:
                    call.end(errno.EAGAIN, "it could not be sent in time")
                    self._hold()
                else:
                    self._unsent.append(call)
            if not calls:
                return False
        self._behind = [] if self.pipe.try_send(pieces) else calls
        return True

    def _send_now(self) -> None:
        """Send without suspending; the sender sends the rest."""
        try:
            self._send()
        except OSError as error:
            self.cut(str(error))
            return
        if self._behind:
            self.wake_sender()

    def wake_sender(self) -> None:
        """Have what is not sent yet sent, if its guards let it go by now."""
        sender, self._sender = self._sender, None
        if sender is not None:
            lowlevel.reschedule(sender)

    async def _run(self) -> None:
        """Receive and send until the connection is cut, or the run ends."""
        reason = ""  # the event loop has ended
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all)
                nursery.start_soon(self._limit_silence)
                await self._receive_all()
                reason = "the server closed the connection"
                nursery.cancel_scope.cancel()
        except* (OSError, RaidxError, trio.ClosedResourceError) as group:
            reason = str(single(group)) or "closed"
        except* Exception as group:
            log.critical("bug in a connection to an NBD server", exc_info=group)
            reason = f"a bug: {single(group)!r}"
        finally:
            self.cut(reason)

    async def _send_all(self) -> None:
        while True:
            if self._behind:
                await self.pipe.wait_sendable()
            if self._send():
                continue

            def abort(_: object) -> lowlevel.Abort:
                self._sender = None
                return lowlevel.Abort.SUCCEEDED

            self._sender = lowlevel.current_task()
            await lowlevel.wait_task_rescheduled(abort)

    async def _limit_silence(self) -> None:
        """End the connection when nothing arrives any more, until others limit that."""
        seen, since_s = -1, 0.0
        while not self._is_watched():
            now_s = trio.current_time()
            if not self.under_way:
                seen = -1
            elif self._arrivals != seen:
                seen, since_s = self._arrivals, now_s
            elif now_s - since_s >= PATIENCE_S:
                self.silent = True
                raise TimeoutError(f"no answer within {PATIENCE_S:g} s: look at its server")
            await rest(_LOOK_S)

    async def _receive_all(self) -> None:
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        while True:
            if self._idle and not await self._rest_until_replies():
                continue
            if not await self._receive(buffer):
                return
            if self.leaving and not self._link.exchanges:
                self.cut("the server is shutting down")
                return

    async def _receive(self, buffer: memoryview) -> bool:
        """Receive once, by *buffer* or right into those of a read; False at the end."""
        link = self._link
        target = link.target()
        done = await self.pipe.receive_into(buffer if target is None else target)
        if not done:
            return False
        self._arrivals += 1
        ended = link.receive(buffer[:done]) if target is None else link.filled(done)
        for call in ended:
            if call.error == Errno.ESHUTDOWN:
                self._refused.append(call)
                self.leaving = True
                continue
            self.on_end(call)
            call.end(call.error, call.message)
        if ended:
            self._hold()
        return True

    async def _rest_until_replies(self) -> bool:
        """Return True when it is time to receive, False if a call was made meanwhile."""
        with trio.CancelScope() as self._rest:
            if self.under_way:
                await rest(TICK_S)
            else:
                await self.pipe.wait_received()
        scope, self._rest = self._rest, None
        return not scope.cancelled_caught

    def _hold(self) -> None:
        """Tell the run whether a real server works for it, as threads do."""
        if self._policy is not None:
            wanted = self.under_way > 0 and not (self.is_cut or self._idle)
            if wanted != self._held:
                self._held = wanted
                (self._policy.hold if wanted else self._policy.release)()

    def _may_finish(self) -> bool:
        """Return False if half of a request that may not be sent any more bars all others."""
        return all(call.guard is None or call.guard() for call in self._behind)

    def drop(self) -> None:
        """Cut the connection if that keeps changes without an answer from the server.

        Where sending means delivery (a Unix socket), only what the pipe did not take can be kept.
        """
        calls = (*self._link.exchanges.values(), *self._unsent)
        guarded = self.pipe.can_drop and any(call.guard is not None for call in calls)
        if guarded or not self._may_finish():
            self.cut("whether the member is still ours is not known")

    def cut(self, reason: str) -> None:
        """Close the connection; calls under way go back to the member.

        They will be sent again: what has not left this machine never does.
        """
        if self.is_cut:
            return
        self.is_cut = True
        self._hold()
        self.pipe.abort()
        self.on_cut(self, reason)

    def take_back(self) -> list[Call]:
        """Return the calls without an answer, in order; *sent* is true if they may be carried out.

        A request counts as sent as soon as the pipe has any of its bytes: a server may carry out a
        part of it.
        """
        for call in self._link.exchanges.values():
            call.sent = True
        back = [*self._refused, *self._link.exchanges.values(), *self._unsent]
        self._refused, self._unsent = [], []
        self._link.exchanges.clear()
        return back

    def end_now(self) -> None:
        """Say good-bye without waiting.

        If the server owes answers, what has not left this machine never does: others may hold the
        member by the time that it could.
        """
        if self.is_cut:
            return
        self.is_cut = True
        self._hold()
        if self.under_way:
            self.pipe.abort()
            self.pipe.forget()
            return
        with suppress(OSError):
            self.pipe.try_send([self._link.disconnect()])
        self.pipe.close()


CONNECTIONS_MAX = 4  # where the server allows several
CALLS_FOR_ANOTHER = 8  # under way on each connection before another one is made
RETRY_S, RETRY_MAX_S = 0.05, 2.0
# Errors of a recovery; another connection may do better. EAGAIN: a copy could not go out in time.
AGAIN = (errno.ECONNRESET, errno.ETIMEDOUT, errno.EAGAIN)
COPIES_AT_ONCE = 16  # under way during a recovery
LOST, CLOSED = "connection lost", "member is closed"

Dial = Callable[[], Pipe]
Ask = Callable[[Call], Awaitable[None]]  # carries a call out; raises MemberError


class Unflushed:
    """Copies of the answered writes that no flush covers; *size_bytes* is their memory."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._calls: deque[Call] = deque()
        self._first = 0  # how many have been dropped: marks are absolute

    def add(self, call: Call) -> None:
        """Keep *call*, which was answered."""
        self._calls.append(call)
        self.size_bytes += _memory(call)

    def mark(self) -> int:
        """Return a mark for `flushed`: all that was added so far."""
        return self._first + len(self._calls)

    def flushed(self, mark: int) -> None:
        """Drop what was added before *mark*: a flush that began then has succeeded."""
        while self._calls and self._first < mark:
            self.size_bytes -= _memory(self._calls.popleft())
            self._first += 1

    def newest(self, later: Sequence[Call]) -> Iterator[Call]:
        """Yield writes of what is the newest content of its bytes; *later* ones follow anyway."""
        covered = Ranges()
        for call in later:
            covered.add(call.offset_bytes, call.offset_bytes + call.size_bytes)
        for call in reversed(self._calls):
            end = call.offset_bytes + call.size_bytes
            for at, stop in covered.add(call.offset_bytes, end):
                parts: Sequence[memoryview] = ()
                if call.command == Command.WRITE:
                    (data,) = call.buffers
                    first = at - call.offset_bytes
                    parts = [memoryview(data)[first : first + stop - at]]
                yield Call(call.command, at, stop - at, parts, call.flags)


def _memory(call: Call) -> int:
    return sum(map(len, call.buffers)) + 100


@dataclass(slots=True, eq=False)
class LostPipe:
    """A cut connection with writes under way: *ranges* in bytes, *ended* once it is harmless."""

    pipe: Pipe
    ranges: list[tuple[int, int]]
    ended: trio.Event


class Unsettled:
    """The byte ranges of writes that servers of cut connections may still carry out."""

    def __init__(self) -> None:
        self._lost: list[LostPipe] = []

    def __bool__(self) -> bool:
        return bool(self._lost)

    def add(self, pipe: Pipe, calls: Sequence[Call]) -> None:
        """Note that *pipe* was cut with *calls* under way."""
        ranges = [
            (call.offset_bytes, call.offset_bytes + call.size_bytes)
            for call in calls
            if call.sent and call.is_content
        ]
        if not ranges or pipe.server_ended():
            pipe.forget()
            return
        lost = LostPipe(pipe, ranges, trio.Event())
        self._lost.append(lost)
        if pipe.has_witness:
            trio.lowlevel.spawn_system_task(self._watch, lost)

    async def _watch(self, lost: LostPipe) -> None:
        try:
            await lost.pipe.wait_ended()
            self._lost.remove(lost)
            lost.ended.set()
        finally:
            lost.pipe.forget()

    def overlapping(self, offset_bytes: int, size_bytes: int) -> LostPipe | None:
        """Return a lost connection whose writes may still reach the range, or None."""
        end = offset_bytes + size_bytes
        for lost in self._lost:
            if any(begin < end and offset_bytes < stop for begin, stop in lost.ranges):
                return lost
        return None


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
        self.watched = False  # whether callers limit the time of their calls
        first = Connection(self._path, pipe, self._ended, self._cut, lambda: self.watched)
        self.connections = [first]
        self._waiting: list[Call] = []  # for a connection, in order
        self._gates: list[Call] = []  # changes that have not begun, for a connection
        self.unsettled = Unsettled()
        self._dialling = False
        self._delay_s = 0.0  # before the next try, 0 again once a call was answered
        self._closed = False
        self._token: trio.lowlevel.TrioToken | None = None  # of the event loop that uses them

    async def do(self, call: Call) -> None:
        """Carry out *call*, which is no change but of the heartbeat. Raises MemberError."""
        self._submit(call)
        await self._end_of(call)

    async def change(self, call: Call) -> None:
        """Carry out *call*, which changes bytes: not over a write that may still land there.

        Raises MemberError.
        """
        offset_bytes, size_bytes = call.offset_bytes, call.size_bytes
        while True:
            if not self.connections:
                # The recovery must have ended: it may fail, and what it sent be unsettled then.
                gate = Call(call.command, offset_bytes, size_bytes)
                self._gates.append(gate)
                self._dial_soon()
                await self._end_of(gate)
                continue
            lost = self.unsettled.overlapping(offset_bytes, size_bytes)
            if lost is None:
                break
            if not lost.pipe.has_witness:
                why = "an earlier write of a lost connection may still land there"
                raise MemberError(self._path, "write", offset_bytes, errno.EIO, why)
            await lost.ended.wait()
        call.guard = self._sure
        self._submit(call)
        await self._end_of(call)

    def begin(self, call: Call, then: Callable[[Call], None]) -> bool:
        """Carry out *call* without a task, and call *then*; False if it has to wait for something.

        A write never lands under one that a lost connection may still carry out.
        """
        if not self.connections or (self.unsettled and call.command in CHANGES):
            return False
        call.then = then
        if call.command in CHANGES:
            call.guard = self._sure
        self._submit(call)
        return True

    def ask_again(self) -> None:
        """Send the changes that waited until the member was known to be ours."""
        for connection in self._all():
            connection.wake_sender()

    def drop(self, held_back_only: bool) -> None:
        """Abort the connections with changes that have no answer: none goes out any more.

        With *held_back_only* those only that still have bytes on this machine.
        """
        for connection in self._all():
            if not held_back_only or connection.pipe.holds_back():
                connection.drop()

    def _all(self) -> list[Connection]:
        recovering = [] if self._recovering is None else [self._recovering]
        return self.connections + recovering

    async def _end_of(self, call: Call) -> None:
        await call.wait()
        if error := self.error_of(call):
            raise error

    def error_of(self, call: Call) -> MemberError | None:
        if not call.error:
            return None
        return self.refusal or call.error_of(self._path)

    def close(self) -> None:
        """Say good-bye without waiting.

        Members are also closed in threads; then the event loop closes the connections soon.
        """
        self._closed = True
        here: trio.lowlevel.TrioToken | None = None
        with suppress(RuntimeError):  # no event loop
            here = trio.lowlevel.current_trio_token()
        if self._token is not None and self._token is not here:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._close)
                return
        self._close()

    def _close(self) -> None:
        connections, self.connections = self._all(), []
        for connection in connections:
            connection.end_now()
            for call in connection.take_back():
                call.end(errno.ENODEV, CLOSED)
        self._end_waiting(errno.ENODEV, CLOSED)

    def _submit(self, call: Call) -> None:
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        connections = self.connections
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
        if kept and not call.error and call.is_content:
            self.unflushed.add(call)

    def _end_waiting(self, number: int, message: str) -> None:
        """End all calls without a connection by an error; writes among them may still land."""
        waiting, self._waiting = self._waiting, []
        self._end_all(waiting, number, message)
        self._open_gates(number, message)

    def _end_all(self, calls: Sequence[Call], number: int, message: str) -> None:
        for call in calls:
            if call.sent and call.is_content:
                self._member.note_overdue(call.offset_bytes, call.size_bytes)
            call.end(number, message)

    def _open_gates(self, number: int = 0, message: str = "") -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.end(number, message)

    # -- connections ---------------------------------------------------------------------------

    def _cut(self, connection: Connection, reason: str) -> None:
        """Take back the calls of a lost connection, and have them sent again."""
        if connection in self.connections:
            self.connections.remove(connection)
        back = connection.take_back()
        again = [call for call in back if not call.cancelled]
        with suppress(RuntimeError):  # the event loop has ended: nothing is sent any more
            self.unsettled.add(connection.pipe, back)
            silent = connection.silent
            if reason:  # if silent, the calls' errors say it
                level = logging.INFO if silent else logging.WARNING
                told = "%s: connection lost (%s), %d requests"
                log.log(level, told, self._path, reason, len(again))
            now_s = trio.current_time()
            for call in again:
                call.cut_s = call.cut_s or now_s
            old = [call for call in again if silent or now_s - call.cut_s > PATIENCE_S]
            again = [call for call in again if call not in old]
            why = reason if silent else f"no answer over many connections: {reason}"
            self._end_all(old, errno.ETIMEDOUT, why)
            if self.connections:
                for call in again:
                    self._submit(call)
            else:
                self._waiting[:0] = again
                if self._waiting:
                    self._dial_soon()

    def _dial_soon(self) -> None:
        if self._closed:
            self._end_waiting(errno.ENODEV, CLOSED)
        elif not self._dialling:
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
                    if not (self._waiting or self._gates):
                        return
                    error = LOST  # again, while it was given the calls
                except RaidxError as refusal:
                    error = refusal.message
                if self.connections:
                    return  # another one was wanted for speed only
                if trio.current_time() >= deadline_s:
                    self._end_waiting(errno.ETIMEDOUT, f"no connection to the server: {error}")
                    return
        finally:
            self._dialling = False

    async def _dial_once(self) -> None:
        """Connect, and give the connection the calls that wait. Raises RaidxError."""
        pipe = await in_thread(self._path, self._dial, discard=lambda late: late.close())
        connection = Connection(
            self._path, pipe, on_cut=self._cut_again, is_watched=lambda: self.watched
        )
        if self._closed:
            connection.end_now()
            return
        try:
            self._check_same(pipe.export)
            if not self.connections:
                self._recovering = connection
                await self._recover(connection)
                if connection.is_cut:
                    raise MemberError(self._path, "open", -1, errno.ECONNRESET, LOST)
        except MemberError as error:
            if connection.under_way:
                connection.cut(error.message)  # copies that may still land
            connection.end_now()
            if error.errno in AGAIN or self._closed:
                raise
            log.error("%s", error.message)
            self.refusal = error
            self._end_waiting(error.errno, error.message)
            return
        finally:
            self._recovering = None
        connection.on_end, connection.on_cut = self._ended, self._cut
        self.connections.append(connection)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._submit(call)
        self._open_gates()

    async def _recover(self, connection: Connection) -> None:
        """Renew the lock, and write again what no flush has covered. Raises MemberError.

        The lock is kept by heartbeats over *connection*: those of its holder wait for the end of
        the recovery, and without any the copies might not go out any more (law 2).
        """
        await self._renew(connection.do)
        renewed_s = trio.current_time()
        self._waiting = [call for call in self._waiting if not call.cancelled]
        later = [call for call in self._waiting if call.command in CHANGES]  # these will be sent
        under_way: deque[Call] = deque()  # no two overlap: their order does not matter
        for call in self.unflushed.newest(later):
            if len(under_way) == COPIES_AT_ONCE:
                await connection.end_of(under_way.popleft())
            if trio.current_time() - renewed_s >= HEARTBEAT_S:
                await self._renew(connection.do)
                renewed_s = trio.current_time()
            call.guard, call.expires = self._sure, True
            connection.submit(call)
            under_way.append(call)
        for call in under_way:
            await connection.end_of(call)

    def _cut_again(self, connection: Connection, reason: str) -> None:
        """End the calls of a connection that was lost during the recovery."""
        back = connection.take_back()
        with suppress(RuntimeError):
            self.unsettled.add(connection.pipe, back)
        for call in back:
            call.end(errno.ECONNRESET, reason)

    def _check_same(self, export: Export) -> None:
        """Raise MemberError if a new connection leads to another export than the first one."""
        ours = self._export
        kept = Flag.READ_ONLY | Flag.FLUSH | Flag.WRITE_ZEROES | Flag.MULTI_CONN
        same = not (export.flags ^ ours.flags) & kept and export.size_bytes == ours.size_bytes
        if not same or export.block_bytes != ours.block_bytes:
            raise MemberError(self._path, "open", -1, errno.ESTALE, "the export has changed")
