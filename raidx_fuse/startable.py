"""When an array may start at all: not where data could be wrong without a word."""

from __future__ import annotations

from collections.abc import Iterable

from raidx_fuse.errors import AssemblyError
from raidx_fuse.format.assemble import Assembly
from raidx_fuse.format.configuration.config import ArrayConfig


def runs_unlogged(config: ArrayConfig) -> bool:
    """Say whether the array ran without a journal, or had been before and was not flushed since."""
    return bool(config.settings.get("journal", "partial") == "none")


def check_startable(
    assembly: Assembly, rebuilding: Iterable[int], pending_regions: int, start_degraded: bool
) -> None:
    """Refuse to start where data could be wrong without a word. Raises AssemblyError.

    A role that is being rebuilt is as lost as a missing one beyond its watermark.
    """
    lost = sorted({*assembly.missing_roles, *rebuilding})
    if lost and pending_regions and not start_degraded and runs_unlogged(assembly.config):
        missing = ", ".join(str(role) for role in lost)
        raise AssemblyError(
            f"the array was writing when it stopped and role {missing} is not whole: "
            "what was being written then may read back wrong (the write hole)",
            action="attach the missing member, or accept that with --start-degraded",
        )
