"""Accepts the clients of a socket, for as many places as there are.

The control socket, NBD and the web page share it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import trio

log = logging.getLogger(__name__)

ACCEPT_AGAIN_S = 1.0


async def accept(sock: trio.socket.SocketType, what: str) -> trio.socket.SocketType:
    """Return the next client of *sock*; *what* is the log's word for one."""
    while True:
        try:
            client, _ = await sock.accept()
        except OSError as error:  # out of file descriptors: clients wait, and the others go on
            log.warning("%s could not be accepted: %s", what, error)
            await trio.sleep(ACCEPT_AGAIN_S)
        else:
            return client


class Places:
    """Places for *most* clients. When all are taken, a newcomer gets that of an idle one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._idle: dict[trio.CancelScope, None] = {}  # the oldest first

    def take(self) -> bool:
        """Take a place; return False if all are taken by clients that are not idle."""
        if self.taken >= self.most:
            if not self._idle:
                return False
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.cancel()
        self.taken += 1
        return True

    def leave(self) -> None:
        self.taken -= 1

    @contextmanager
    def idle(self, scope: trio.CancelScope) -> Iterator[None]:
        """The client is idle meanwhile: *scope* is cancelled if its place is needed."""
        self._idle[scope] = None
        try:
            yield
        finally:
            self._idle.pop(scope, None)
