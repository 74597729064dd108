"""The page's server on streams in memory and a scripted daemon, in virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    lockstep_stream_pair,
    memory_stream_pair,
)

from raidx_fuse.daemon.control_client import check_answer
from raidx_fuse.errors import RaidxError
from raidx_fuse.view.access import Access
from raidx_fuse.view.app import Application
from raidx_fuse.view.feed import Feed
from raidx_fuse.view.server import Limits, Server
from tests.support import documents
from tests.support.rigs import MakeRig

TOKEN = "a token of the teacher"
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Script:
    """The daemon of another user, with these answers; *asked* and *done* are what it was asked."""

    where = "/mnt"
    actions: Collection[str] = ("fail-disk", "replace-disk", "inject")

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.problem: RaidxError | None = None
        self.told: list[dict[str, Any]] = []
        self.next = 0
        self.cells: list[list[Any]] = []
        self.stats: dict[str, Any] = documents.stats()
        self.status = documents.status(events=1, lab=[])
        self.change: dict[str, Any] = {"kind": None, "number": 0}
        self.places = [
            {
                "cell": f"D{n}",
                "role": n,
                "path": f"/disks/d{n}.img",
                "member_offset": 0,
                "image_offset": 4096 * n,
                "written": True,
                "lost": False,
            }
            for n in range(4)
        ]

    async def ask(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        await trio.sleep(0.001)
        if self.problem is not None:
            raise self.problem
        self.asked += [name for name, _ in questions]
        answers = [self._answer(name, arguments) for name, arguments in questions]
        for (name, arguments), answer in zip(questions, answers, strict=True):
            check_answer(name, arguments, answer)
        return answers

    def _answer(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "status":
            return self.status
        if name == "stats":
            return self.stats
        if name == "compare":
            return self.change
        if name == "trace":
            self.next += 1
            more = {"requests": [], "cells": self.cells, "log": [], "missed": 0, "other": 0}
            sizes = {"stripes": 24, "chunk_size": 65536, "data_offset": 1 << 20}
            return {"next": self.next, **sizes, **more}
        if "stripe" in arguments:
            state = {"layout": "raid5", "state": [], "journal": "", "parity_may_follow": False}
            return {"stripe": arguments["stripe"], "cells": self.places, **state}
        told = {"operation": "read", "layout": "raid5", "policy": "auto", "stripes": []}
        return {**arguments, **told, "reads": 0, "writes": 0}

    async def act(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.done.append((command, arguments))
        return {}

    async def events(self, uuid: str) -> list[dict[str, Any]]:
        return self.told

    def replacement(self, path: str) -> str:
        return path


class Answer:
    """A response: *status*, *headers*, *body*."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        pairs = [line.partition(": ") for line in rest]
        self.headers = {name.lower(): value for name, _, value in pairs}

    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """A server with its page; `connect` makes a client."""

    def __init__(self, nursery: trio.Nursery, limits: Limits, token: str | None) -> None:
        self.source = Script()
        self.feed = Feed(self.source)
        self.access = Access(port=8470, token=token)
        self.server = Server(Application(self.source, self.feed, self.access), limits)
        self._nursery = nursery

    def connect(self, address: str = "127.0.0.1") -> Stream:
        """Return the client's end of a new connection from *address*."""
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self.server.serve, theirs, address)
        return ours

    def connect_unread(self) -> trio.abc.Stream:
        """Return the client's end of a connection without buffers."""
        ours, theirs = lockstep_stream_pair()
        self._nursery.start_soon(self.server.serve, theirs)
        return ours

    async def send(self, raw: bytes) -> bytes:
        """Return everything that the server answers to *raw* before it ends the connection."""
        stream = self.connect()
        await stream.send_all(raw)
        answer = bytearray()
        while data := await stream.receive_some():
            answer += data
        return bytes(answer)

    async def ask(
        self, method: str, path: str, body: bytes = b"", host: str = "127.0.0.1:8470", **more: str
    ) -> Answer:
        """Return the answer to one request; *more* are headers."""
        headers = {"Host": host, "Connection": "close", "Content-Length": str(len(body))}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return Answer(await self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body))

    async def do(self, document: Any, **more: str) -> Answer:
        """Return the answer to a request to break something."""
        more = {"Content_Type": "application/json", "X_Raidx_Token": TOKEN, **more}
        return await self.ask("POST", "/do", json.dumps(document).encode(), **more)


@asynccontextmanager
async def site_of(limits: Limits | None = None, token: str | None = TOKEN) -> AsyncIterator[Site]:
    """Yield a site; it may meet no bug."""
    async with trio.open_nursery() as nursery:
        site = Site(nursery, limits or Limits(), token)
        nursery.start_soon(site.feed.run)
        yield site
        assert site.server.bugs == 0
        nursery.cancel_scope.cancel()


@pytest.fixture
def site(make_rig: MakeRig[Site]) -> AbstractAsyncContextManager[Site]:
    return make_rig(site_of)
