"""What an array whose UUID was changed was made from, as long as the change is not complete.

    "renamed": {"array": UUID, "events": N, "members": {old UUID: new UUID, ...}}

See array/new_identity.py. The job is dropped by the last step of the change, so an array that is
mounted has it only if that step was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from raidx_fuse.errors import AssemblyError, Reason
from raidx_fuse.format.configuration.codec import Stored
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.names import is_uuid

RENAMED = "renamed"
"""Its key in the `jobs` of a configuration."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """The former *array_uuid*, event counter *events*, and the *members*, old UUID to new."""

    array_uuid: Annotated[str, Stored(key="array")]
    events: int
    members: dict[str, str]


def renamed(config: ArrayConfig) -> Renamed | None:
    """Return what *config* was made from, None if that does not matter any more."""
    made = config.job(RENAMED, Renamed)
    return made if made is not None and is_uuid(made.array_uuid) else None


def refuse_half_renamed(configs: Sequence[ArrayConfig]) -> None:
    """Raise AssemblyError if one of *configs* was made from another one, which is still there."""
    uuids = {config.array_uuid for config in configs}
    for config in configs:
        made = renamed(config)
        if made is not None and made.array_uuid in uuids:
            raise AssemblyError(
                f"the UUID of array {config.name!r} was being changed, and some of these members "
                "have the old one still",
                action="complete it: raidx rename --new-uuid with all members",
                reason=Reason.MEMBERS_MISSING,
            )
