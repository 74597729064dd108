"""A door on a socket of this process, its clients, and a volume that tests control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from raidx_fuse.errors import NotFastError
from raidx_fuse.members.nbd.protocol.client import ClientHandshake, Exchange
from raidx_fuse.members.nbd.protocol.wire import (
    Command,
    CommandFlag,
)
from raidx_fuse.nbd.address import parse_address
from raidx_fuse.nbd.door import Door
from raidx_fuse.pool.volume import Volume
from tests.support.nbd_client import Client
from tests.support.rigs import MakeRig

SIZE = 1 << 20
PAGE = 4096
NO_FLAGS = CommandFlag(0)


class Backing:
    """The content of a volume. *gates*: reads and writes there wait; *log*: what was asked for."""

    def __init__(self) -> None:
        self.content = bytearray(SIZE)
        self.log: list[str] = []
        self.gates: dict[int, trio.Event] = {}
        self.broken: Exception | None = None

    def volume(self, *, read_only: bool = False, name: str = "disk") -> Volume:
        return Volume(
            name,
            SIZE,
            read=self.read,
            write=self.write,
            flush=self.flush,
            discard=self.discard,
            allocation=self.allocation,
            read_only=read_only,
        )

    async def _wait(self, offset: int) -> None:
        if self.broken is not None:
            raise self.broken
        if offset in self.gates:
            await self.gates[offset].wait()

    async def read(self, offset: int, length: int) -> memoryview:
        await self._wait(offset)
        self.log.append("read")
        return memoryview(self.content)[offset : offset + length]

    async def write(self, offset: int, data: bytes) -> None:
        await self._wait(offset)
        self.log.append("write")
        self.content[offset : offset + len(data)] = data

    async def flush(self) -> None:
        self.log.append("flush")

    async def discard(self, offset: int, length: int, fast_only: bool) -> None:
        if fast_only and any(self.content[offset : offset + length]):
            raise NotFastError("not fast")
        self.log.append("discard")
        self.content[offset : offset + length] = bytes(length)

    def allocation(self, offset: int, length: int) -> Iterator[tuple[int, bool]]:
        for at in range(offset, offset + length, PAGE):
            yield PAGE, any(self.content[at : at + PAGE])


STREAMS: list[trio.SocketStream] = []  # of the clients of one scene


async def dialed(door: Door) -> trio.SocketStream:
    """Return a connection to *door*, which `play` closes."""
    STREAMS.append(await trio.open_unix_socket(door.address.path))
    return STREAMS[-1]


class Guest:
    """A client of the door, by our own client's side of the protocol."""

    def __init__(self, stream: trio.SocketStream, link: Client) -> None:
        self.stream = stream
        self.link = link

    @classmethod
    async def connect(cls, door: Door, export: str = "") -> Guest:
        return await cls.on(await dialed(door), export)

    @classmethod
    async def on(cls, stream: trio.SocketStream, export: str = "", greeting: bytes = b"") -> Guest:
        """Carry out the handshake on *stream*, from which *greeting* was received."""
        handshake = ClientHandshake(export)
        while handshake.export is None:
            handshake.receive(greeting or await stream.receive_some())
            greeting = b""
            await stream.send_all(handshake.output())
        return cls(stream, Client(handshake.export))

    async def send(self) -> None:
        await self.stream.send_all(b"".join(map(bytes, self.link.output())))

    async def answers(self, count: int = 1) -> list[Exchange]:
        ended: list[Exchange] = []
        while len(ended) < count:
            data = await self.stream.receive_some()
            assert data, "the door has closed the connection"
            ended += self.link.receive(data)
        return ended

    async def do(
        self, command: Command, offset: int = 0, size: int = 0, flags: CommandFlag = NO_FLAGS
    ) -> Exchange:
        self.link.command(command, offset, size, flags)
        await self.send()
        (exchange,) = await self.answers()
        return exchange

    async def write(self, offset: int, data: bytes, flags: CommandFlag = NO_FLAGS) -> int:
        self.link.write(offset, [data], len(data), flags)
        await self.send()
        return (await self.answers())[0].error

    async def read(self, offset: int, size: int) -> bytes:
        buffer = bytearray(size)
        self.link.read(offset, [buffer], size)
        await self.send()
        (exchange,) = await self.answers()
        assert not exchange.error, exchange.message
        return bytes(buffer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def backing() -> Backing:
    return Backing()


@pytest.fixture
def door(
    path: Path, backing: Backing, make_rig: MakeRig[Door]
) -> AbstractAsyncContextManager[Door]:
    return make_rig(partial(door_to, path, backing))


@asynccontextmanager
async def door_to(path: Path, backing: Backing, *, read_only: bool = False) -> AsyncIterator[Door]:
    """Yield a door on a socket; nothing may be left of its clients."""
    door = Door(parse_address(f"unix:{path}", tls=False))
    volume = backing.volume(read_only=read_only)
    door.show(volume)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.run)
            yield door
            nursery.cancel_scope.cancel()
        while STREAMS:
            await STREAMS.pop().aclose()
    door.close()
    assert not door.clients
    assert not volume.opened
    assert not path.exists()
