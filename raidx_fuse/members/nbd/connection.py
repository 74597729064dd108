"""One connection of a member in the event loop: many requests under way, sent and answered in
batches.

Requests that tasks make in one turn of the event loop are sent by one system call; replies that
arrive together are processed together. A request that finds the connection idle is sent at once.

Whether a request may go out is asked when it is sent, not when it is made (`Call.guard`): seconds
may lie between the two, if the server takes nothing or this process is stopped.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio
from trio import lowlevel

from raidx_fuse.errors import RaidxError, single
from raidx_fuse.members.nbd.pipe import Pipe
from raidx_fuse.members.nbd.protocol.client import Client, Exchange
from raidx_fuse.members.nbd.protocol.wire import Command, Errno
from raidx_fuse.members.threads import ThreadPolicy, current_policy
from raidx_fuse.tasks import TICK_S, rest

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
_LOOK_S = 5.0  # between two looks whether anything has arrived
_RECEIVE_BYTES = 1 << 18
_SEND_BYTES = 1 << 18  # what is sent next goes behind so much, and one request
CHANGES = (Command.WRITE, Command.WRITE_ZEROES, Command.TRIM)


class Call:
    """One request of a task, which may be sent several times, on different connections.

    *buffers* are filled by a read, or hold the content of a write. *patient*: its end may be
    noticed up to a tick later. *sent*: a server may carry it out. *cancelled*: nobody waits for it
    any more. *guard* returns whether it may be sent now, None: at any time; if not, it waits until
    it may, or if it *expires*, ends with EAGAIN. *then* is called with it at its end: no task waits
    for it. Results: *error* and *message* as in `Exchange`.
    """

    __slots__ = (
        "buffers",
        "cancelled",
        "command",
        "cut_s",
        "done",
        "error",
        "expires",
        "flags",
        "guard",
        "message",
        "offset_bytes",
        "patient",
        "sent",
        "size_bytes",
        "task",
        "then",
    )

    def __init__(
        self,
        command: Command,
        offset_bytes: int = 0,
        size_bytes: int = 0,
        buffers: Sequence[bytearray | memoryview | bytes] = (),
        flags: int = 0,
    ) -> None:
        self.command = command
        self.offset_bytes = offset_bytes
        self.size_bytes = size_bytes
        self.buffers = buffers
        self.flags = flags
        self.cut_s = 0.0
        self.error = 0
        self.message = ""
        self.done = self.sent = self.cancelled = self.patient = self.expires = False
        self.guard: Callable[[], bool] | None = None
        self.task: lowlevel.Task | None = None
        self.then: Callable[[Call], None] | None = None

    def take_answer(self, exchange: Exchange) -> None:
        """Take the result of *exchange*."""
        self.error, self.message = exchange.error, exchange.message

    def age_s(self, now_s: float) -> float:
        """Note that a connection was lost under it; return how long ago that was the first time."""
        self.cut_s = self.cut_s or now_s
        return now_s - self.cut_s

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


def _is_held(call: Call) -> bool:
    """Return whether *call* is one that waits for its guard: the beats, for which it waits, go
    first.
    """
    return call.guard is not None and not call.expires


class Connection:
    """Sends calls over *pipe* and ends them.

    *on_end* is called for each call that ended, before its task runs. *on_cut* is called once with
    this connection and the reason ("": the event loop has ended) when it is lost; `take_back` then
    returns the calls without an answer. Both may be replaced.

    *leaving*: the server has said that it shuts down. It still answers what is under way, but takes
    no more calls; the connection is cut after the last answer.

    *_idle*: only patient calls are under way. Their replies are looked for once a tick, when the
    process wakes anyway: else each of them would wake it.

    *is_watched* returns whether callers limit the time of their calls. As long as it does not, the
    connection is cut when calls are under way and nothing has arrived for PATIENCE_S; it is
    *silent* then.
    """

    def __init__(
        self,
        pipe: Pipe,
        on_end: Callable[[Call], None],
        on_cut: Callable[[Connection, str], None],
        is_watched: Callable[[], bool] = lambda: True,
    ) -> None:
        self.pipe = pipe
        self.silent = False
        self._is_watched = is_watched
        self._arrivals = 0  # how often something was received
        self._link = Client(pipe.export)
        self.on_end = on_end
        self.on_cut = on_cut
        self._unsent: list[Call] = []
        self._sender: lowlevel.Task | None = None
        self._behind: list[Call] = []  # of some of these the pipe keeps a rest
        self._idle = False
        self._rest: trio.CancelScope | None = None  # of the receiver, while it waits idly
        self._started = False
        self._cut = False
        self.leaving = False
        self._refused: list[Call] = []  # because the server shuts down: not carried out
        self._policy: ThreadPolicy | None = None
        self._held = False

    @property
    def under_way(self) -> int:
        """How many calls have no answer yet."""
        return len(self._link.exchanges) + len(self._unsent)

    @property
    def has_guarded(self) -> bool:
        """Whether calls with a guard have no answer yet, or were not sent."""
        under_way = (exchange.owner for exchange in self._link.exchanges.values())
        calls = (*under_way, *self._unsent)
        return any(isinstance(call, Call) and call.guard is not None for call in calls)

    def may_go_on(self) -> bool:
        """Return False if half of a request that must not go on is in the way of all others."""
        return all(call.guard is None or call.guard() for call in self._behind)

    def submit(self, call: Call) -> None:
        """Send *call*; it ends later."""
        self._unsent.append(call)
        alone = self.under_way == 1
        self._idle = call.patient and (self._idle or alone)
        if self._rest is not None and (not call.patient or alone):
            self._rest.cancel()
        if not self._started:
            self._start()
        elif alone and not self._behind:
            self._send_now()
        else:
            self.wake_sender()
        self._hold()

    def _send(self) -> bool:
        """Send what may go, and end what has expired; False if there is nothing. Raises OSError.

        While the pipe keeps a rest, only that is sent: what is not in the pipe can be taken back.
        """
        if self._behind:
            if not self.may_go_on():
                return False
            calls = self._behind
        else:
            unsent, self._unsent, calls, size_bytes = self._unsent, [], [], 0
            if len(unsent) > 1:
                unsent.sort(key=_is_held)
            for call in unsent:
                if size_bytes >= _SEND_BYTES:
                    self._unsent.append(call)
                elif call.guard is None or call.guard():
                    self._encode(call)
                    calls.append(call)
                    size_bytes += call.size_bytes if call.command == Command.WRITE else 0
                elif call.expires:
                    call.end(errno.EAGAIN, "it could not be sent in time")
                    self._hold()
                else:
                    self._unsent.append(call)
            if not calls:
                return False
        self._behind = [] if self.pipe.try_send(self._link.output()) else calls
        return True

    def _encode(self, call: Call) -> None:
        link = self._link
        if call.command == Command.READ:
            buffers = call.buffers
            exchange = link.read(call.offset_bytes, buffers, call.size_bytes)  # type: ignore[arg-type]
        elif call.command == Command.WRITE:
            exchange = link.write(call.offset_bytes, call.buffers, call.size_bytes, call.flags)
        else:
            exchange = link.command(call.command, call.offset_bytes, call.size_bytes, call.flags)
        exchange.belong_to(call)

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

    def _start(self) -> None:
        self._started = True
        self._policy = current_policy() if self.pipe.real else None
        lowlevel.spawn_system_task(self._run, name=f"nbd {self.pipe.export.name}")

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
        link, pipe = self._link, self.pipe
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        while True:
            if self._idle and not await self._rest_until_replies():
                continue
            target = link.target()
            done = await pipe.receive_into(buffer if target is None else target)
            if not done:
                return
            self._arrivals += 1
            ended = link.receive(buffer[:done]) if target is None else link.filled(done)
            for exchange in ended:
                call = exchange.owner
                assert isinstance(call, Call)
                if exchange.error == Errno.ESHUTDOWN:
                    self._refused.append(call)
                    self.leaving = True
                    continue
                call.take_answer(exchange)
                self.on_end(call)
                call.end(exchange.error, exchange.message)
            if self.leaving and not link.exchanges:
                self.cut("the server is shutting down")
                return
            if ended:
                self._hold()

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
            wanted = self.under_way > 0 and not (self._cut or self._idle)
            if wanted != self._held:
                self._held = wanted
                (self._policy.begin if wanted else self._policy.end)()

    def cut(self, reason: str) -> None:
        """Close the connection; calls under way go back to the member.

        They will be sent again: what has not left this machine never does.
        """
        if self._cut:
            return
        self._cut = True
        self._hold()
        self.pipe.abort()
        self.on_cut(self, reason)

    def take_back(self) -> list[Call]:
        """Return the calls without an answer, in order; *sent* is true if they may be carried out.

        A request counts as sent as soon as the pipe has any of its bytes: a server may carry out a
        part of it.
        """
        back, self._refused = self._refused, []
        for exchange in self._link.exchanges.values():
            call = exchange.owner
            assert isinstance(call, Call)
            call.sent = True
            back.append(call)
        self._link.exchanges.clear()
        unsent, self._unsent = self._unsent, []
        return back + unsent

    def end_now(self) -> None:
        """Say good-bye without waiting.

        If the server owes answers, what has not left this machine never does: others may hold the
        member by the time that it could.
        """
        if self._cut:
            return
        self._cut = True
        self._hold()
        if self.under_way:
            self.pipe.abort()
            self.pipe.forget()
            return
        self._link.disconnect()
        with suppress(OSError):
            self.pipe.try_send(self._link.output())
        self.pipe.close()
        self.pipe.forget()
