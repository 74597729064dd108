"""Which members get the records of the log: each one member more than the code tolerates to lose.

The members take turns, so that none does more work than the others: the records of each span of
`TURN_BYTES` of the ring go to the next members. A record has the same place on each of them, and
recovery finds it on any of them. The head page names all of them (ring.py).
"""

from __future__ import annotations

from raidx_fuse.format.log_record import holder_of
from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.store.member_set import MemberSet

TURN_BYTES = 64 << 10  # long enough for a rotating disk


class LogMembers:
    """The log members among those of *member_set*.

    Attributes: *roles* (all of them; empty before the start and after the log was lost); *turns*
    (those that get the records of one span; the next ones get those of the next span).
    """

    def __init__(self, member_set: MemberSet) -> None:
        self._member_set = member_set
        self._leaving = -1  # a role about to be released: it gets no more records
        self.roles: tuple[Role, ...] = ()
        self.turns: tuple[tuple[Role, ...], ...] = ((),)

    def avoid(self, role: Role | None) -> None:
        """Let no log member be chosen from *role*, which is about to be given up; None: any may."""
        self._leaving = -1 if role is None else role

    def choose(self) -> None:
        """Choose all readable members."""
        whole = [role for role, queue in by_role(self._member_set.readable) if queue is not None]
        self.take(tuple([role for role in whole if role != self._leaving]))

    def take(self, roles: tuple[Role, ...]) -> None:
        """Let the records go to *roles*, in turns."""
        copies = min(self._member_set.layout.code.tolerance + 1, len(roles))
        self.roles = roles
        self.turns = tuple([(roles * 2)[n : n + copies] for n in range(len(roles))]) or ((),)

    def at(self, offset: int) -> tuple[Role, ...]:
        """Return the roles that get the record at byte *offset* of the members."""
        return self.turns[offset // TURN_BYTES % len(self.turns)]

    def holders(self) -> list[bytes]:
        """Return what the head page says of the members: `holder_of` each."""
        config = self._member_set.config
        return [holder_of(config.record(role).member_uuid) for role in self.roles]
