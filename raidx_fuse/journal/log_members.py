"""Which members get the records of the log: each one member more than the code tolerates to lose.

The members take turns, so that none does more work than the others: the records of each span of
`TURN_BYTES` of the ring go to the next members. Slow members have no turn where others suffice. A
record has the same place on each of its members, and recovery finds it on any of them: the head
page names all that may have a turn (ring.py).
"""

from __future__ import annotations

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.log_record import holder_of
from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.store.member_io import MemberLostError
from raidx_fuse.store.member_set import MemberSet

SLOW_TIMES = 4  # the service time of a write, as long as that of the slowest that is needed
TURN_BYTES = 64 << 10  # long enough for a rotating disk


class LogMembers:
    """The log members among those of *member_set*.

    Attributes: *roles* (all that may have a turn; none before the start); *turns* (those that get
    the records of one span, and then of each of the next ones).
    """

    def __init__(self, member_set: MemberSet) -> None:
        self._member_set = member_set
        self._leaving = -1  # a role about to be released: it gets no more records
        self.roles: tuple[Role, ...] = ()
        self._copies = 0
        self.turns: tuple[tuple[Role, ...], ...] = ((),)

    def avoid(self, role: Role | None) -> None:
        """Let no log member be chosen from *role*, which is about to be given up; None: any may."""
        self._leaving = -1 if role is None else role

    def choose(self) -> None:
        """Choose all readable members, and those whose rebuild has passed all stripes.

        The latter count as whole only when the log is on them: from then on any other may be lost.
        """
        member_set = self._member_set
        rebuilt = {
            role
            for role, mark in member_set.watermarks.items()
            if mark >= member_set.layout.stripes and member_set.queues[role] is not None
        }
        whole = [
            role
            for role, queue in by_role(member_set.readable)
            if queue is not None or role in rebuilt
        ]
        self.take(tuple([role for role in whole if role != self._leaving]))

    def take(self, roles: tuple[Role, ...]) -> None:
        """Let the records go to *roles*, in turns."""
        self._copies = min(self._member_set.layout.code.tolerance + 1, len(roles))
        self.roles = roles
        self._take_turns(roles)

    def prefer_fast(self) -> None:
        """Give no turn to members that failed, or that need far longer for a write than others."""
        waits = {
            role: queue.write_service_s
            for role in self.roles
            if (queue := self._member_set.queues[role]) is not None
        }
        if len(waits) >= self._copies > 0:
            limit_s = SLOW_TIMES * sorted(waits.values())[self._copies - 1]
            self._take_turns(tuple([role for role, wait_s in waits.items() if wait_s <= limit_s]))

    def _take_turns(self, roles: tuple[Role, ...]) -> None:
        first = range(len(roles))
        self.turns = tuple([(roles * 2)[n : n + self._copies] for n in first]) or ((),)

    def at(self, offset: int) -> tuple[Role, ...]:
        """Return the roles that get the record at byte *offset* of the members."""
        return self.turns[offset // TURN_BYTES % len(self.turns)]

    async def may_have(self, role: Role, offset: int, head: bytes) -> bool:
        """Return whether the record that begins with *head* at byte *offset* may lie on *role*."""
        if self._member_set.queues[role] is None:
            return False  # it is excluded: nobody reads its log
        found = memoryview(bytearray(len(head)))
        try:
            await self._member_set.read([(role, offset, [found], len(head))])
        except (RaidxError, MemberLostError):
            return True
        return found == head

    def holders(self) -> list[bytes]:
        """Return what the head page says of the members: `holder_of` each."""
        config = self._member_set.config
        return [holder_of(config.record(role).member_uuid) for role in self.roles]
