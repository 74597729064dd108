"""Clients of a door that leave, are many or send garbage; which addresses a door takes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from raidx_fuse.errors import UsageError
from raidx_fuse.loop.busy_poll import BusyPoll
from raidx_fuse.members.nbd import pipe
from raidx_fuse.members.nbd import pipe as pipe_module
from raidx_fuse.members.nbd.protocol.client import Exchange
from raidx_fuse.members.nbd.protocol.server import ServerHandshake
from raidx_fuse.members.nbd.protocol.wire import (
    OPTION,
    OPTION_MAGIC,
    REQUEST,
    REQUEST_MAGIC,
    Command,
    CommandFlag,
    Option,
)
from raidx_fuse.nbd import connection as client_module
from raidx_fuse.nbd import door as door_module
from raidx_fuse.nbd import requests as exports_module
from raidx_fuse.nbd.address import parse_address
from raidx_fuse.nbd.connection import ClientPipe
from raidx_fuse.nbd.door import Door
from tests.nbd.conftest import PAGE, SIZE, Backing, Guest, dialed, door_to

pytestmark = pytest.mark.real_time


async def test_what_a_client_began_is_carried_out_when_it_leaves(
    door: Door, backing: Backing
) -> None:
    guest = await Guest.connect(door)
    backing.gates[0] = trio.Event()
    guest.link.write(0, [b"kept"], 4)
    guest.link.write(PAGE, [b"too"], 3)
    await guest.send()
    await trio.testing.wait_all_tasks_blocked()
    await guest.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert door.clients == 1
    backing.gates[0].set()
    await trio.testing.wait_all_tasks_blocked()
    assert not door.clients
    assert backing.content[:4] == b"kept"
    assert backing.content[PAGE : PAGE + 3] == b"too"


async def test_a_client_whose_next_request_comes_at_once_is_served_without_sleep(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    slept: list[int] = []
    receive = ClientPipe.receive_into

    async def noted(pipe: ClientPipe, buffer: memoryview) -> int:
        slept.append(len(answered))
        return await receive(pipe, buffer)

    answered: list[Exchange] = []
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door, "disk")
        sock = socket.socket(fileno=os.dup(guest.stream.socket.fileno()))

        def sees(_: BusyPoll, fd: int) -> bool:
            """Be a quick client: take the answer, and make the next request, 100 times."""
            answered.extend(guest.link.receive(sock.recv(4096)))
            if len(answered) == 100:
                return False
            guest.link.read(0, [bytearray(1)], 1)
            sock.sendall(b"".join(map(bytes, guest.link.output())))
            return True

        monkeypatch.setattr(BusyPoll, "sees", sees)
        monkeypatch.setattr(ClientPipe, "receive_into", noted)
        guest.link.read(0, [bytearray(1)], 1)
        await guest.send()
        while len(answered) < 100:
            await trio.lowlevel.checkpoint()
        monkeypatch.undo()
        sock.close()
    assert slept == [100]


async def test_the_end_of_the_door_waits_for_what_is_under_way(
    path: Path, backing: Backing
) -> None:
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door)
        gate = backing.gates[0] = trio.Event()
        guest.link.write(0, [b"kept"], 4)
        await guest.send()
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.spawn_system_task(_set_later, gate)
    assert backing.content[:4] == b"kept"


@pytest.mark.parametrize("end", ["leaves", "says good-bye", "the door ends"])
@pytest.mark.parametrize("command", [Command.CACHE, Command.WRITE_ZEROES])
async def test_a_request_of_any_length_ends_when_nobody_waits_for_it(
    command: Command, end: str, path: Path, backing: Backing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports_module, "PART_BYTES", PAGE)
    gate = trio.Event()
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door)
        backing.gates[PAGE] = gate
        zeros = command is Command.WRITE_ZEROES
        for _ in range(50):
            guest.link.command(command, 0, SIZE, CommandFlag.NO_HOLE if zeros else 0)
        if end == "says good-bye":
            guest.link.leave()
        await guest.send()
        await trio.testing.wait_all_tasks_blocked()
        if end == "leaves":
            await guest.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
        if end == "the door ends":
            trio.lowlevel.spawn_system_task(_set_later, gate)
        else:
            gate.set()
            await trio.testing.wait_all_tasks_blocked()
    done = len(backing.log)
    assert done == 50 * SIZE // PAGE if end == "says good-bye" else done <= 2 * 50


async def _set_later(gate: trio.Event) -> None:
    await trio.sleep(0.05)
    gate.set()


async def test_a_client_that_takes_no_replies_is_dropped(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    monkeypatch.setattr(client_module, "STALLED_S", 0.05)
    monkeypatch.setattr(client_module, "UNSENT_BYTES_MAX", 1 << 20)
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door)
        for _ in range(64):
            guest.link.read(0, [bytearray(SIZE)], SIZE)
        await guest.send()
        await trio.sleep(0.2)
        assert not door.clients
        assert backing.log.count("read") < 8


async def test_a_client_that_takes_replies_slowly_is_served(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    """It takes 64 KiB in 25 ms, so that 1 MiB and more wait for it all the time."""
    monkeypatch.setattr(client_module, "STALLED_S", 0.2)
    monkeypatch.setattr(door_module, "_SEND_BUFFER_BYTES", 1 << 16)
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door)
        for _ in range(3):
            guest.link.read(0, [bytearray(SIZE)], SIZE)
        await guest.send()
        ended = 0
        while ended < 3:
            data = await guest.stream.receive_some(1 << 16)
            assert data, "the door has closed the connection"
            ended += len(guest.link.receive(data))
            await trio.sleep(0.025)


@pytest.mark.parametrize("cut", [1, 100, 100_000])
async def test_a_client_that_stops_in_the_middle_of_a_request_is_dropped(
    cut: int, monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    """Else it would keep the memory of the payload as long as it liked."""
    monkeypatch.setattr(client_module, "STALLED_S", 0.05)
    async with door_to(path, backing) as door:
        idle = await Guest.connect(door)
        guest = await Guest.connect(door)
        guest.link.write(0, [b"x" * SIZE], SIZE)
        await guest.stream.send_all(b"".join(map(bytes, guest.link.output()))[:cut])
        assert not await guest.stream.receive_some()
        assert not backing.log
        assert await idle.read(0, 1) == b"\0", "between requests there is no limit"
        assert door.clients == 1


async def test_a_client_that_sends_a_write_slowly_is_served(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    monkeypatch.setattr(client_module, "STALLED_S", 0.2)
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door)
        guest.link.write(0, [b"x" * SIZE], SIZE)
        data = b"".join(map(bytes, guest.link.output()))
        for at in range(0, len(data), 1 << 16):
            await guest.stream.send_all(data[at : at + (1 << 16)])
            await trio.sleep(0.025)
        assert [done.error for done in await guest.answers()] == [0]
        assert backing.content == b"x" * SIZE


async def test_a_client_that_sends_options_on_and_on_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    """What waits in the socket is taken in parts, and others have their turns in between."""
    monkeypatch.setattr(pipe, "TURN_S", 0.0)
    turns: list[int] = []
    received: list[int] = []
    receive = ServerHandshake.receive

    def noted(handshake: ServerHandshake, data: memoryview) -> None:
        received.append(len(turns))
        receive(handshake, data)

    async def others() -> None:
        while True:
            turns.append(0)
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(ServerHandshake, "receive", noted)
    monkeypatch.setattr(pipe_module, "_RECEIVE_BYTES", 64)
    async with door_to(path, backing) as door:
        stream = await dialed(door)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await stream.send_all(b"\0\0\0\3" + OPTION.pack(OPTION_MAGIC, Option.LIST, 0) * 400)
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
        assert len(received) >= 100
        assert len(set(received)) > len(received) / 2


async def test_half_requests_and_garbage_harm_nobody(door: Door) -> None:
    request = REQUEST.pack(REQUEST_MAGIC, 0, Command.WRITE, 1, 0, 8) + b"whatever"
    option = OPTION.pack(OPTION_MAGIC, Option.GO, 1 << 30)
    for cut in range(0, len(request), 5):
        guest = await Guest.connect(door)
        await guest.stream.send_all(request[:cut])
        await guest.stream.aclose()
    for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 100, b"\0\0\0\1" + option):
        stream = await dialed(door)
        await stream.send_all(garbage)
        if garbage:
            while await stream.receive_some():
                pass
        await stream.aclose()
    guest = await Guest.connect(door)
    await guest.stream.send_all(b"\xff" * 64)
    assert not await guest.stream.receive_some()
    assert await (await Guest.connect(door)).read(0, 8) == bytes(8)


async def test_more_clients_than_allowed_are_refused(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    monkeypatch.setattr(door_module, "CLIENTS_MAX", 3)
    async with door_to(path, backing) as door:
        guests = [await Guest.connect(door) for _ in range(3)]
        for _ in range(5):
            stream = await dialed(door)
            assert not await stream.receive_some()
        assert door.refused == 5
        await guests[0].stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert await (await Guest.connect(door)).read(0, 1) == b"\0"


async def test_who_does_not_end_the_handshake_takes_no_place_of_a_client(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    monkeypatch.setattr(door_module, "CLIENTS_MAX", 3)
    monkeypatch.setattr(door_module, "HANDSHAKES_MAX", 5, raising=False)
    async with door_to(path, backing) as door:
        first = await Guest.connect(door)
        begun = [await dialed(door) for _ in range(5)]
        greetings = [bytes(await stream.receive_some()) for stream in begun]
        second = await Guest.connect(door)
        assert not await begun[0].receive_some(), "the oldest one had to go"
        assert door.refused == 1
        third = await Guest.on(begun[1], greeting=greetings[1])
        for guest in (first, second, third):
            assert await guest.read(0, 1) == b"\0"
        late = await Guest.on(begun[2], greeting=greetings[2])
        assert not await late.stream.receive_some(), "the places are taken"
        assert door.refused == 2
        assert door.clients == 3


async def test_who_does_not_end_the_handshake_is_dropped(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_S", 0.05)
    async with door_to(path, backing) as door:
        stream = await dialed(door)
        while await stream.receive_some():
            pass
        assert not door.clients


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("9999", "127.0.0.1:9999"),
        (":9999", "127.0.0.1:9999"),
        ("127.0.0.1", "127.0.0.1:10809"),
        ("[::1]:5", "[::1]:5"),
        ("[::1]", "[::1]:10809"),
        ("localhost:7", "localhost:7"),
        ("unix:/a/b", "unix:/a/b"),
    ],
)
def test_addresses_on_this_machine(text: str, shown: str) -> None:
    assert str(parse_address(text, tls=False)) == shown


@pytest.mark.parametrize("text", ["0.0.0.0:9", "store", "192.168.0.1:7", "[::]:7"])
def test_addresses_for_others_need_tls(text: str) -> None:
    with pytest.raises(UsageError, match="needs TLS; give --tls DIR"):
        parse_address(text, tls=False)
    assert parse_address(text, tls=True).host


@pytest.mark.parametrize("text", ["unix:", "host:port", "a/b:1", "host:0", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text, tls=True)
