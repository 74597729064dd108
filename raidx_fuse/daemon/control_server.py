"""The server side of the control socket; `raidx_fuse.daemon.control_client` defines the protocol.

Root and the user of the daemon may connect; daemon/paths.py closes the directory to others.

A connection carries any number of requests, one after the other. Whatever a client does (sends
nothing, sends garbage, reads nothing, disconnects), it occupies at most one of `CLIENTS_MAX`
connections for a bounded time, and the connection that has been idle longest is closed for the next
client. A handler that has begun is not cancelled when its client disconnects: a `replace-disk` that
stops halfway is worse than one whose answer nobody reads. A bug in a handler is logged with its
traceback and answered as an error; the mount continues.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from raidx_fuse.daemon.control_client import peer
from raidx_fuse.errors import BusyError, RaidxError, Reason, UsageError
from raidx_fuse.loop.acceptor import Places, accept

log = logging.getLogger(__name__)

Handler = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, object]]]

REQUEST_BYTES_MAX = 1 << 20
CLIENTS_MAX = 64
IDLE_S = 300.0
SEND_S = 30.0
_RECEIVE_BYTES = 65536


class ControlServer:
    """Serves *handler* on the socket *path* until cancelled.

    The constructor creates the socket; `close` removes it.
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
        self._places = Places(CLIENTS_MAX)
        _remove_stale(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The directory is closed to other users; the mode is a second protection.
            self._listener.bind(os.fspath(path))
            path.chmod(0o600)
            self._listener.listen(CLIENTS_MAX)
        except OSError as error:
            self._listener.close()
            raise RaidxError(
                f"the control socket {path} cannot be created: {error.strerror or error}",
                reason=Reason.FILE,
            ) from None

    def close(self) -> None:
        self._listener.close()
        self.path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Answer clients until cancelled. A bug closes the socket; the front ends continue."""
        try:
            await self._accept()
        except Exception:
            log.critical("bug: the control socket is closed", exc_info=True)

    async def _accept(self) -> None:
        listener = trio.socket.from_stdlib_socket(self._listener)
        async with trio.open_nursery() as nursery:
            while True:
                client = await accept(listener, "a control client")
                if peer(client)[1] not in {0, os.getuid()}:
                    client.close()
                elif self._places.take():
                    nursery.start_soon(self._serve, trio.SocketStream(client))
                else:
                    _turn_away(client)

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await self._serve_lines(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client disconnected
        finally:
            self._places.leave()

    async def _serve_lines(self, stream: trio.SocketStream) -> None:
        waiting = bytearray()
        while True:
            searched = 0
            with trio.move_on_after(self._idle_s) as idle, self._places.idle(idle):
                while (end := waiting.find(b"\n", searched)) < 0:
                    searched = len(waiting)
                    if searched > REQUEST_BYTES_MAX:
                        await self._send(stream, _refusal(UsageError("the request is too long")))
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

    async def _send(self, stream: trio.SocketStream, data: bytes) -> bool:
        with trio.move_on_after(self._send_s) as sending:
            await stream.send_all(data)
        return not sending.cancelled_caught

    async def _answer(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
            command, arguments = request["command"], request.get("arguments", {})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return _refusal(UsageError('not a request: {"command": ..., "arguments": {...}}'))
        if not isinstance(command, str) or not isinstance(arguments, dict):
            return _refusal(UsageError("command must be a string, arguments an object"))
        try:
            # An answer that cannot be encoded is a bug of the handler too.
            return _encoded({"result": await self._handler(command, arguments)})
        except RaidxError as error:
            return _refusal(error)
        except Exception as error:
            self.bugs += 1
            log.critical("bug: control command %r", command, exc_info=error)
            return _refusal(
                RaidxError(
                    f"{command} met a bug in raidx: {type(error).__name__}: {error}",
                    action="see the mount's log; `raidx status` names it",
                    reason=Reason.BUG,
                )
            )


def _encoded(answer: Mapping[str, object]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"


def _refusal(error: RaidxError) -> bytes:
    return _encoded({"error": error.as_dict()})


def _turn_away(client: trio.socket.SocketType) -> None:
    """Tell *client* that all connections are busy, without waiting for it."""
    busy = _refusal(
        BusyError(
            f"{CLIENTS_MAX} commands are under way on this mount",
            action="try again when one has ended",
            reason=Reason.LIMIT,
        )
    )
    with contextlib.suppress(OSError):
        os.write(client.fileno(), busy)  # its buffer is empty, and the socket is non-blocking
    client.close()


def _remove_stale(path: Path) -> None:
    """Remove a socket without a listener; raise BusyError if there is one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise BusyError("another raidx daemon serves this mount point already", reason=Reason.MOUNTED)
