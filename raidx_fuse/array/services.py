"""What settings, reports and membership need of the running array that they belong to."""

from __future__ import annotations

from typing import Any, Protocol

from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.jobs.rebundle.self_heal import SelfHeal
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.jobs.tuner.tuner import Tuner
from raidx_fuse.tasks import Starter


class RunningArray(ArrayServices, Protocol):
    """The running array, as the modules of this package see it."""

    read_only: bool
    started_s: float
    warnings: list[str]
    tuner: Tuner | None
    rebundle: RebundleOperation | None
    self_heal: SelfHeal | None

    @property
    def nursery(self) -> Starter:
        """What starts background tasks of the array."""

    def get(self, key: str) -> Any:
        """Return the value of a setting. Raises UsageError for an unknown one."""

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start."""

    def start_rebuild(self, roles: tuple[int, ...]) -> int:
        """Start rebuilding *roles* (their members attached, marked rebuilding)."""
