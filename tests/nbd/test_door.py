"""The door: one or many clients on sockets of this process, with a volume that tests control."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from raidx_fuse.errors import NotFastError, RaidxError, Reason
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.client import Client, ClientHandshake, Exchange
from raidx_fuse.members.nbd.protocol.wire import (
    Command,
    CommandFlag,
    Flag,
)
from raidx_fuse.nbd.address import parse_address
from raidx_fuse.nbd.door import Door
from raidx_fuse.nbd.pipe import ClientPipe
from raidx_fuse.pool.volume import Volume
from tests.support.reasons import because

SIZE = 1 << 20
PAGE = 4096
NO_FLAGS = CommandFlag(0)
Scene = Callable[[Door, "Backing"], Awaitable[None]]


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
        handshake = ClientHandshake(export, allocation=True)
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


def play(tmp_path: Path, scene: Scene, *, read_only: bool = False) -> Backing:
    """Run *scene* with a door on a socket in *tmp_path*; nothing may be left of its clients."""
    backing = Backing()

    async def main() -> None:
        door = Door(parse_address(f"unix:{tmp_path}/s", tls=False))
        volume = backing.volume(read_only=read_only)
        door.show(volume)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(door.run)
                await scene(door, backing)
                nursery.cancel_scope.cancel()
            while STREAMS:
                await STREAMS.pop().aclose()
        door.close()
        assert not door.clients
        assert not volume.opened
        assert not (tmp_path / "s").exists()

    trio.run(main)
    return backing


def test_every_command_does_what_it_says(tmp_path: Path) -> None:
    async def scene(door: Door, backing: Backing) -> None:
        guest = await Guest.connect(door, "disk")
        flags = guest.link.export.flags
        offers = Flag.FLUSH | Flag.FUA | Flag.TRIM | Flag.WRITE_ZEROES | Flag.MULTI_CONN
        assert flags & offers == offers
        assert flags & Flag.CACHE
        assert flags & Flag.FAST_ZERO
        assert not flags & Flag.READ_ONLY
        assert not await guest.write(1000, b"a" * 9000)
        assert not await guest.write(1000, b"b" * 500, CommandFlag.FUA)
        assert await guest.read(999, 502) == b"\0" + b"b" * 500 + b"a"
        assert not (await guest.do(Command.FLUSH)).error
        status = await guest.do(Command.BLOCK_STATUS, 0, 5 * PAGE)
        assert status.extents == [(3 * PAGE, 0), (2 * PAGE, 3)]
        assert not (await guest.do(Command.TRIM, 0, PAGE, CommandFlag.FUA)).error
        assert not (await guest.do(Command.WRITE_ZEROES, PAGE, PAGE)).error
        assert not (await guest.do(Command.WRITE_ZEROES, 2 * PAGE, 9, CommandFlag.NO_HOLE)).error
        assert backing.log == (
            ["write", "write", "flush", "read", "flush", "discard", "flush", "discard", "write"]
        )
        assert not any(backing.content[: 2 * PAGE])
        del backing.log[:]
        fast, kept = CommandFlag.FAST_ZERO, CommandFlag.NO_HOLE
        assert not (await guest.do(Command.WRITE_ZEROES, 0, 2 * PAGE, fast)).error
        assert (await guest.do(Command.WRITE_ZEROES, 0, PAGE, fast | kept)).error == errno.ENOTSUP
        assert not await guest.write(0, b"a")
        assert (await guest.do(Command.WRITE_ZEROES, 0, PAGE, fast)).error == errno.ENOTSUP
        assert backing.content[0] == ord("a")
        assert not (await guest.do(Command.CACHE, 0, SIZE)).error
        assert backing.log == ["discard", "write", "read"]
        assert not door.bugs
        assert await guest.read(SIZE - 300_000, 300_000) == bytes(300_000)
        assert (await guest.do(Command.TRIM, SIZE, 1)).error == errno.ENOSPC

    play(tmp_path, scene)


def test_a_read_only_export_takes_no_change(tmp_path: Path) -> None:
    async def scene(door: Door, backing: Backing) -> None:
        guest = await Guest.connect(door)
        assert guest.link.export.flags & Flag.READ_ONLY
        assert await guest.write(0, b"a") == errno.EPERM
        assert await guest.read(0, 1) == b"\0"

    play(tmp_path, scene, read_only=True)


def test_requests_that_wait_together_are_answered_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    put = ClientPipe.put

    def counted(pipe: ClientPipe, pieces: Sequence[Piece]) -> bool:
        sent.append(len(pieces))
        return put(pipe, pieces)

    monkeypatch.setattr(ClientPipe, "put", counted)

    async def scene(door: Door, backing: Backing) -> None:
        guest = await Guest.connect(door)
        sent.clear()
        buffers = [bytearray(PAGE) for _ in range(16)]
        for number, buffer in enumerate(buffers):
            guest.link.read(number * PAGE, [buffer], PAGE)
        await guest.send()
        await guest.answers(16)
        assert len(sent) == 1

    play(tmp_path, scene)


def test_a_request_that_waits_does_not_stop_the_others(tmp_path: Path) -> None:
    async def scene(door: Door, backing: Backing) -> None:
        guest = await Guest.connect(door)
        backing.gates = {number * PAGE: trio.Event() for number in range(100)}
        for number in range(101):
            guest.link.write(number * PAGE, [bytes([number]) * PAGE], PAGE)
        sending = guest.link.output()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guest.stream.send_all, b"".join(map(bytes, sending)))
            await trio.testing.wait_all_tasks_blocked()
            assert not backing.log  # so many are under way that nobody reads on
            backing.gates[0].set()
            await guest.answers()
        for gate in backing.gates.values():
            gate.set()
        await guest.answers(100)
        for number in range(101):
            assert backing.content[number * PAGE] == number

    play(tmp_path, scene)


def test_errors_and_bugs_are_answered_and_the_client_goes_on(tmp_path: Path) -> None:
    async def scene(door: Door, backing: Backing) -> None:
        guest = await Guest.connect(door)
        backing.broken = RaidxError("lost")
        assert await guest.write(0, b"a") == errno.EIO
        backing.broken = ZeroDivisionError()
        assert await guest.write(0, b"a") == errno.EIO
        assert door.bugs == 1
        backing.broken = None
        assert not await guest.write(0, b"a")

    play(tmp_path, scene)


def test_exports_come_and_go_with_the_volumes(tmp_path: Path) -> None:
    async def scene(door: Door, backing: Backing) -> None:
        other = Backing()
        second = other.volume(name="second")
        door.show(second)
        other.content[0] = 7
        assert await (await Guest.connect(door, "second")).read(0, 1) == b"\x07"
        with pytest.raises(RaidxError):
            await Guest.connect(door)  # two volumes: none is the default
        assert list(door.uris()) == ["disk", "second"]
        door.hide(second)
        with pytest.raises(RaidxError):
            await Guest.connect(door, "second")
        assert await (await Guest.connect(door)).read(0, 1) == b"\0"

    play(tmp_path, scene)


def test_a_volume_that_is_deleted_during_a_handshake_is_not_opened(tmp_path: Path) -> None:
    async def scene(door: Door, backing: Backing) -> None:
        volume = Backing().volume(name="second")
        door.show(volume)
        stream = await dialed(door)
        handshake = ClientHandshake("second")
        handshake.receive(await stream.receive_some())
        await stream.send_all(handshake.output())  # an option; the export is not opened yet
        await trio.testing.wait_all_tasks_blocked()
        door.hide(volume)
        while handshake.export is None and (data := await stream.receive_some()):
            handshake.receive(data)
            await stream.send_all(handshake.output())
        link = Client(handshake.export) if handshake.export else None
        if link is not None:
            link.command(Command.FLUSH)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"".join(map(bytes, link.output())))
                assert not await stream.receive_some()
        assert not volume.opened

    play(tmp_path, scene)


def test_a_unix_socket_is_for_its_owner_and_replaces_a_stale_one(tmp_path: Path) -> None:
    with _left(tmp_path / "s"):

        async def scene(door: Door, backing: Backing) -> None:
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            with pytest.raises(RaidxError, check=because(Reason.IN_USE)):
                Door(door.address)

        play(tmp_path, scene)


def test_only_a_socket_of_its_own_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("the user's")
    with pytest.raises(RaidxError, check=because(Reason.FILE)):
        Door(parse_address(f"unix:{path}", tls=False))
    assert path.read_text() == "the user's"
    path.unlink()

    door = Door(parse_address(f"unix:{path}", tls=False))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        door.close()
        assert path.exists(), "another server listens on it"
    door.close()
    assert not path.exists()


@contextmanager
def _left(path: Path) -> Iterator[None]:
    """Leave a socket at *path* that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    yield
