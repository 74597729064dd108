"""An NBD server in memory and in virtual time, which can be cut off, killed and restarted.

It uses the server's side of our protocol. `MemoryServer.dial` is what `NbdMember` connects with.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import trio
from trio import lowlevel

from raidx_fuse.errors import MemberError
from raidx_fuse.members.nbd.links import Call, Connection
from raidx_fuse.members.nbd.pipe import Piece, Pipe
from raidx_fuse.members.nbd.protocol.client import ClientHandshake
from raidx_fuse.members.nbd.protocol.server import Request, Server, ServerHandshake
from raidx_fuse.members.nbd.protocol.wire import Command, Errno, Export, Flag
from raidx_fuse.members.threads import has_no_loop, run_without_loop

FLAGS = Flag.HAS_FLAGS | Flag.FLUSH | Flag.WRITE_ZEROES | Flag.MULTI_CONN
CHANGES = (Command.WRITE, Command.WRITE_ZEROES)


class MemoryServer:
    """Serves *content*; what is not flushed is lost by `kill`.

    *delay_s* is the time of each request. *late_s*: a cut connection's requests are carried out so
    much later. *witness*: clients notice when the process ends. *failing* has errors by command.
    *requests* lists all that were carried out, as (command, offset, size).
    """

    def __init__(
        self,
        size_bytes: int,
        *,
        flags: Flag = FLAGS,
        block_bytes: int = 1,
        payload_bytes_max: int = 1 << 25,
        structured: bool = True,
        witness: bool = False,
        delay_s: float = 0.0,
    ) -> None:
        self.content = bytearray(size_bytes)
        self.durable = bytearray(size_bytes)
        self.export = Export(
            "disk", size_bytes, flags, block_bytes, max(4096, block_bytes), payload_bytes_max
        )
        self.structured = structured
        self.witness = witness
        self.delay_s = delay_s
        self.late_s = 0.0
        self.failing: dict[Command, Errno] = {}
        self.requests: list[tuple[Command, int, int]] = []
        self.pipes: list[MemoryPipe] = []
        self.dials = 0
        self.running = True
        self.life = 0  # counts the processes
        self.ended = trio.Event()  # of the process

    def dial(self) -> MemoryPipe:
        """Connect. Raises MemberError while the server is not running."""
        self.dials += 1
        if not self.running:
            raise MemberError("nbd://rig/disk", "open", -1, errno.ECONNREFUSED, "refused")
        pipe = MemoryPipe(self)
        self.pipes.append(pipe)
        return pipe

    def cut(self) -> None:
        """Cut all connections; requests under way are carried out *late_s* later."""
        pipes, self.pipes = self.pipes, []
        for pipe in pipes:
            pipe.cut()

    def kill(self) -> None:
        """End the process: what is not flushed is lost, requests under way are not carried out."""
        self.running = False
        self.life += 1
        self.ended.set()
        self.content[:] = self.durable
        self.cut()

    def restart(self) -> None:
        """Start a new process."""
        self.running = True
        self.ended = trio.Event()

    def carry_out(self, link: Server, request: Request) -> list[Piece]:
        """Do *request*; return the reply."""
        if request.command in self.failing:
            return link.failed(request, self.failing[request.command], "as told")
        at, end = request.offset_bytes, request.offset_bytes + request.size_bytes
        self.requests.append((request.command, at, end - at))
        match request.command:
            case Command.READ:
                return link.data(request, bytes(self.content[at:end]))
            case Command.WRITE:
                self.content[at:end] = request.payload
            case Command.WRITE_ZEROES:
                self.content[at:end] = bytes(end - at)
            case Command.FLUSH:
                self.durable[:] = self.content
        return link.done(request)


class MemoryPipe(Pipe):
    """One connection to *server*."""

    real = False

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.life = server.life
        self.ended = server.ended
        hello = ClientHandshake("disk", structured=server.structured, extended=server.structured)
        greeting = ServerHandshake({"disk": server.export})
        while hello.export is None:
            hello.receive(greeting.output())
            greeting.receive(hello.output())
        assert greeting.export is not None
        self.export = hello.export
        self.link = Server(greeting.export)
        self.replies = bytearray()
        self.ready = trio.Event()
        self.broken = False

    def try_send(self, pieces: Sequence[Piece]) -> bool:
        self._check()
        requests = self.link.receive(b"".join(pieces))
        self._reply(self.link.output())
        for request in requests:
            if has_no_loop():
                self._reply(self.server.carry_out(self.link, request))
                continue
            try:
                lowlevel.spawn_system_task(self._serve, request)
            except RuntimeError:  # no event loop: the last request of a member that is closed
                self.server.carry_out(self.link, request)
        return True

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _serve(self, request: Request) -> None:
        await trio.sleep(self.server.delay_s)
        if self.broken and self.server.late_s:
            await trio.sleep(self.server.late_s)
        if self.life == self.server.life:
            self._reply(self.server.carry_out(self.link, request))

    async def receive_into(self, buffer: memoryview) -> int:
        while not self.replies and not self.broken:
            await self.ready.wait()
        if self.broken:
            return 0
        return self._take(buffer)

    async def wait_received(self) -> None:
        if not self.replies and not self.broken:
            await self.ready.wait()

    def _take(self, buffer: memoryview) -> int:
        done = min(len(buffer), len(self.replies))
        buffer[:done] = self.replies[:done]
        del self.replies[:done]
        if not self.replies:
            self.ready = trio.Event()
        return done

    def _reply(self, pieces: Sequence[Piece]) -> None:
        self.replies += b"".join(pieces)
        if pieces:
            self.ready.set()

    def _check(self) -> None:
        if self.broken:
            raise ConnectionResetError(errno.ECONNRESET, "cut")

    def cut(self) -> None:
        """Break the connection."""
        self.broken = True
        self.ready.set()

    def close(self) -> None:
        self.cut()

    def abort(self) -> None:
        self.cut()

    @property
    def can_drop(self) -> bool:
        return False

    def begin_now(self) -> None: ...

    def holds_back(self) -> bool:
        return False

    def now_s(self) -> float:
        return trio.current_time()

    def forget(self) -> None: ...

    @property
    def has_witness(self) -> bool:
        return self.server.witness

    def server_ended(self) -> bool:
        return self.server.witness and self.life != self.server.life

    async def wait_ended(self) -> None:
        await self.ended.wait()


def read(pipe: Pipe, offset_bytes: int, size_bytes: int) -> bytes:
    """Return bytes of the export of *pipe*, without an event loop. Raises MemberError, OSError."""
    data = bytearray(size_bytes)
    ask(pipe, Call(Command.READ, offset_bytes, size_bytes, [data]))
    return bytes(data)


def write(pipe: Pipe, offset_bytes: int, data: bytes) -> None:
    ask(pipe, Call(Command.WRITE, offset_bytes, len(data), [data]))


def ask(pipe: Pipe, call: Call) -> None:
    run_without_loop(Connection("the export", pipe).do_alone, call)
