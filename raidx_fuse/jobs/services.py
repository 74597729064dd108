"""What the operations of jobs need of the running array that they belong to.

The array hands itself over; an operation sees no more of it than this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.manager import Jobs
from raidx_fuse.members.base import Member
from raidx_fuse.store.member_set import MemberSet


class MembershipServices(Protocol):
    """Who belongs to the array, for those that change it."""

    waiting: bool

    @property
    def attaching(self) -> trio.Lock:
        """Held while a member takes a role, or leaves with it."""

    def path_of(self, record: MemberRecord) -> str:
        """Return the path of a member, or what was known of it last."""

    def check_joining(self, member: Member, role: int | None = None) -> None:
        """Raise UsageError unless *member* can hold the data of *role*, None: of any role."""

    def check_usable(self, member: Member) -> None:
        """Raise UsageError if *member* cannot be written, or belongs to the array already."""

    def spare_for(self) -> tuple[int, str] | None:
        """Return a role that is vacant and the spare that fits it."""


class GrowthHooks(Protocol):
    """Who is told when the image has become larger, and when a member was given back."""

    @property
    def on_size(self) -> list[Callable[[], Awaitable[None]]]:
        """Called when the image has become larger."""

    @property
    def on_release(self) -> list[Callable[[Member], None]]:
        """Called for each member that belongs to nobody any more."""


class ArrayServices(Protocol):
    """The running array, as operations see it."""

    @property
    def context(self) -> ArrayContext:
        """What the parts of the array share."""

    @property
    def member_set(self) -> MemberSet:
        """The members by role."""

    @property
    def jobs(self) -> Jobs:
        """The jobs of the array."""

    @property
    def membership(self) -> MembershipServices:
        """Who belongs to the array."""

    @property
    def grow_operation(self) -> GrowthHooks:
        """Who hears of growth."""

    @property
    def size_bytes(self) -> int:
        """Size of the image."""

    def require_writable(self) -> None:
        """Raise ReadOnlyError if the array was started read-only."""

    async def start_scrub(self, repair: bool) -> int:
        """Start a scrub and return its job id. Raises BusyError while one runs."""
