"""A man in the middle of NBD connections: cuts, delays and reorders them (not their bytes)."""

from __future__ import annotations

import os
import random
from contextlib import suppress

import trio

CHUNK_BYTES = 65536
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class Proxy:
    """Passes connections at the socket *path* on to the one at *target*.

    Every tenth piece of requests is held back, up to *late_s* by *chance*, and at every second one
    of these the connections are closed to the client: the piece reaches the server behind what
    newer connections send.
    """

    def __init__(self, path: str, target: str, chance: random.Random, late_s: float) -> None:
        self.path = path
        self._target = target
        self._chance = chance
        self._late_s = late_s
        self._clients: list[trio.SocketStream] = []
        self._listener = trio.socket.socket(trio.socket.AF_UNIX)
        self._pieces = 0  # of requests
        self.cuts = 0

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pass connections on, until cancelled; started when it listens."""
        await self._listener.bind(self.path)
        self._listener.listen(16)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    sock, _ = await self._listener.accept()
                    nursery.start_soon(self._pass_on, trio.SocketStream(sock))
        finally:
            self._listener.close()
            os.unlink(self.path)

    async def cut(self) -> None:
        """Cut every connection from the client's side."""
        clients, self._clients = self._clients, []
        for client in clients:
            self.cuts += 1
            with suppress(*BROKEN):
                await client.aclose()

    async def _pass_on(self, client: trio.SocketStream) -> None:
        server = await trio.open_unix_socket(self._target)
        self._clients.append(client)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._replies, server, client)
                with suppress(*BROKEN):
                    await self._requests(client, server)
                nursery.cancel_scope.cancel()
        finally:
            server.socket.close()
            client.socket.close()

    async def _requests(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        while True:
            data = await client.receive_some(CHUNK_BYTES)
            if not data:
                return
            self._pieces += 1
            with trio.CancelScope(shield=True):  # held back, whatever happens to the client's side
                if not self._pieces % 20:
                    await self.cut()
                if not self._pieces % 10:
                    await trio.sleep(self._chance.random() * self._late_s)
                await server.send_all(data)

    async def _replies(self, server: trio.SocketStream, client: trio.SocketStream) -> None:
        with suppress(*BROKEN):
            while data := await server.receive_some(CHUNK_BYTES):
                await client.send_all(data)
            await client.aclose()
