"""The control socket: answers, errors, and clients that behave badly."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from raidx_fuse.daemon import control_server
from raidx_fuse.errors import BusyError, RaidxError, Reason
from tests.support.control import Client, handler
from tests.support.reasons import because

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def serving(
    path: Path, **limits: float
) -> AsyncIterator[tuple[control_server.ControlServer, Callable[[], Awaitable[Client]]]]:
    """Yield a server, and a function that connects."""

    async def connect() -> Client:
        return Client(await trio.open_unix_socket(os.fspath(path)))

    server = control_server.ControlServer(path, handler, **limits)
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run)
                yield server, connect
                nursery.cancel_scope.cancel()
    finally:
        server.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


async def test_many_requests_on_one_connection(path: Path) -> None:
    async with serving(path) as (_, connect):
        client = await connect()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        for number in range(5):
            request = json.dumps({"command": "echo", "arguments": {"n": number}}).encode()
            assert await client.ask(request) == {"result": {"n": number}}
        assert await client.ask(b'{"command":"echo"}') == {"result": {}}
        two = b'{"command":"echo","arguments":{"a":1}}\n{"command":"echo","arguments":{"b":2}}'
        assert await client.ask(two) == {"result": {"a": 1}}
        assert await client.line() == {"result": {"b": 2}}
        await client.stream.aclose()
    assert not path.exists()


async def test_errors_carry_message_action_and_status(path: Path) -> None:
    async with serving(path) as (_, connect):
        client = await connect()
        assert await client.ask(b'{"command":"refuse"}') == {
            "error": {
                "kind": "usage",
                "reason": "argument",
                "message": "no such thing",
                "action": "try another",
                "exit_status": 2,
            }
        }
        await client.stream.aclose()


async def test_bugs_are_answered_logged_and_survived(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path) as (server, connect):
        client = await connect()
        answer = await client.ask(b'{"command":"crash"}')
        assert "met a bug in raidx: ZeroDivisionError" in answer["error"]["message"]
        assert "bug" in (await client.ask(b'{"command":"unsendable"}'))["error"]["message"]
        assert await client.ask(b'{"command":"echo"}') == {"result": {}}
        await client.stream.aclose()
    assert server.bugs == 2
    assert "a bug of the test's own" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"command":7}',
        b"[" * 100_000,
        b'{"command":"echo","arguments":[]}',
        b'{"command":"echo","arguments":null}',
    ],
)
async def test_garbage_gets_an_error_and_harms_nobody(path: Path, garbage: bytes) -> None:
    async with serving(path) as (_, connect):
        client = await connect()
        answer = await client.ask(garbage)
        assert answer["error"]["exit_status"] == 2
        assert await client.ask(b'{"command":"echo"}') == {"result": {}}
        await client.stream.aclose()


async def test_a_line_without_end_is_cut_off(path: Path) -> None:
    async with serving(path) as (_, connect):
        client = await connect()
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.send_all(b"x" * (64 << 20))
        await client.stream.aclose()
        other = await connect()
        assert await other.ask(b'{"command":"echo"}') == {"result": {}}
        await other.stream.aclose()


async def test_clients_that_say_nothing_or_read_nothing_are_dropped(path: Path) -> None:
    async with serving(path, idle_s=0.2, send_s=0.2) as (_, connect):
        silent, deaf = await connect(), await connect()
        await deaf.stream.send_all(b'{"command":"huge"}\n')
        assert await silent.line() is None  # the end, without an answer
        await trio.sleep(0.4)
        # Only what the socket's buffer held of the huge answer arrives.
        received = 0
        while data := await deaf.stream.receive_some():
            received += len(data)
        assert received < 8 << 20
        await silent.stream.aclose()
        await deaf.stream.aclose()


async def test_idle_connections_lock_nobody_out(path: Path) -> None:
    async with serving(path) as (_, connect):
        idle = []
        for _ in range(control_server.CLIENTS_MAX):
            idle.append(await connect())
            await trio.testing.wait_all_tasks_blocked()
        for client in idle[1:]:
            await client.stream.send_all(b'{"command":')  # or half a request
        for number in range(3):
            late = await connect()
            assert await late.ask(b'{"command":"echo"}') == {"result": {}}
            assert await idle[number].line() is None  # who was idle longest made room
            idle.append(late)
        for client in idle:
            await client.stream.aclose()


async def test_when_all_are_at_work_the_next_is_told_so_and_the_places_come_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "CLIENTS_MAX", 3)
    async with serving(path) as (_, connect):
        clients = [await connect() for _ in range(3)]
        for client in clients:
            await client.stream.send_all(b'{"command":"wait","arguments":{"seconds":0.3}}\n')
        await trio.testing.wait_all_tasks_blocked()
        late = await connect()
        answer = await late.line()
        assert answer["error"]["message"] == "3 commands are under way on this mount"
        assert await late.line() is None
        await late.stream.aclose()
        for client in clients:
            assert await client.line() == {"result": {"waited": True}}
        again = await connect()
        assert await again.ask(b'{"command":"echo"}') == {"result": {}}
        for client in [*clients, again]:
            await client.stream.aclose()


async def test_a_handler_outlives_its_client(path: Path) -> None:
    done: list[bool] = []

    async def slow(command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await trio.sleep(0.1)
        done.append(True)
        return {}

    server = control_server.ControlServer(path, slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        stream = await trio.open_unix_socket(os.fspath(path))
        await stream.send_all(b'{"command":"x"}\n')
        await trio.sleep(0.02)
        await stream.aclose()
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()
    server.close()
    assert done == [True]


def test_two_servers_and_a_stale_socket(path: Path) -> None:
    first = control_server.ControlServer(path, handler)
    with pytest.raises(BusyError, check=because(Reason.MOUNTED)):
        control_server.ControlServer(path, handler)
    first._listener.close()  # as a killed daemon leaves it: the name stays
    assert path.exists()
    control_server.ControlServer(path, handler).close()
    assert not path.exists()


def test_a_path_too_long_for_a_socket_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(RaidxError, match="path too long"):
        control_server.ControlServer(tmp_path / ("x" * 120), handler)
