"""What the screen knows: the newest look at the array, the last throughputs, what is chosen."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from raidx_fuse.cli.screen.snapshot import MemberLook, Part, Snapshot

HISTORY_MAX = 256  # looks


@dataclass(frozen=True, slots=True)
class View:
    """What a frame is drawn from.

    *rates* are the bytes per second of the last looks, oldest first; *before* are the parts of each
    role in the look before; *chosen* is the index of a member; *message* is the last line but one.
    """

    look: Snapshot
    rates: tuple[float, ...] = ()
    before: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)
    chosen: int | None = None
    message: str = ""


class Model:
    """Takes looks and keys, gives views. No view before the first *look*.

    *message* is shown until the next one.
    """

    def __init__(self) -> None:
        self.look: Snapshot | None = None
        self._rates: deque[float] = deque(maxlen=HISTORY_MAX)
        self._before: Mapping[int, tuple[Part, ...]] = {}
        self._chosen = 0
        self.message = ""

    @property
    def chosen(self) -> MemberLook | None:
        """The member that the keys are about."""
        members = () if self.look is None else self.look.members
        return members[min(self._chosen, len(members) - 1)] if members else None

    def take(self, look: Snapshot) -> None:
        if self.look is not None:
            self._before = {member.role: member.parts for member in self.look.members}
        self.look = look
        self._rates.append(look.traffic.read_bytes + look.traffic.write_bytes)

    def choose(self, step: int) -> None:
        """Choose the member *step* places further down, at most the last one."""
        last = 0 if self.look is None else max(0, len(self.look.members) - 1)
        self._chosen = min(max(0, min(self._chosen, last) + step), last)

    def view(self) -> View | None:
        """Return what a frame is drawn from, None before the first look."""
        if self.look is None:
            return None
        chosen = min(self._chosen, len(self.look.members) - 1)
        return View(self.look, tuple(self._rates), self._before, chosen, self.message)
