"""The control socket: answers, errors, and clients that behave badly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from raidx_fuse.cli.main import main
from raidx_fuse.daemon import control_server, control_socket, paths
from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.members.threads import in_thread

Exchange = Callable[[bytes], Awaitable[dict[str, Any]]]


async def handler(command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match command:
        case "echo":
            return arguments
        case "wait":
            await trio.sleep(arguments["seconds"])
            return {"waited": True}
        case "refuse":
            raise UsageError("no such thing", action="try another")
        case "unsendable":
            return {"it": object()}
        case "huge":
            return {"it": "x" * (8 << 20)}
    raise ZeroDivisionError("a bug of the test's own")


class Client:
    """A raw client of a server in this process."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.received = b""

    async def line(self) -> dict[str, Any] | None:
        """Return the next answer, None at the end."""
        while b"\n" not in self.received:
            data = await self.stream.receive_some()
            if not data:
                return None
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def ask(self, raw: bytes) -> dict[str, Any] | None:
        """Send a raw line, return the answer."""
        await self.stream.send_all(raw + b"\n")
        return await self.line()


def serve(
    path: Path, use: Callable[[Callable[[], Awaitable[Client]]], Awaitable[None]], **limits: float
) -> control_server.ControlServer:
    """Run *use* (given a function that connects) beside a server."""

    async def connect() -> Client:
        return Client(await trio.open_unix_socket(os.fspath(path)))

    async def main() -> control_server.ControlServer:
        server = control_server.ControlServer(path, handler, **limits)
        try:
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(server.run)
                    await use(connect)
                    nursery.cancel_scope.cancel()
        finally:
            server.close()
        return server

    return trio.run(main)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The directory of sockets and logs; tmp_path may be too long for a socket."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(paths, "directory_of", lambda user: Path(directory) / "raidx")
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def test_many_requests_on_one_connection(path: Path) -> None:
    async def use(connect: Any) -> None:
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

    serve(path, use)
    assert not path.exists()


def test_errors_carry_message_action_and_status(path: Path) -> None:
    async def use(connect: Any) -> None:
        client = await connect()
        assert await client.ask(b'{"command":"refuse"}') == {
            "error": {"message": "no such thing", "action": "try another", "exit_status": 2}
        }
        await client.stream.aclose()

    serve(path, use)


def test_bugs_are_answered_logged_and_survived(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(connect: Any) -> None:
        client = await connect()
        answer = await client.ask(b'{"command":"crash"}')
        assert "met a bug in raidx: ZeroDivisionError" in answer["error"]["message"]
        assert "bug" in (await client.ask(b'{"command":"unsendable"}'))["error"]["message"]
        assert await client.ask(b'{"command":"echo"}') == {"result": {}}
        await client.stream.aclose()

    assert serve(path, use).bugs == 2
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
def test_garbage_gets_an_error_and_harms_nobody(path: Path, garbage: bytes) -> None:
    async def use(connect: Any) -> None:
        client = await connect()
        answer = await client.ask(garbage)
        assert answer["error"]["exit_status"] == 2
        assert await client.ask(b'{"command":"echo"}') == {"result": {}}
        await client.stream.aclose()

    serve(path, use)


def test_a_line_without_end_is_cut_off(path: Path) -> None:
    async def use(connect: Any) -> None:
        client = await connect()
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.send_all(b"x" * (64 << 20))
        await client.stream.aclose()
        other = await connect()
        assert await other.ask(b'{"command":"echo"}') == {"result": {}}
        await other.stream.aclose()

    serve(path, use)


def test_clients_that_say_nothing_or_read_nothing_are_dropped(path: Path) -> None:
    async def use(connect: Any) -> None:
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

    serve(path, use, idle_s=0.2, send_s=0.2)


def test_idle_connections_lock_nobody_out(path: Path) -> None:
    async def use(connect: Any) -> None:
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

    serve(path, use)


def test_when_all_are_at_work_the_next_is_told_so_and_the_places_come_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "CLIENTS_MAX", 3)

    async def use(connect: Any) -> None:
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

    serve(path, use)


def test_a_handler_outlives_its_client(path: Path) -> None:
    done: list[bool] = []

    async def slow(command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await trio.sleep(0.1)
        done.append(True)
        return {}

    async def main() -> None:
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

    trio.run(main)
    assert done == [True]


def test_two_servers_and_a_stale_socket(path: Path) -> None:
    first = control_server.ControlServer(path, handler)
    with pytest.raises(BusyError, match="another raidx daemon"):
        control_server.ControlServer(path, handler)
    first._listener.close()  # as a killed daemon leaves it: the name stays
    assert path.exists()
    control_server.ControlServer(path, handler).close()
    assert not path.exists()


def test_a_path_too_long_for_a_socket_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(RaidxError, match="path too long"):
        control_server.ControlServer(tmp_path / ("x" * 120), handler)


# ---- the directory ----


def test_the_directory_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "directory_of", lambda user: tmp_path / "raidx")
    assert stat.S_IMODE(paths.own_directory().stat().st_mode) == 0o700
    (tmp_path / "raidx").chmod(0o755)
    with pytest.raises(RaidxError, match="accessible to other users; close it: chmod 700"):
        paths.own_directory()


def test_a_directory_that_someone_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "raidx").symlink_to("elsewhere")
    monkeypatch.setattr(paths, "directory_of", lambda user: tmp_path / "raidx")
    with pytest.raises(RaidxError, match="belongs to another user"):
        paths.own_directory()
    (tmp_path / "raidx").unlink()
    (tmp_path / "raidx").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    with pytest.raises(RaidxError, match="belongs to another user"):
        paths.own_directory()


def test_which_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert paths.directory_of(4321) == tmp_path / "raidx"
    assert paths.directory_of(4322) == Path("/tmp/raidx-4322")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert paths.directory_of(4321) == Path("/tmp/raidx-4321")
    assert paths.directory_of(0) == Path("/run/raidx")


@pytest.mark.usefixtures("runtime")
def test_logs_of_mounts_that_have_ended_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ENDED_LOGS_BYTES_MAX", 100_000)
    directory = paths.own_directory()
    own, mounted = paths.files_in(directory, "/own").log, paths.files_in(directory, "/proc").log
    served = paths.files_in(directory, "/unmounted-but-flushing")
    ended = [paths.files_in(directory, f"/gone{number}").log for number in range(20)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(served.socket))
        listener.listen()
        for age, log in enumerate([own, mounted, served.log, *ended]):
            log.write_bytes(b"x" * 1000)
            os.utime(log, (10**9 - age, 10**9 - age))
        assert paths.own_files("/own").log == own
        left = set(directory.glob("*.log*"))
        assert left == {own, mounted, served.log, *ended[: paths.ENDED_LOGS_KEPT]}
        ended[1].write_bytes(b"x" * 99_500)
        os.utime(ended[1], (10**9 - 4, 10**9 - 4))
        paths.own_files("/own")
        assert set(directory.glob("*.log*")) == {own, mounted, served.log, ended[0]}


# ---- the client ----


@pytest.mark.usefixtures("runtime")
def test_a_daemon_that_hangs_is_told_from_one_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "PATIENCE_S", 0.1)
    files = paths.own_files(tmp_path)
    with socket.socket(socket.AF_UNIX) as stopped:  # its kernel takes connections, nobody answers
        stopped.bind(os.fspath(files.socket))
        stopped.listen()
        with pytest.raises(control_socket.ControlError, match=r"does not answer: it hangs"):
            control_socket.call(tmp_path, "add-disk")
        with pytest.raises(control_socket.ControlError, match=r"did not answer in time"):
            control_socket.call(tmp_path, "status", timeout_s=0.2)
        with (
            control_socket.Connection(tmp_path) as connection,
            pytest.raises(control_socket.ControlError, match=r"does not answer"),
        ):
            connection.call("set", value="x" * (8 << 20))  # more than the socket takes
        others = [socket.socket(socket.AF_UNIX) for _ in range(200)]
        for other in others:  # until the queue of those who wait is full
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(os.fspath(files.socket))
        with pytest.raises(control_socket.ControlError, match=r"does not answer"):
            control_socket.call(tmp_path, "status")
        for other in others:
            other.close()
    files.socket.unlink()
    server = control_server.ControlServer(files.socket, handler)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            call = partial(control_socket.call, tmp_path, "wait", seconds=0.5)
            answer = await in_thread("the test", call)
            assert answer == {"waited": True}
            nursery.cancel_scope.cancel()

    trio.run(main)
    server.close()


def test_calling_where_nothing_is_mounted(tmp_path: Path) -> None:
    with pytest.raises(
        control_socket.ControlError,
        match=r"no array is mounted on .*; mount it: raidx mount MEMBER",
    ):
        control_socket.call(tmp_path, "status")
    with pytest.raises(control_socket.ControlError, match="/proc is a mount of proc, not of raidx"):
        control_socket.call("/proc", "status")


@pytest.mark.mount
def test_calling_a_mount(fake_mount: Callable[..., Any]) -> None:
    fake = fake_mount()
    with control_socket.Connection(fake.path) as connection:
        assert connection.daemon_pid == fake.process.pid
        for _ in range(3):
            assert connection.call("counts")["writes"] == 0
        with pytest.raises(
            control_socket.ControlError, match="refused; ask for something else"
        ) as caught:
            connection.call("refuse")
        assert caught.value.exit_status == 1
        with pytest.raises(control_socket.ControlError, match="met a bug"):
            connection.call("nonsense")
        assert connection.call("report")["mountpoint"] == str(fake.path)
    with pytest.raises(control_socket.ControlError, match="did not answer in time"):
        control_socket.call(fake.path, "ticks", timeout_s=0.2, seconds=1)
    with socket.socket(socket.AF_UNIX) as idle:  # hangs on the socket while the mount ends
        idle.connect(os.fspath(paths.files_of_mount(fake.path).socket))
        assert "Traceback" in fake.unmount()  # of the nonsense above
    assert control_socket.wait_for_exit(fake.process.pid)


@pytest.mark.mount
def test_a_daemon_stopped_by_a_signal_is_named(
    fake_mount: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "PATIENCE_S", 0.1)
    fake = fake_mount()
    pid = fake.process.pid
    said = f"process {pid}, which serves the mount, is stopped .*; continue it: kill -CONT {pid}"
    os.kill(pid, signal.SIGSTOP)
    try:
        while not any(" (stopped)" in line for line in state(pid)):
            time.sleep(0.01)
        with pytest.raises(control_socket.ControlError, match=said):
            control_socket.call(fake.path, "counts")
        with pytest.raises(control_socket.ControlError, match=said):
            control_socket.call(fake.path, "counts", timeout_s=0.05)
        with pytest.raises(control_socket.ControlError, match=said):
            control_socket.wait_for_exit(pid)
        done = CliRunner().invoke(main, ["umount", str(fake.path)])
        assert done.exit_code == 1
        assert "is stopped by a signal" in done.stderr
        # Nor does a command look at a path on the mount itself.
        done = CliRunner().invoke(main, ["replace-disk", str(fake.path), "0", f"{fake.path}/disk"])
        assert "is stopped by a signal" in done.stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    fake.unmount()


def state(pid: int) -> list[str]:
    """Return the lines of a process's state."""
    return Path(f"/proc/{pid}/status").read_text().splitlines()
