"""What the page asks: the daemon of a mount, by its control socket; `lab/demo.py` is the other one.

Questions are few and small, whatever the number of readers: feed.py asks once for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from raidx_fuse.daemon import control_client
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.daemon.events.store import EventStore, state_directory
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.members.threads import in_thread

if TYPE_CHECKING:
    from raidx_fuse.documents import Event

ASK_S = 5.0
ACT_S = 60.0
ANSWER_BYTES_MAX = 4 << 20
EVENTS_SHOWN = 40

Question = tuple[str, dict[str, Any]]


class Source(Protocol):
    """Where answers come from. *where*: what the page calls it; *actions*: how it may be broken."""

    where: str
    actions: Collection[str]

    async def ask(self, questions: Sequence[Question]) -> list[Any]:
        """Return the answers to *questions* (command, arguments). Raises RaidxError.

        documents.py and answers.py say what the answers are.
        """
        ...

    async def act(self, command: str, arguments: dict[str, object]) -> Mapping[str, object]:
        """Carry out a command that changes something, which may take long. Raises RaidxError."""
        ...

    async def events(self, uuid: str) -> list[Event]:
        """Return the newest events of the array *uuid*, oldest first."""
        ...

    def replacement(self, path: str) -> str:
        """Return what takes the place of the member at *path* when it is replaced."""
        ...


class MountSource:
    """The daemon of the mount point *where* (MOUNT:ARRAY, if it has several arrays)."""

    actions: Collection[str] = ("fail-disk", "replace-disk", "inject")

    def __init__(self, where: str) -> None:
        self.where = where
        self._turn = trio.Lock()  # one thread at a time, even if the daemon hangs
        self._store = EventStore(state_directory())
        self._stamp: object = None
        self._kept: list[Event] = []

    async def ask(self, questions: Sequence[Question]) -> list[Any]:
        async with self._turn:
            return await in_thread(self.where, partial(_ask_all, self.where, questions, ASK_S))

    async def act(self, command: str, arguments: dict[str, object]) -> Mapping[str, object]:
        """Ask beside the others, of a mount that was made to be broken only."""
        (status,) = await self.ask([("status", {})])
        if status.get("lab") is None:
            raise UsageError(
                "this mount was not made to be broken",
                action="mount it with raidx mount --lab",
                reason=Reason.NOT_LAB,
            )
        questions = [(command, arguments)]
        call = partial(_ask_all, self.where, questions, ACT_S)
        result: Mapping[str, object]
        (result,) = await in_thread(self.where, call, limit_s=2 * ACT_S)
        return result

    async def events(self, uuid: str) -> list[Event]:
        with suppress(OSError, RaidxError):
            await in_thread("events", partial(self._read, uuid))
        return self._kept

    def _read(self, uuid: str) -> None:
        stamp = (uuid, self._store.stamp())
        if stamp != self._stamp:
            found = [event for event in self._store.read() if event.uuid == uuid]
            self._kept = [event.as_dict() for event in found[-EVENTS_SHOWN:]]
            self._stamp = stamp

    def replacement(self, path: str) -> str:
        """Return *path*: a web page names no new files, a member that left comes back."""
        return path


def _ask_all(where: str, questions: Sequence[Question], timeout_s: float) -> list[Any]:
    with control_client.Connection(
        where, timeout_s=timeout_s, answer_bytes_max=ANSWER_BYTES_MAX
    ) as connection:
        return [connection.call(command, **arguments) for command, arguments in questions]


def require_one_array(where: str) -> None:
    """Raise ControlError unless one array is mounted on *where*, or it names one of several."""
    (status,) = _ask_all(where, [("status", {})], ASK_S)
    arrays = status.get("arrays", ())
    if len(arrays) > 1:
        names = ", ".join(str(each["name"]) for each in arrays)
        raise ControlError(
            f"{where} has several arrays: {names}",
            action=f"name one: raidx view {where}:{arrays[0]['name']}",
            exit_status=2,
            reason=Reason.AMBIGUOUS,
        )
