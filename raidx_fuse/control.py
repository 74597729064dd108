"""The control socket of a running mount: one JSON line asks, one JSON line answers.

    --> {"command": "status", "arguments": {}}
    <-- {"result": {...}}
    <-- {"error": {"message": "...", "action": "..." or null, "exit_status": 1}}

A connection carries any number of requests, one after the other. Whatever a client does (sends
nothing, sends garbage, reads nothing, goes away) costs the daemon at most one of `CLIENTS_MAX`
connections for a bounded time; a handler that has begun is never cancelled by its client's going,
because half a `replace-disk` is worse than one nobody waits for. A bug in a handler is logged with
its traceback and answered; the mount goes on.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from raidx_fuse import mountpoint as mountpoints
from raidx_fuse import runtime
from raidx_fuse.errors import BusyError, RaidxError

log = logging.getLogger(__name__)

Handler = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

REQUEST_BYTES_MAX = 1 << 20
CLIENTS_MAX = 64
IDLE_S = 300.0
SEND_S = 30.0
_RECEIVE_BYTES = 65536
_UCRED = struct.Struct("3i")


class ControlError(RaidxError):
    """What the daemon answered, or why it could not be asked."""

    def __init__(self, message: str, *, action: str | None = None, exit_status: int = 1) -> None:
        super().__init__(message, action=action)
        self.exit_status = exit_status


# ---- the daemon's side ----


class ControlServer:
    """Serves *handler* on the socket *path* until cancelled.

    The socket exists from construction on; `close` removes it.
    """

    def __init__(
        self,
        path: Path,
        handler: Handler,
        *,
        idle_s: float = IDLE_S,
        send_s: float = SEND_S,
    ) -> None:
        self.path = path
        self.bugs = 0
        self._handler = handler
        self._idle_s = idle_s
        self._send_s = send_s
        self._clients = 0
        _remove_stale(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Bound inside a directory that nobody else can enter; the mode is the second lock.
            self._listener.bind(os.fspath(path))
            path.chmod(0o600)
            self._listener.listen(CLIENTS_MAX)
        except OSError as error:
            self._listener.close()
            raise RaidxError(
                f"the control socket {path} cannot be made: {error.strerror or error}"
            ) from None

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.close()
        self.path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Answer clients until cancelled."""
        listener = trio.socket.from_stdlib_socket(self._listener)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    client, _ = await listener.accept()
                except OSError as error:
                    # Out of file descriptors: those clients wait, the mount goes on.
                    log.warning("a control client could not be accepted: %s", error)
                    await trio.sleep(1)
                    continue
                if self._clients >= CLIENTS_MAX or _peer(client)[1] not in {0, os.getuid()}:
                    client.close()
                    continue
                self._clients += 1
                nursery.start_soon(self._serve, trio.SocketStream(client))

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await self._serve_lines(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client went away
        finally:
            self._clients -= 1

    async def _serve_lines(self, stream: trio.SocketStream) -> None:
        waiting = bytearray()
        while True:
            with trio.move_on_after(self._idle_s) as idle:
                while (end := waiting.find(b"\n")) < 0:
                    if len(waiting) > REQUEST_BYTES_MAX:
                        await self._send(stream, _error_answer("the request is too long"))
                        return
                    received = await stream.receive_some(_RECEIVE_BYTES)
                    if not received:
                        return
                    waiting += received
            if idle.cancelled_caught:
                return
            line = bytes(waiting[:end])
            del waiting[: end + 1]
            if not await self._send(stream, await self._answer(line)):
                return

    async def _send(self, stream: trio.SocketStream, answer: dict[str, Any]) -> bool:
        data = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
        with trio.move_on_after(self._send_s) as sending:
            await stream.send_all(data)
        return not sending.cancelled_caught

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            command, arguments = request["command"], request.get("arguments", {})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return _error_answer('not a request: {"command": ..., "arguments": {...}}', status=2)
        if not isinstance(command, str) or not isinstance(arguments, dict):
            return _error_answer("command must be a string, arguments an object", status=2)
        try:
            answer = {"result": await self._handler(command, arguments)}
            json.dumps(answer)  # an answer that cannot be sent is the handler's bug as well
        except RaidxError as error:
            return _error_answer(error.message, error.action, error.exit_status)
        except Exception as error:
            self.bugs += 1
            log.critical("bug: control command %r", command, exc_info=error)
            return _error_answer(
                f"{command} met a bug in raidx: {type(error).__name__}: {error}",
                "see the mount's log; `raidx status` names it",
            )
        return answer


def _error_answer(message: str, action: str | None = None, status: int = 1) -> dict[str, Any]:
    return {"error": {"message": message, "action": action, "exit_status": status}}


def _peer(client: Any) -> tuple[int, int]:
    """Return (pid, uid) of the other end of a Unix socket."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on; raise BusyError if somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise BusyError("another raidx daemon serves this mount point already")


# ---- the command's side ----


class Connection:
    """One connection to the daemon of *mountpoint*; `with` closes it.

    Raises ControlError, in one line, if nothing of raidx is mounted there.
    """

    def __init__(self, mountpoint: str | os.PathLike[str], *, timeout_s: float | None = None):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._where = os.fspath(mountpoint)
        self._waiting = bytearray()
        try:
            self._socket.connect(os.fspath(runtime.files_of_mount(mountpoint).socket))
        except OSError as error:
            self._socket.close()
            raise _unreachable(mountpoint, error) from None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def daemon_pid(self) -> int:
        """The process that serves the mount."""
        return _peer(self._socket)[0]

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of *command*; raise ControlError with what the daemon answered."""
        request = json.dumps({"command": command, "arguments": arguments}).encode() + b"\n"
        try:
            self._socket.sendall(request)
            while (end := self._waiting.find(b"\n")) < 0:
                received = self._socket.recv(_RECEIVE_BYTES)
                if not received:
                    raise ConnectionResetError
                self._waiting += received
        except TimeoutError:
            raise ControlError(f"the daemon of {self._where} did not answer in time") from None
        except OSError:
            raise ControlError(f"the daemon of {self._where} ended before it answered") from None
        answer = json.loads(bytes(self._waiting[:end]))
        del self._waiting[: end + 1]
        if "error" in answer:
            raise ControlError(**answer["error"])
        result: dict[str, Any] = answer["result"]
        return result


def call(
    mountpoint: str | os.PathLike[str],
    command: str,
    *,
    timeout_s: float | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Ask the daemon of *mountpoint* one thing; see `Connection.call`."""
    with Connection(mountpoint, timeout_s=timeout_s) as connection:
        return connection.call(command, **arguments)


def _unreachable(mountpoint: str | os.PathLike[str], error: OSError) -> ControlError:
    mount = mountpoints.find(mountpoint)
    path = mountpoints.real_path(mountpoint)
    if mount is None:
        return ControlError(
            f"no array is mounted on {path}", action=f"mount it: raidx mount MEMBER... {path}"
        )
    if mount.fs_type != mountpoints.FUSE_TYPE:
        return ControlError(f"{path} is a mount of {mount.fs_type}, not of raidx")
    if mount.owner not in {None, os.getuid()} and os.getuid() != 0:
        return ControlError(f"the mount on {path} belongs to another user (uid {mount.owner})")
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return ControlError(
            f"the daemon of {path} is gone",
            action=f"clear the mount point: {mountpoints.unmount_command(path)}",
        )
    return ControlError(f"the daemon of {path} cannot be reached: {error.strerror}")


def wait_for_exit(pid: int, timeout_s: float | None = None) -> bool:
    """Wait until process *pid* has ended: a daemon flushes and closes its array after unmounting.

    Returns False when *timeout_s* passed first.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        wait_ms = None if timeout_s is None else math.ceil(timeout_s * 1000)
        return bool(poll.poll(wait_ms))
    finally:
        os.close(descriptor)
