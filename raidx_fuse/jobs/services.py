"""Protocols: what the operations of the jobs need of the running array.

The array passes itself to an operation, which sees only these members of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.discard import Discarder
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.manager import Jobs
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.store.member_set import MemberSet


class MembershipServices(Protocol):
    """The membership of the array, for operations that change it.

    *attaching* is held while a member takes a role or leaves one: no spare takes one meanwhile.
    """

    attaching: trio.Lock

    async def take_back(self, role: Role, member: Member) -> None:
        """Attach *member*, which has held *role* before, to be caught up."""

    def path_of(self, record: MemberRecord) -> str:
        """Return the path of a member, or its last known path."""

    def check_joining(self, member: Member, role: Role | None = None) -> None:
        """Raise UsageError unless *member* can hold the data of *role* (None: of any role)."""

    def check_usable(self, member: Member) -> None:
        """Raise UsageError if *member* is not writable or belongs to the array already."""

    def spare_for(self) -> tuple[Role, str] | None:
        """Return (vacant role, UUID of a spare that is large enough for it), or None."""


class ArrayServices(Protocol):
    """The running array as operations see it.

    *on_size* is awaited when the image has another size; *on_release* is called with each member
    that was released and belongs to no array.
    """

    context: ArrayContext
    member_set: MemberSet
    jobs: Jobs
    discarder: Discarder
    on_size: list[Callable[[], Awaitable[None]]]
    on_release: list[Callable[[Member], None]]

    @property
    def membership(self) -> MembershipServices: ...

    @property
    def size_bytes(self) -> int:
        """The size of the image."""

    def require_writable(self) -> None:
        """Raise ReadOnlyError if the array was started read-only."""

    def start_rebuild(self, roles: tuple[Role, ...], failures: int = 0) -> int:
        """Start to rebuild *roles*, whose members are attached and marked rebuilding."""

    async def start_scrub(self, repair: bool) -> int:
        """Start a scrub and return its job id. Raises BusyError if one runs."""
