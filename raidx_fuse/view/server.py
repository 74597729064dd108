"""A small HTTP/1.1 server on trio that calls an ASGI application; h11 knows the protocol.

Whatever a client does, it occupies one of `clients_max` connections for a bounded time and a
bounded number of bytes:

    idle, sends a head in drops     closed after `receive_s`, head and body together
    long head, long body            431, 413, and closed
    reads nothing                   closed when one send has taken `send_s`
    many connections                the one that has been idle longest is closed for the next; one
                                    address has `address_max` at most, except this machine's own

Only the event stream is open for long, and its number is bounded by the application. (Hypercorn
was looked at: six packages, a send that cannot be cancelled, no bound on connections.)
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
import trio

from raidx_fuse.loop.acceptor import Places, accept

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK, NOBODY = "127.0.0.1", "0.0.0.0"
_RECEIVE_BYTES = 16384
_LINGER_BYTES = 64 << 10  # taken from a client that was refused, so that it reads the answer
_LINGER_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may use, in numbers, bytes and seconds."""

    clients_max: int = 128
    address_max: int = 16
    head_bytes_max: int = 16 << 10
    body_bytes_max: int = 4 << 10
    requests_max: int = 1000  # of one connection
    receive_s: float = 15.0
    send_s: float = 20.0


class _Refused(Exception):
    """The request cannot be answered: *status* and the end of the connection."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _TooSlow(Exception):
    """The client does not read."""


class Server:
    """Serves *app* to clients, within *limits*. *bugs* counts exceptions of the application."""

    def __init__(self, app: App, limits: Limits | None = None) -> None:
        self._app = app
        self._limits = limits or Limits()
        self.places = Places(self._limits.clients_max)
        self._of_address: Counter[str] = Counter()
        self.bugs = 0

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            stream = trio.SocketStream(await accept(listener.socket, "a client"))
            nursery.start_soon(self.serve, stream, _address_of(stream))

    async def serve(self, stream: trio.abc.Stream, address: str = LOOPBACK) -> None:
        """Answer the requests of one client at *address* until it leaves, or is asked to."""
        is_own = ipaddress.ip_address(address).is_loopback
        if not is_own and self._of_address[address] >= self._limits.address_max:
            await trio.aclose_forcefully(stream)
            return
        if not self.places.take():
            await trio.aclose_forcefully(stream)
            return
        self._of_address[address] += 1
        try:
            await _Connection(self._app, self._limits, stream, self.places).run()
        except (trio.BrokenResourceError, trio.ClosedResourceError, _TooSlow):
            pass  # the client is gone, or as good as gone
        except Exception:
            self.bugs += 1
            log.critical("bug in the web page", exc_info=True)
        finally:
            self.places.leave()
            self._of_address -= Counter((address,))  # one that has none any more is forgotten
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)


def _address_of(stream: trio.SocketStream) -> str:
    """Return the address of the other end; that of nobody if it has left."""
    try:
        return str(stream.socket.getpeername()[0]).partition("%")[0]
    except OSError:
        return NOBODY


class _Connection:
    def __init__(self, app: App, limits: Limits, stream: trio.abc.Stream, places: Places) -> None:
        self._app = app
        self._limits = limits
        self._stream = stream
        self._places = places
        self._protocol = h11.Connection(h11.SERVER, limits.head_bytes_max)

    async def run(self) -> None:
        for _ in range(self._limits.requests_max):
            with trio.move_on_after(self._limits.receive_s) as patience:
                try:
                    request, body = await self._request(patience)
                except _Refused as refusal:
                    await self._refuse(refusal.status)
                    return
            if patience.cancelled_caught or request is None:
                return
            await self._answer(request, body)
            if self._protocol.our_state is not h11.DONE:
                return
            if self._protocol.their_state is not h11.DONE:
                return
            self._protocol.start_next_cycle()

    # -- in ----------------------------------------------------------------------------------------

    async def _request(self, patience: trio.CancelScope) -> tuple[h11.Request | None, bytes]:
        """Return the next request and its body; None if the client has left."""
        with self._places.idle(patience):
            request = await self._event()
        if not isinstance(request, h11.Request):
            return None, b""
        body = bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return request, bytes(body)
            if not isinstance(event, h11.Data):
                return None, b""
            body += event.data
            if len(body) > self._limits.body_bytes_max:
                raise _Refused(413)

    async def _event(self) -> Any:
        while True:
            try:
                event = self._protocol.next_event()
                if event is not h11.NEED_DATA:
                    return event
                if self._protocol.they_are_waiting_for_100_continue:
                    raise _Refused(417)
                data = await self._stream.receive_some(_RECEIVE_BYTES)
                self._protocol.receive_data(bytes(data))
            except h11.RemoteProtocolError as error:
                raise _Refused(error.error_status_hint) from None

    async def _left(self) -> Message:
        """Return when the client leaves, or sends more before it was answered."""
        with suppress(trio.BrokenResourceError):
            await self._stream.receive_some(1)
        return {"type": "http.disconnect"}

    # -- out ---------------------------------------------------------------------------------------

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        target, _, query = request.target.partition(b"?")
        is_head = request.method == b"HEAD"
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await self._left()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._send(
                    h11.Response(status_code=message["status"], headers=message["headers"])
                )
                return
            if message.get("body") and not is_head:
                await self._send(h11.Data(data=message["body"]))
            if not message.get("more_body"):
                await self._send(h11.EndOfMessage())

        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode("ascii", "replace"),
            "scheme": "http",
            "path": target.decode("ascii", "replace"),
            "raw_path": bytes(target),
            "query_string": bytes(query),
            "headers": [(bytes(name), bytes(value)) for name, value in request.headers],
        }
        try:
            await self._app(scope, receive, send)
        except h11.LocalProtocolError:
            raise
        except (trio.BrokenResourceError, trio.ClosedResourceError, _TooSlow):
            raise
        except Exception:
            if self._protocol.our_state is h11.SEND_RESPONSE:
                await self._refuse(500)
            raise

    async def _send(self, event: h11.Event) -> None:
        data = self._protocol.send(event)
        if data:
            with trio.move_on_after(self._limits.send_s) as sending:
                await self._stream.send_all(data)
            if sending.cancelled_caught:
                raise _TooSlow

    async def _refuse(self, status: int) -> None:
        """Answer *status* with nothing, and let the client read it before the connection ends."""
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("Content-Length", "0"), ("Connection", "close")]
        await self._send(h11.Response(status_code=status, headers=headers))
        await self._send(h11.EndOfMessage())
        if isinstance(self._stream, trio.SocketStream):
            await self._stream.send_eof()
        taken = 0
        with trio.move_on_after(_LINGER_S):
            while taken < _LINGER_BYTES:
                data = await self._stream.receive_some(_RECEIVE_BYTES)
                if not data:
                    return
                taken += len(data)
