"""Delivery of events: to the log of the daemon, the disk, the journal, a program and by mail.

An array never waits for any of it. `Delivery.emit` only puts the event into a queue of limited
length. One task writes to disk, in a thread with a time limit, and to the journal. Another one runs
the programs, one after the other; one that takes longer than HOOK_S is killed with its children.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from raidx_fuse.daemon.events.event import COMMAND, DIGEST_EVENT, INFO, Event
from raidx_fuse.daemon.events.programs import (
    JOURNAL,
    run_program,
    send_mail,
    send_to_journal,
)
from raidx_fuse.daemon.events.store import EventStore
from raidx_fuse.errors import RaidxError
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.threads import in_thread
from raidx_fuse.settings import DIGEST, MAIL, PROGRAM

if TYPE_CHECKING:
    from raidx_fuse.daemon.events.sources import Watch
    from raidx_fuse.documents import HookResult

log = logging.getLogger(__name__)

WAITING_MAX = 256
HOOK_S = 30.0
DAY_S = 86400.0
DRAIN_S = 5.0  # at the end of the daemon
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Delivery:
    """Delivers events into *store* and to the programs that its settings name.

    *hook_s* limits the time of a program.
    """

    def __init__(
        self, store: EventStore, *, hook_s: float = HOOK_S, journal: str = JOURNAL
    ) -> None:
        self.store = store
        self.dropped = 0
        self.ended = trio.Event()
        self._hook_s = hook_s
        self._journal = journal
        self._send, self._events = trio.open_memory_channel[Event](WAITING_MAX)
        self._send_hook, self._hooks = trio.open_memory_channel[Event](WAITING_MAX)

    def emit(self, event: Event) -> None:
        """Deliver *event* soon; it is dropped, and counted, if too many wait."""
        log.log(LEVELS[event.severity], "%s: %s", event.event, event.message)
        try:
            self._send.send_nowait(event)
        except (trio.WouldBlock, trio.ClosedResourceError):
            self._note_dropped(event)

    def _note_dropped(self, event: Event) -> None:
        self.dropped += 1
        log.error("%s: too many events wait: %d dropped so far", event.event, self.dropped)

    async def run(self) -> None:
        """Write events to disk and journal until `close`, then end (a background task)."""
        async for event in self._events:
            try:
                await in_thread(str(self.store.folder), partial(self.store.append, event))
            except (OSError, RaidxError) as error:
                log.warning("an event was not kept on disk: %s", error)
            except Exception:  # a mounted disk without events is better than none
                log.critical("bug: an event was not kept", exc_info=True)
            send_to_journal(event, self._journal)
            if event.event == COMMAND:
                continue  # a program that gives commands would be run for them, for ever
            try:
                self._send_hook.send_nowait(event)
            except trio.WouldBlock:
                self._note_dropped(event)
        self._send_hook.close()

    async def run_hooks(self) -> None:
        """Run the programs for each event until `run` has ended (a background task)."""
        async for event in self._hooks:
            try:
                await self.call_hooks(event)
            except Exception:  # a mounted disk without hooks is better than none
                log.critical("bug: the hooks of an event were not run", exc_info=True)
        self.ended.set()

    async def call_hooks(self, event: Event) -> dict[str, HookResult]:
        """Run the program and the mailer of the event's array; return how each ended."""
        try:
            settings = await self.settings(event.uuid)
        except (OSError, RaidxError) as error:
            log.warning("the event settings cannot be read: %s", error)
            return {}
        results = {}
        if program := settings.get(PROGRAM):
            results[PROGRAM] = await run_program(program, event, self._hook_s)
        is_mailed = event.severity != INFO or event.event == DIGEST_EVENT
        if is_mailed and (address := settings.get(MAIL)):
            results[MAIL] = await send_mail(address, event, self._hook_s)
        for name, result in results.items():
            if not result["ok"]:
                log.warning("%s for %s: %s", name, event.event, result["problem"])
        return results

    async def settings(self, uuid: str) -> dict[str, str]:
        """Return the event settings of an array. Raises RaidxError."""
        return await in_thread(str(self.store.folder), partial(self.store.load, uuid))

    async def digest(self, watch: Watch) -> None:
        """Emit what *watch* says of its array, once a day if that is set (a background task)."""
        while True:
            await rest(DAY_S)
            try:
                settings = await self.settings(watch.uuid)
            except (OSError, RaidxError) as error:
                log.warning("the event settings cannot be read: %s", error)
                continue
            if settings.get(DIGEST) == "on":
                self.emit(watch.digest())

    async def save(self, uuid: str, values: dict[str, str]) -> None:
        """Keep the event settings of an array. Raises OSError, RaidxError."""
        await in_thread(str(self.store.folder), partial(self.store.save, uuid, values))

    def close(self) -> None:
        """Take no more events; `run` and `run_hooks` end when the last one is delivered."""
        self._send.close()


@asynccontextmanager
async def delivering(delivery: Delivery) -> AsyncIterator[Delivery]:
    """Deliver events while the block runs; what waits at its end gets DRAIN_S more seconds."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delivery.run)
        nursery.start_soon(delivery.run_hooks)
        try:
            yield delivery
        finally:
            delivery.close()
            with trio.CancelScope(shield=True), trio.move_on_after(DRAIN_S):
                await delivery.ended.wait()
            nursery.cancel_scope.cancel()
