"""The door: one or many clients on sockets of this process, with a volume that tests control."""

from __future__ import annotations

import errno
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.client import ClientHandshake
from raidx_fuse.members.nbd.protocol.wire import (
    ALLOCATION,
    CLIENT_FLAGS,
    OPTION,
    OPTION_MAGIC,
    REQUEST,
    REQUEST_MAGIC,
    U32,
    Command,
    CommandFlag,
    Flag,
    Option,
)
from raidx_fuse.nbd.address import parse_address
from raidx_fuse.nbd.connection import ClientPipe
from raidx_fuse.nbd.door import Door
from tests.nbd.conftest import PAGE, SIZE, Backing, Guest, dialed, door_to
from tests.support.nbd_client import Client
from tests.support.reasons import because

pytestmark = pytest.mark.real_time


async def test_every_command_does_what_it_says(door: Door, backing: Backing) -> None:
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


async def test_a_client_that_asks_for_allocation_gets_the_extents(
    door: Door, backing: Backing
) -> None:
    query = ALLOCATION.encode()
    context = U32.pack(4) + b"disk" + U32.pack(1) + U32.pack(len(query)) + query
    said = CLIENT_FLAGS.pack(3)
    for option, data in (
        (Option.STRUCTURED_REPLY, b""),
        (Option.SET_META_CONTEXT, context),
        (Option.EXPORT_NAME, b"disk"),
    ):
        said += OPTION.pack(OPTION_MAGIC, option, len(data)) + data
    said += REQUEST.pack(REQUEST_MAGIC, 0, Command.BLOCK_STATUS, 1, 0, 5 * PAGE)
    backing.content[1000:10000] = b"a" * 9000
    stream = await dialed(door)
    await stream.send_all(said)
    told = b""
    with trio.fail_after(10):
        while not told.endswith(b"".join(map(U32.pack, (1, 3 * PAGE, 0, 2 * PAGE, 3)))):
            told += await stream.receive_some()


@pytest.mark.rig(read_only=True)
async def test_a_read_only_export_takes_no_change(door: Door) -> None:
    guest = await Guest.connect(door)
    assert guest.link.export.flags & Flag.READ_ONLY
    assert await guest.write(0, b"a") == errno.EPERM
    assert await guest.read(0, 1) == b"\0"


async def test_requests_that_wait_together_are_answered_together(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    sent: list[int] = []
    put = ClientPipe.put

    def counted(pipe: ClientPipe, pieces: Sequence[Piece]) -> bool:
        sent.append(len(pieces))
        return put(pipe, pieces)

    monkeypatch.setattr(ClientPipe, "put", counted)
    async with door_to(path, backing) as door:
        guest = await Guest.connect(door)
        sent.clear()
        buffers = [bytearray(PAGE) for _ in range(16)]
        for number, buffer in enumerate(buffers):
            guest.link.read(number * PAGE, [buffer], PAGE)
        await guest.send()
        await guest.answers(16)
        assert len(sent) == 1


async def test_a_request_that_waits_does_not_stop_the_others(door: Door, backing: Backing) -> None:
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


async def test_errors_and_bugs_are_answered_and_the_client_goes_on(
    door: Door, backing: Backing
) -> None:
    guest = await Guest.connect(door)
    backing.broken = RaidxError("lost")
    assert await guest.write(0, b"a") == errno.EIO
    backing.broken = ZeroDivisionError()
    assert await guest.write(0, b"a") == errno.EIO
    assert door.bugs == 1
    backing.broken = None
    assert not await guest.write(0, b"a")


async def test_exports_come_and_go_with_the_volumes(door: Door) -> None:
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


async def test_a_volume_that_is_deleted_during_a_handshake_is_not_opened(door: Door) -> None:
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


async def test_a_unix_socket_is_for_its_owner_and_replaces_a_stale_one(
    path: Path, backing: Backing
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with door_to(path, backing) as door:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(RaidxError, check=because(Reason.IN_USE)):
            Door(door.address)


def test_only_a_socket_of_its_own_is_removed(path: Path) -> None:
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
