"""The event commands of a running array: settings kept on this machine, and a test of the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from raidx_fuse.daemon.commands.arguments import Result
from raidx_fuse.daemon.events.delivery import Delivery
from raidx_fuse.daemon.events.event import WARNING
from raidx_fuse.daemon.events.programs import check_program
from raidx_fuse.daemon.events.sources import Watch
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.members.threads import in_thread
from raidx_fuse.settings import OF_MACHINE, PROGRAM


class EventCommands:
    """The settings `events...` of the array *uuid*, and their test."""

    def __init__(self, uuid: str, delivery: Delivery, watch: Watch) -> None:
        self._uuid = uuid
        self._delivery = delivery
        self._watch = watch

    async def settings(self) -> dict[str, str]:
        """Return these settings; "off" if they are not set."""
        kept = await self._delivery.settings(self._uuid)
        return {name: kept.get(name, row.default) for name, row in OF_MACHINE.items()}

    async def set(self, key: str, value: str) -> str:
        """Keep a setting on this machine. Raises UsageError, RaidxError."""
        if key not in OF_MACHINE:
            raise UsageError(
                f"unknown setting {key!r}",
                action=f"known: {', '.join(OF_MACHINE)}",
                reason=Reason.NO_SUCH_SETTING,
            )
        OF_MACHINE[key].parse(value)
        if key == PROGRAM and value != "off":
            await in_thread(value, partial(check_program, value))
        kept = await self._delivery.settings(self._uuid)
        kept.pop(key, None)
        try:
            await self._delivery.save(self._uuid, kept if value == "off" else {**kept, key: value})
        except OSError as error:
            raise RaidxError(f"{self._delivery.store.folder}: {error.strerror}") from None
        return value

    def note_command(self, name: str, arguments: Mapping[str, object]) -> None:
        """Keep that a command has changed the array."""
        self._watch.note_command(name, arguments)

    async def test(self) -> Result:
        """Emit a test event and run the hooks for it now; return how each ended."""
        event = self._watch.event("TestMessage", WARNING, "a test: nothing has happened", "")
        hooks = await self._delivery.call_hooks(event)
        return {"event": event.as_dict(), "hooks": hooks}
