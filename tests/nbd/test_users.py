"""Who may use a door, and how much memory its clients may take."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.members.nbd.protocol.wire import CommandFlag
from raidx_fuse.nbd import connection as client_module
from raidx_fuse.nbd import door as door_module
from raidx_fuse.nbd.connection import Budget, ClientPipe
from tests.nbd.conftest import PAGE, SIZE, Backing, Guest, door_to
from tests.support.command import PATH, checked

pytestmark = pytest.mark.real_time
NOBODY = 65534


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture(params=["127.0.0.1", "[::1]", "127.0.0.1 --nbd-any-user"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, bool]]:
    """Serve an array at a port; yield its address, and whether any user may come."""
    host, _, option = request.param.partition(" ")
    address = f"{host}:{free_port()}"
    checked(tmp_path, "create --layout raid0 --size 24M --name disk m1 m2")
    checked(tmp_path, f"serve m1 m2 --nbd {address} {option}")
    yield address, bool(option)
    checked(tmp_path, f"umount /{address}")


@pytest.mark.skipif(os.getuid() != 0, reason="another user is needed")
def test_a_port_is_for_its_owner_and_root_unless_any_user_may(port: tuple[str, bool]) -> None:
    if shutil.which("qemu-io", path=PATH) is None:
        pytest.skip("qemu-io is not installed")
    address, any_user = port

    def io(script: str, user: int) -> bool:
        line = ["qemu-io", "-f", "raw", "-c", script, f"nbd://{address}/disk"]
        options = {"user": user, "group": user} if user else {}
        done = subprocess.run(line, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
        return not done.returncode

    assert io("write -P 7 0 1M", 0)
    assert io("write -P 8 0 1M", NOBODY) == any_user
    assert io("read 0 1M", NOBODY) == any_user
    assert io(f"read -P {8 if any_user else 7} 0 1M", 0)
    # One that has left before anybody looks has no owner: the kernel shows uid 0 for it.
    host, _, number = address.rpartition(":")
    leave = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).close()"
    with ExitStack() as stack:
        for _ in range(20):
            line = ["python3", "-c", leave, host.strip("[]"), number]
            stack.enter_context(subprocess.Popen(line, user=NOBODY))
    assert io("read 0 4k", 0)


async def test_half_writes_of_many_clients_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    """Those that go on are served one after the other; those that trickle are dropped."""
    most = 2 * SIZE
    budget = Budget(most)
    monkeypatch.setattr(door_module, "Budget", lambda: budget)
    monkeypatch.setattr(client_module, "STALLED_S", 0.2)
    monkeypatch.setattr(client_module, "RATE_BYTES_S", 4 << 20)
    seen = [0]

    async def watch(scope: trio.CancelScope, dropped: list[int], answered: list[int]) -> None:
        while len(dropped) + len(answered) < 20:
            seen[0] = max(seen[0], budget.used_bytes)
            await trio.sleep(0.001)
        scope.cancel()

    async with door_to(path, backing) as door:
        guests = [await Guest.connect(door) for _ in range(20)]
        for guest in guests:
            guest.link.write(0, [b"x" * SIZE], SIZE, CommandFlag.FUA)
        whole = [b"".join(map(bytes, guest.link.output())) for guest in guests]
        dropped: list[int] = []
        answered: list[int] = []

        async def trickle(number: int) -> None:
            try:
                await guests[number].stream.send_all(whole[number][: SIZE - 1000])
                for at in range(SIZE - 1000, SIZE - 900):
                    await guests[number].stream.send_all(whole[number][at : at + 1])
                    await trio.sleep(0.1)
            except trio.BrokenResourceError:
                dropped.append(number)

        async def go_on(number: int) -> None:
            await guests[number].stream.send_all(whole[number])
            assert [done.error for done in await guests[number].answers()] == [0]
            answered.append(number)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope, dropped, answered)
                for number in range(20):
                    nursery.start_soon(trickle if number < 10 else go_on, number)
        assert len(dropped) == 10
        assert len(answered) == 10
        assert backing.content == b"x" * SIZE
    assert most / 2 < seen[0] < most + SIZE + 20 * client_module.RECEIVE_BYTES
    assert not budget.used_bytes


async def test_replies_that_many_clients_do_not_take_have_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    """Those that take their replies in the end get them all; those that never do are dropped."""
    most = 4 * SIZE
    budget = Budget(most)
    monkeypatch.setattr(door_module, "Budget", lambda: budget)
    monkeypatch.setattr(client_module, "STALLED_S", 0.3)
    pipes: list[ClientPipe] = []
    unsent = [0]

    class Watched(client_module.Client):
        def __init__(self, pipe: ClientPipe, *others: Any) -> None:
            pipes.append(pipe)
            super().__init__(pipe, *others)

    monkeypatch.setattr(door_module, "Client", Watched)
    async with door_to(path, backing) as door:
        backing.content[:] = random.Random(1).randbytes(SIZE)
        guests = [await Guest.connect(door) for _ in range(20)]
        into = [[bytearray(SIZE) for _ in range(8)] for _ in guests]
        whole: list[int] = []

        async def take(number: int) -> None:
            await trio.sleep(0.01 * number)
            ended = await guests[number].answers(8)
            assert not any(done.error for done in ended)
            assert all(buffer == backing.content for buffer in into[number])
            whole.append(number)

        async def watch(scope: trio.CancelScope) -> None:
            while len(whole) < 10 or door.clients > 10:
                unsent[0] = max(unsent[0], sum(pipe.waiting_bytes for pipe in pipes))
                await trio.sleep(0.001)
            scope.cancel()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope)
                for guest, buffers in zip(guests, into, strict=True):
                    for buffer in buffers:
                        guest.link.read(0, [buffer], SIZE)
                    await guest.send()
                for number in range(10, 20):
                    nursery.start_soon(take, number)
        assert sorted(whole) == list(range(10, 20))
    assert SIZE < unsent[0] < most + client_module.UNSENT_BYTES_MAX + 2 * SIZE
    assert not budget.used_bytes


@pytest.mark.parametrize("then", ["released", "closed"])
async def test_a_long_read_waits_for_memory_and_not_for_good(
    then: str, monkeypatch: pytest.MonkeyPatch, path: Path, backing: Backing
) -> None:
    """It is answered when others release memory; a door that closes does not wait for that."""
    budget = Budget(SIZE)
    monkeypatch.setattr(door_module, "Budget", lambda: budget)
    other = object()
    async with door_to(path, backing) as door:
        backing.content[:] = random.Random(1).randbytes(SIZE)
        budget.note(other, 1)  # it came first
        backing.gates[0] = trio.Event()
        guest = await Guest.connect(door)
        first, second = bytearray(SIZE), bytearray(SIZE - PAGE)
        guest.link.read(0, [first], SIZE)
        guest.link.read(PAGE, [second], SIZE - PAGE)
        await guest.send()
        await trio.sleep(0.05)
        budget.note(other, SIZE)
        backing.gates[0].set()
        assert not (await guest.answers())[0].error
        with trio.move_on_after(0.1) as waited:
            await guest.answers()
        assert waited.cancelled_caught, "it was begun without memory"
        if then == "released":
            budget.note(other, 0)
            assert not (await guest.answers())[0].error
            assert (first, second) == (backing.content, backing.content[PAGE:])
