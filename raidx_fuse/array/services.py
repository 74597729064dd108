"""What settings, reports and membership need of the running array, and how its members change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from raidx_fuse.array.health_history import Health
from raidx_fuse.array.known_misfits import KnownMisfits
from raidx_fuse.array.misfit_limit import MisfitLimit
from raidx_fuse.array.presence import Presence
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.format.table_page import bytes_needed
from raidx_fuse.jobs.costs import PlannedChange
from raidx_fuse.jobs.grow.copies import CopiesOperation
from raidx_fuse.jobs.grow.operation import GrowOperation
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.jobs.rebundle.self_heal import SelfHeal
from raidx_fuse.jobs.replace import Replacement
from raidx_fuse.jobs.restripe.operation import RestripeOperation
from raidx_fuse.jobs.restripe.removal import MemberRemoval
from raidx_fuse.jobs.scrub import RegularScrub
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.jobs.sum_copies import SumCopies
from raidx_fuse.jobs.tuner.tuner import Tuner
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.loop.tasks import Starter
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import Grown, Removal, Reshaping


class RunningArray(ArrayServices, Protocol):
    """The running array as the modules of this package see it."""

    read_only: bool
    started_s: float
    warnings: list[str]
    stale: list[tuple[Member, str]]
    absent_at_start: dict[str, str]
    tuner: Tuner | None
    regular_scrub: RegularScrub
    rebundle: RebundleOperation | None
    self_heal: SelfHeal | None
    grow_operation: GrowOperation
    restripe_operation: RestripeOperation
    copies: CopiesOperation
    removal: MemberRemoval
    health: Health
    known_misfits: KnownMisfits
    misfit_limit: MisfitLimit
    presence: Presence
    replacement: Replacement
    sum_copies: SumCopies

    @property
    def member_changes(self) -> MemberChanges: ...

    @property
    def nursery(self) -> Starter:
        """The nursery that starts background tasks of the array."""
        ...


class MemberChanges(ABC):
    """The changes of the members of one running *array*; *any_size*: they need not be alike."""

    any_size = False

    def __init__(self, array: RunningArray) -> None:
        self.array = array

    @abstractmethod
    def plan_adding(self, added: int, parity: str | None) -> PlannedChange[Grown]:
        """Return how *added* members join, besides a surrogate. Raises RaidxError.

        *parity* is the parity mode that a user asked for.
        """

    @abstractmethod
    async def plan_removing(self, record: MemberRecord) -> PlannedChange[Removal | Reshaping]:
        """Return how the member of *record* leaves. Raises RaidxError."""

    def bytes_to_join(self, role: Role | None) -> int:
        """Return how much of a new member must be usable, for *role* or, None, for any one."""
        config = self.array.member_set.config
        chunks = self.array.context.layout.member_chunks
        end = config.regions.data.offset + chunks * config.chunk_bytes
        return max(end, config.regions.sums.end, config.regions.log.end)

    def bytes_of_spare(self, role: Role) -> int:
        """Return how much of a spare must be usable to take the vacant *role*."""
        return bytes_needed(self.array.member_set.config, role)

    async def make_way(self) -> None:  # noqa: B027  # only bundles move chunks of a lost role
        """Stop the job that a member makes needless which is about to take a role."""

    async def fit(self, role: Role, member: Member) -> None:  # noqa: B027  # others are alike
        """Give *role* the size of *member*, which is about to take it. Raises RaidxError."""

    def resume(self) -> None:  # noqa: B027  # others start theirs when the array starts
        """Continue a change by bundles that was under way."""
