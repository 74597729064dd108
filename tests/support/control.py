"""A handler of commands, and a raw client of a control socket."""

from __future__ import annotations

import json
from typing import Any

import trio
import trio.testing

from raidx_fuse.errors import UsageError


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
        await self.stream.send_all(raw + b"\n")
        return await self.line()
