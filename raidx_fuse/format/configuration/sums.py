"""Checksums of the members' data, as a configuration says that the array has them.

    jobs.sums      how they are computed: `StoredSums`; where it is, the array has them
    needs          "sums": programs that know none refuse the array
    settings.sums  "on": they are kept up to date with every write, and compared
    regions.sums   where every member has its copies of the tables

The table of a role is on `copies` members, copy c of it on role (role + 1 + c) mod width. A change
of the members would give tables other places: until it has begun, the array must have none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from raidx_fuse.errors import OtherVersionError
from raidx_fuse.format.configuration.config import ArrayConfig, uuid_bytes
from raidx_fuse.settings import SUMS

if TYPE_CHECKING:
    from raidx_fuse.documents import SumsReport

KEY = "sums"
"""The key among the `jobs` of a configuration, and the name of the feature."""
ALGORITHM = 1  # CRC-32C; see FORMAT.md
SEED_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class StoredSums:
    """The number of the *algorithm*, the *copies* of each table, and the random *seed*."""

    algorithm: int
    copies: int
    seed: int


def seed_from(uuid: str) -> int:
    """Return the seed that a random *uuid* gives: its first 4 bytes."""
    return int.from_bytes(uuid_bytes(uuid)[: SEED_MAX.bit_length() // 8], "little")


def sums_of(config: ArrayConfig) -> StoredSums | None:
    """Return how the checksums of an array are computed, None if it has none."""
    return config.job(KEY, StoredSums)


def are_on(config: ArrayConfig) -> bool:
    """Return whether the array has checksums, and they are kept up to date."""
    return KEY in config.jobs and config.settings.get(SUMS) == "on"


class SumCounts(Protocol):
    """What a running array counts of its checksums, since the mount; `SumsReport` has the words."""

    misfits: int
    healed: int
    wrong_sums: int
    unverified: int


def shown_sums(config: ArrayConfig, counts: SumCounts | None = None) -> SumsReport | None:
    """Return what a status says of the checksums of *config*; None if it has none.

    *counts*: of the running array, None if they are off or it does not run.
    """
    if KEY not in config.jobs:
        return None
    return {
        "state": "on" if are_on(config) else "off",
        "misfits": 0 if counts is None else counts.misfits,
        "healed": 0 if counts is None else counts.healed,
        "wrong_sums": 0 if counts is None else counts.wrong_sums,
        "unverified": 0 if counts is None else counts.unverified,
    }


def without_sums(config: ArrayConfig) -> ArrayConfig:
    """Return *config* as one of an array that has no checksums; their region stays, unused."""
    if KEY not in config.jobs:
        return config
    needs = tuple(name for name in config.needs if name != KEY)
    return replace(config.without_job(KEY), needs=needs)


def are_possible(config: ArrayConfig) -> bool:
    """Return whether what the job `sums` of *config* says fits the rest of it.

    Raises OtherVersionError if the algorithm is not known here.
    """
    sums, regions = sums_of(config), config.regions
    if sums is None:
        return False
    if sums.algorithm != ALGORITHM:
        raise OtherVersionError(
            f"array {config.name!r}: its checksums have the algorithm {sums.algorithm}, unknown to "
            "this raidx"
        )
    return (
        0 <= sums.seed <= SEED_MAX
        and 1 <= sums.copies <= config.width
        and sums.copies * regions.sum_table_bytes <= regions.sums.length
        and KEY in config.needs
    )
