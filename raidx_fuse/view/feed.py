"""One poller for all readers: asks the source while somebody looks, and hands out the news.

    state     the array's status in the page's words, or why there is none (the daemon is gone)
    pass      the cells that were read and written since, and the requests
    events    the timeline

A message is encoded once. A reader has a queue of `QUEUE_MAX` messages; one that does not keep up
is sent away, and its browser comes back for the newest state. Nothing is asked while nobody looks.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import trio

from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.view import words
from raidx_fuse.view.picture import Picture, moved, picture_of, svg
from raidx_fuse.view.source import Question, Source

if TYPE_CHECKING:
    from raidx_fuse.answers import Change
    from raidx_fuse.documents import ArrayReport, CommandStats

LOOK_S = 0.25
STATUS_EACH = 4  # looks
READERS_MAX = 96
QUEUE_MAX = 32
STRIPES_MAX = 16
PICTURES_KEPT = 16
PACE_S = 0.02  # between two questions of readers: no number of them can keep the daemon busy
COMPARED_STRIPES = 8
REQUESTS_SHOWN = 12
CELLS_TOLD = 512
COUNT_END = 1 << 62
DAEMON_WORDS_MAX = 500


class Feed:
    """The news of *source* for readers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._readers: set[trio.MemorySendChannel[bytes]] = set()
        self._somebody = trio.Event()
        self._latest: dict[str, bytes] = {}
        self._status: ArrayReport | None = None
        self._stripes = 0
        self._since = 0
        self._version = 0
        self._seen: object = None  # what a picture depends on
        self._pictures: OrderedDict[tuple[int, int], tuple[int, Picture]] = OrderedDict()
        self._turn = trio.Lock()
        self._next_s = -1.0

    # -- readers -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[trio.MemoryReceiveChannel[bytes]]:
        """Yield the messages for one reader, the latest of each kind first. Raises BusyError."""
        if len(self._readers) >= READERS_MAX:
            raise BusyError("too many readers")
        send, receive = trio.open_memory_channel[bytes](QUEUE_MAX)
        for name in ("state", "events"):
            if name in self._latest:
                send.send_nowait(self._latest[name])
        self._readers.add(send)
        self._somebody.set()
        try:
            yield receive
        finally:
            self._readers.discard(send)
            send.close()
            receive.close()

    @property
    def readers(self) -> int:
        return len(self._readers)

    def _tell(self, name: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        message = f"event: {name}\ndata: {text}\n\n".encode()
        if name != "pass":
            if self._latest.get(name) == message:
                return
            self._latest[name] = message
        for reader in list(self._readers):
            try:
                reader.send_nowait(message)
            except (trio.WouldBlock, trio.BrokenResourceError):
                self._readers.discard(reader)
                reader.close()

    # -- asking ------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            if not self._readers:
                self._somebody = trio.Event()
                await self._somebody.wait()
            turn = 0
            while self._readers:
                try:
                    if turn % STATUS_EACH == 0:
                        await self.look()
                    await self.look_at_requests()
                except RaidxError as error:
                    self._lost(error)
                    turn = -1  # the next look is a whole one
                    await trio.sleep(3 * LOOK_S)
                turn += 1
                await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Ask for status, counters and events, and tell what has changed. Raises RaidxError."""
        with _answered():
            asked: list[Question] = [("status", {}), ("stats", {}), ("compare", {"brief": True})]
            status: ArrayReport
            stats: CommandStats
            change: Change
            status, stats, change = await self._source.ask(asked)
            told = words.state(status, stats)
            if self._status is not None and self._status["uuid"] != status["uuid"]:
                self._pictures.clear()
            self._status = status
            tuner = status.get("tuner")
            seen = (
                status["uuid"],
                status["state"],
                status["written"],
                status["events"],
                [(member["role"], member["state"], member["path"]) for member in status["members"]],
                [(job["kind"], job["done"]) for job in status["jobs"]],
                tuner["chunks_moved"] if tuner else 0,
                change,
            )
            if seen != self._seen:
                self._seen = seen
                self._version += 1
            kind = words.short(change["kind"])
            told |= {"version": self._version, "stripes": self._stripes, "moving": kind}
            self._tell("state", {"alive": True, "where": self._source.where, **told})
            events = await self._source.events(str(status["uuid"]))
            self._tell("events", {"events": events})

    async def look_at_requests(self) -> None:
        """Ask what has passed, and tell it. Raises RaidxError."""
        with _answered():
            (trace,) = await self._source.ask([("trace", {"since": self._since})])
            if trace["next"] < self._since:  # another daemon, which counts from zero
                self._since = 0
                return
            self._since = trace["next"]
            self._stripes = trace["stripes"]
            requests = trace["requests"][-REQUESTS_SHOWN:]
            if trace["cells"] or requests or trace["log"]:
                self._tell(
                    "pass",
                    {
                        "cells": [
                            [f"{stripe}:{name}", "write" if writes else "read", count]
                            for stripe, name, writes, count in trace["cells"][:CELLS_TOLD]
                        ],
                        "log": trace["log"][:CELLS_TOLD],
                        "requests": requests,
                        "missed": trace["missed"],
                    },
                )

    def _lost(self, error: RaidxError) -> None:
        self._seen = None
        self._since = 0
        text = str(error)[:DAEMON_WORDS_MAX]
        self._tell("state", {"alive": False, "where": self._source.where, "why": text})

    # -- pictures ----------------------------------------------------------------------------------

    async def picture(self, first: int, count: int) -> Picture:
        """Return the picture of *count* stripes from *first* on. Raises RaidxError, UsageError.

        Readers who look at the same stripes share an answer until something has changed.
        """
        if not 0 <= first < COUNT_END or not 1 <= count <= STRIPES_MAX:
            raise UsageError(f"a picture has 1 to {STRIPES_MAX} stripes")
        key = (first, count)
        version, known = self._pictures.get(key, (-1, None))
        if known is not None and version == self._version and self._readers:
            return known
        if not self._stripes:
            (trace,) = await self._ask_paced([("trace", {})])
            with _answered():
                self._stripes = trace["stripes"]
        first = min(first, max(0, self._stripes - 1))
        numbers = range(first, min(first + count, self._stripes))
        asked = [("status", {}), *(("explain", {"stripe": number}) for number in numbers)]
        version = self._version
        status, *stripes = await self._ask_paced(asked)
        with _answered():
            found = picture_of(status, stripes)
        self._pictures[key] = version, found
        self._pictures.move_to_end(key)
        while len(self._pictures) > PICTURES_KEPT:
            self._pictures.popitem(last=False)
        return found

    async def comparison(self) -> dict[str, object]:
        """Return the pictures before and after the last change that moved chunks, and its sums.

        *kind* is None if there was none since the mount. Raises RaidxError.
        """
        asked: list[Question] = [("status", {}), ("compare", {"stripes": COMPARED_STRIPES})]
        status, change = await self._ask_paced(asked)
        with _answered():
            if change["kind"] is None:
                return {"kind": None}
            then: Any = {**status, **change["before"]}
            before = picture_of(then, then["stripes"])
            after = picture_of(status, change["after"]["stripes"])
            marked = moved(before, after)
            return {
                **words.change(change),
                "before": svg(before, title="before"),
                "after": svg(after, marked=marked, title="after"),
            }

    async def plan(self, offset: int, length: int, write: bool) -> dict[str, object]:
        """Return the plan of a request in words. Raises RaidxError."""
        arguments = {"offset": offset, "length": length, "write": write}
        (answer,) = await self._ask_paced([("explain", arguments)])
        with _answered():
            return words.plan(answer)

    async def _ask_paced(self, questions: Sequence[Question]) -> list[Any]:
        """Ask for one reader: one after the other, and not too often."""
        async with self._turn:
            await trio.sleep_until(self._next_s)
            self._next_s = trio.current_time() + PACE_S
            return await self._source.ask(questions)


@contextmanager
def _answered() -> Iterator[None]:
    """Raise RaidxError for an answer that lacks something: of a daemon of another version."""
    try:
        yield
    except LookupError as error:
        text = f"{type(error).__name__}: {error}"[:DAEMON_WORDS_MAX]
        raise RaidxError(f"an answer of the daemon is not valid: {text}") from None
