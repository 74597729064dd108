"""Serving the page: listeners, the feed and the server in one event loop, until ^C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass

import trio

from raidx_fuse.errors import RaidxError, ungrouped
from raidx_fuse.lab.demo import Demo, demo_array
from raidx_fuse.view.access import Access
from raidx_fuse.view.app import Application
from raidx_fuse.view.feed import Feed
from raidx_fuse.view.server import Limits, Server
from raidx_fuse.view.source import MountSource, Source, require_one_array

LOOPBACK = "127.0.0.1"
PORT = 8470


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The arguments of `raidx view`: *where* is a mount point, or None for the *demo*.

    *names*: further host names under which the page may be asked for. *token*: None if nothing may
    be broken.
    """

    where: str | None = None
    demo: Demo | None = None
    port: int = PORT
    is_public: bool = False
    names: Sequence[str] = ()
    token: str | None = None


def serve(request: PageRequest, ready: Callable[[int], None]) -> None:
    """Serve the page until interrupted; *ready* is called with the port. Raises RaidxError."""
    with ungrouped():
        trio.run(_serve, request, ready)


async def _serve(request: PageRequest, ready: Callable[[int], None]) -> None:
    with ungrouped():
        async with AsyncExitStack() as stack:
            listeners = await _listeners(request)
            for listener in listeners:
                await stack.enter_async_context(listener)
            port = listeners[0].socket.getsockname()[1]
            access = Access(
                port=port, is_public=request.is_public, names=request.names, token=request.token
            )
            source = await stack.enter_async_context(_source(request))
            await serve_page(source, access, listeners, lambda: ready(port))


async def serve_page(
    source: Source,
    access: Access,
    listeners: Sequence[trio.SocketListener],
    ready: Callable[[], None] = lambda: None,
    limits: Limits | None = None,
) -> None:
    """Serve the page of *source* on *listeners* until cancelled."""
    feed = Feed(source)
    server = Server(Application(source, feed, access), limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        nursery.start_soon(server.run, listeners)
        ready()


def _source(request: PageRequest) -> AbstractAsyncContextManager[Source]:
    if request.where is None:
        return demo_array(request.demo or Demo())
    require_one_array(request.where)
    return nullcontext(MountSource(request.where))


async def _listeners(request: PageRequest) -> list[trio.SocketListener]:
    host = None if request.is_public else LOOPBACK
    try:
        return await trio.open_tcp_listeners(request.port, host=host)
    except OSError as error:
        raise RaidxError(
            f"port {request.port} cannot be opened: {error.strerror or error}",
            action="take another one: --port PORT",
        ) from None
