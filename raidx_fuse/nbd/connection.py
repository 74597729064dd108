"""One client in the transmission phase: requests that wait together are answered together.

A task reads what the socket has, carries the requests out one after the other, and sends their
replies in one call. A request whose members answer synchronously does not suspend, so nothing is
paid for it to the event loop, and small writes share log records (journal/group_commit.py). If a
request suspends, its task stays with it, and another task reads on:

    reader: receive --> request, request, ... --> send --> receive
                               `-- suspends: a new task becomes the reader, this one answers later

The memory of a client's requests is bounded, and all clients together have a `Budget`, which counts
replies until the client has taken them; beyond it, no task reads its socket or begins a long read
until memory is released. It also waits while it does not take its replies. A client that stops for
STALLED_S in the middle of a request or of a reply, or is slower there than RATE_BYTES_S after the
first STALLED_S, is cut off: else it would keep the memory of half a write, up to 32 MiB, by sending
a byte now and then. Requests that were begun are carried out to their end, whatever becomes of the
client; only those without a bound, zeros and reads ahead of any length, end early when the client
has left.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import numpy as np
import trio

from raidx_fuse.journal.group_commit import (
    HELD_MAX,
    Deferral,
    Handler,
    HeldHandlers,
    continue_held,
    to_its_end,
)
from raidx_fuse.loop.busy_poll import BusyPoll
from raidx_fuse.members.nbd.pipe import Piece, Pipe
from raidx_fuse.members.nbd.protocol.server import Pieces, Request, Server
from raidx_fuse.members.nbd.protocol.wire import Command, Export, ProtocolError
from raidx_fuse.nbd.requests import RequestHandler
from raidx_fuse.pool.volume import Volume

MEMORY_BYTES_MAX = 256 << 20  # of the requests of all clients
RUNNING_MAX = 64
RUNNING_BYTES_MAX = 64 << 20
UNSENT_BYTES_MAX = 4 << 20
STALLED_S = 30.0  # a client that sends or takes nothing for so long, in between, is gone
RATE_BYTES_S = 64 << 10  # the least, while this side waits for the client and has done so for long
RECEIVE_BYTES = 1 << 18
KEPT_BYTES = 32 << 10  # longer replies are sent at once, shorter ones copied to go together
TURN_S = 0.001  # then the event loop runs once


class ClientPipe(Pipe):
    """A socket that was accepted.

    Only one task reads. Any task may `put` replies: what the socket does not take now, the task of
    `drain` sends later.
    """

    export: Export  # set when the client has opened it

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def try_receive(self, buffer: memoryview) -> int:
        """Fill the beginning of *buffer* without blocking; return how many bytes, -1 for none yet.

        0 is the end. Raises OSError.
        """
        if self._tls is not None:
            return -1  # `receive_into` decrypts
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return -1

    def put(self, pieces: Sequence[Piece]) -> bool:
        """Send *pieces* in order, or keep what does not go without blocking; return if all went.

        What is kept is copied. Raises OSError.
        """
        if self._rest:  # `drain` is at it
            coded = pieces if self._tls is None else [self._encrypted(pieces)]
            self._rest += map(bytes, coded)
            return False
        if self.try_send(pieces):
            return True
        self._rest = [bytes(piece) for piece in self._rest]
        return False

    def close(self) -> None:
        super().close()
        self._rest = []

    @property
    def waiting_bytes(self) -> int:
        """How much the client has not taken yet."""
        return sum(map(len, self._rest))


class Budget:
    """Counts the memory of each client, an object; *most_bytes* is the limit for all of them.

    A client fills the payload of a write as its bytes come, at most 32 MiB, and keeps it until the
    request is carried out. Beyond the limit only the client that has kept memory for longest is
    read on: it ends its request, or is dropped as too slow, so the others always come to their
    turn.
    """

    def __init__(self, most_bytes: int = MEMORY_BYTES_MAX) -> None:
        self.used_bytes = 0
        self._most_bytes = most_bytes
        self._kept: dict[object, int] = {}  # by client, the oldest first
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
        return self.used_bytes < self._most_bytes or next(iter(self._kept), client) is client

    async def wait(self) -> None:
        await self._freed.wait()


class Client:
    """Serves *volume* to the client at the other end of *pipe* until it leaves or `stop`.

    *deferral* is that of the volume's journals, *busy_poll* looks for requests of all clients,
    *budget* limits their memory.
    """

    def __init__(
        self,
        pipe: ClientPipe,
        volume: Volume,
        deferral: Deferral,
        busy_poll: BusyPoll,
        budget: Budget,
    ) -> None:
        self._pipe = pipe
        self._deferral = deferral
        self._busy_poll = busy_poll
        self._budget = budget
        self._taken_bytes = 0  # memory of the requests under way
        self._pace = Pace()  # of the request of which a part has come
        self._link = Server(pipe.export, _memory)
        # A client that says good-bye wants what it asked for before; one that breaks off does not.
        self.handler = RequestHandler(
            volume,
            self._link,
            lambda: self._stopped or (self._ended and not self._link.ended),
        )
        self._nursery: trio.Nursery  # while it serves
        self._held: HeldHandlers[Request] = HeldHandlers(
            lambda *held: self._nursery.start_soon(self._finish, *held), deferral
        )
        self._requests: deque[Request] = deque()
        self._output: Pieces = []
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._running = self._running_bytes = 0
        self._reads = True  # whether a task reads
        self._sends = False  # whether a task waits for the client to take replies...
        self._sent = trio.Event()  # ...and when it has ended
        self._ended = self._stopped = False
        self._waits: set[trio.CancelScope] = set()  # for the client, to be ended by `stop`
        self._left_loop_s = 0.0

    async def serve(self, first: bytes) -> None:
        """Serve until the client leaves; *first* are bytes that came with the handshake."""
        with trio.CancelScope(shield=True):  # what was begun ends; `stop` ends the waits
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._take(first)
                await self._work()
            self._budget.note(self, 0)

    def stop(self) -> None:
        """Take no more requests, and end when those under way are answered."""
        self._ended = self._stopped = True
        self._requests.clear()
        for wait in self._waits:
            wait.cancel()

    # -- the reader ----------------------------------------------------------------------------

    async def _work(self) -> None:
        """Read and carry out requests until one suspends; then stay with that one.

        Afterwards read on if no other task does.
        """
        await self._turns()

    @types.coroutine
    def _turns(self) -> Generator[Any, Any, None]:
        while True:
            suspended = self._carry_out()
            if suspended is not None:
                yield from self._stay_with(*suspended)
                if self._reads or not self._may_read():
                    return
                self._reads = True
                continue
            if self._requests:
                yield from self._wait_for_room().__await__()
                continue
            if self._ended or not self._may_read():
                self._reads = False
                return
            yield from self._receive().__await__()

    def _may_read(self) -> bool:
        return self._running < RUNNING_MAX and self._running_bytes < RUNNING_BYTES_MAX

    def _carry_out(self) -> tuple[Handler, Any, Request] | None:
        """Carry out the requests that have arrived; send the replies.

        Returns a handler that suspended, with its trap and its request, for the caller.
        """
        held, requests, unsent = self._held, self._requests, self._pipe
        suspended: tuple[Handler, Any, Request] | None = None
        while requests and suspended is None and unsent.waiting_bytes <= UNSENT_BYTES_MAX:
            long_read = requests[0].size_bytes > KEPT_BYTES and requests[0].command is Command.READ
            if long_read and not self._budget.has_room(self):
                break
            request = requests.popleft()
            self._deferral.allow(bool(requests) and request.command is Command.WRITE)
            suspended = held.run(self._answer(request), request)
            if len(held.held) == HELD_MAX:
                suspended = held.release()
        if suspended is not None:
            held.let_go()
        elif held.held:
            suspended = held.release()
        self._deferral.allow(False)
        self._send()
        return suspended

    async def _wait_for_room(self) -> None:
        """Wait until the client has taken its replies, or others have released memory."""
        if self._pipe.waiting_bytes > UNSENT_BYTES_MAX:
            await self._sent.wait()
        else:
            with self._until_stop(inf):
                await self._budget.wait()

    @types.coroutine
    def _stay_with(
        self, handler: Handler, trap: Any, request: Request
    ) -> Generator[Any, Any, None]:
        """Run *handler*, which has suspended, to its end, while another task reads."""
        self._note(request, 1)
        if self._reads:
            self._reads = self._may_read()
            if self._reads:
                self._nursery.start_soon(self._work)
        try:
            yield from to_its_end(handler, trap)
        finally:
            self._note(request, -1)
        self._send()

    async def _finish(self, handler: Handler, request: Request) -> None:
        """Run *handler*, whose record is being written, to its end."""
        self._note(request, 1)
        try:
            await continue_held(handler)
        finally:
            self._note(request, -1)
        self._send()
        if not self._reads and self._may_read():
            self._reads = True
            await self._work()

    def _note(self, request: Request, change: int) -> None:
        """Count *request* as begun (1) or ended (-1)."""
        self._running += change
        self._running_bytes += change * request.size_bytes
        if request.command in (Command.READ, Command.WRITE):
            self._taken_bytes += change * request.size_bytes
        self._count()

    def _count(self) -> None:
        unsent_bytes = self._pipe.waiting_bytes
        self._budget.note(self, self._link.kept_bytes + self._taken_bytes + unsent_bytes)

    async def _answer(self, request: Request) -> None:
        pieces = await self.handler.answer(request)
        if request.command is Command.READ and request.size_bytes > KEPT_BYTES:
            self._output += pieces
            self._send()  # the content is valid until the next await
        else:
            self._output += map(bytes, pieces)

    # -- bytes -----------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Wait for bytes of the client, and take them."""
        try:
            if self._pipe.waiting_bytes > UNSENT_BYTES_MAX or not self._budget.has_room(self):
                await self._wait_for_room()
                return
            target = self._link.target()
            buffer = self._buffer if target is None else target[:RECEIVE_BYTES]
            count = self._pipe.try_receive(buffer)
            if count < 0 and not self._running and self._busy_poll.sees(self._pipe.fd):
                count = self._pipe.try_receive(buffer)
            now_s = trio.current_time()
            if count >= 0:
                if now_s - self._left_loop_s > TURN_S:
                    await trio.lowlevel.checkpoint()
                    self._left_loop_s = trio.current_time()
            else:
                amid = self._link.is_amid
                with self._until_stop(self._pace.left_s() if amid else inf):
                    count = await self._pipe.receive_into(buffer)
                self._left_loop_s = trio.current_time()
                if amid:
                    self._pace.note(max(count, 0), self._left_loop_s - now_s)
        except OSError:
            count = 0
        if count <= 0 or self._ended:
            self._ended = True
        elif target is None:
            self._take(self._buffer[:count])
        else:
            self._requests += self._link.filled(count)
            self._count()
        if self._pace.begun and not self._link.is_amid:
            self._pace = Pace()

    def _take(self, data: bytes | memoryview) -> None:
        try:
            self._requests += self._link.receive(data)
            self._output += self._link.output()
            self._ended = self._ended or self._link.ended
            if self._link.is_amid:
                self._count()
        except ProtocolError:
            self._ended = True

    def _send(self) -> None:
        """Send the replies that are ready; what the socket does not take is left to a task."""
        output, self._output = self._output, []
        if not output:
            return
        try:
            if not self._pipe.put(output):
                self._count()
                if not self._sends:
                    self._sends, self._sent = True, trio.Event()
                    self._nursery.start_soon(self._drain)
        except OSError:
            self._ended = True

    async def _drain(self) -> None:
        """Send what the client did not take at once; one that takes nothing is gone."""
        pace = Pace()
        with suppress(OSError):
            while waiting_bytes := self._pipe.waiting_bytes:
                begun_s = trio.current_time()
                with self._until_stop(pace.left_s()) as wait:
                    await self._pipe.drain_some()
                if wait.cancelled_caught or self._stopped:
                    break
                self._count()
                went_bytes = max(0, waiting_bytes - self._pipe.waiting_bytes)
                pace.note(went_bytes, trio.current_time() - begun_s)
        self._sends = False
        self._sent.set()
        if self._pipe.waiting_bytes:
            self._pipe.close()
            self._ended = True
            self._requests.clear()
            self._count()

    @contextmanager
    def _until_stop(self, limit_s: float) -> Iterator[trio.CancelScope]:
        """Leave the block after *limit_s*, or when `stop` is called."""
        with trio.move_on_after(limit_s) as wait:
            self._waits.add(wait)
            try:
                yield wait
            finally:
                self._waits.discard(wait)


class Pace:
    """How fast a client sends the rest of a request, or takes replies, while it is waited for."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._came_bytes = 0

    @property
    def begun(self) -> bool:
        return bool(self._waited_s or self._came_bytes)

    def note(self, came_bytes: int, waited_s: float) -> None:
        self._came_bytes += came_bytes
        self._waited_s += waited_s

    def left_s(self) -> float:
        """Return how long to wait for the next bytes."""
        late_s = max(0.0, self._waited_s - self._came_bytes / RATE_BYTES_S)
        return max(0.0, STALLED_S - late_s)


def _memory(size_bytes: int) -> memoryview:
    """Return memory that is not there before it is filled."""
    return np.empty(size_bytes, np.uint8).data
