"""What settings, reports and membership need of the running array: one protocol."""

from __future__ import annotations

from typing import Protocol

from raidx_fuse.array.health_history import Health
from raidx_fuse.array.presence import Presence
from raidx_fuse.jobs.grow.copies import CopiesOperation
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.jobs.rebundle.self_heal import SelfHeal
from raidx_fuse.jobs.replace import Replacement
from raidx_fuse.jobs.restripe.removal import MemberRemoval
from raidx_fuse.jobs.scrub import RegularScrub
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.jobs.tuner.tuner import Tuner
from raidx_fuse.loop.tasks import Starter


class RunningArray(ArrayServices, Protocol):
    """The running array as the modules of this package see it."""

    read_only: bool
    started_s: float
    warnings: list[str]
    tuner: Tuner | None
    regular_scrub: RegularScrub
    rebundle: RebundleOperation | None
    self_heal: SelfHeal | None
    copies: CopiesOperation
    removal: MemberRemoval
    health: Health
    presence: Presence
    replacement: Replacement

    @property
    def nursery(self) -> Starter:
        """The nursery that starts background tasks of the array."""
        ...
