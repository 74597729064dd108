"""What changed while members were absent: `jobs.away` of a configuration (fields: FORMAT.md).

The map names the regions of stripes that may differ from what each member in *left* holds. It has
the resolution that fits: if too many regions are named, they become larger, so that more counts as
changed than did, never less. It is void, and a returning member is rebuilt whole, as soon as

* the layout changes, or a growth, a restripe or a change of members is under way: stripes would
  no longer be the same stripes;
* the array was started by a program that does not keep the map: then *starts* is behind;
* the superblock has no space left for it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from raidx_fuse.format.configuration.codec import encode
from raidx_fuse.format.configuration.config import (
    FAILED,
    MISSING,
    NO_ROLE,
    REBUILDING,
    ArrayConfig,
    MemberRecord,
)
from raidx_fuse.format.configuration.lost_chunks import packed, unpacked
from raidx_fuse.format.configuration.saved_jobs import REBUILD

KEY = "away"
"""The key of the map in the `jobs` of a configuration."""
CHANGED = "changed"
"""The key in a rebuild's progress that limits it to what changed while its member was absent."""
TEXT_BYTES_MAX = 8 << 10  # of the packed regions
REGIONS_MAX = 1 << 18  # of an array, however large: a start and each save go through all of them
SHAPE_BYTES = 8
_MOVING = ("grow", "restripe", "reshape")


@dataclass(slots=True)
class AbsenceMap:
    """The map: *regions*, of *stripes* stripes each, and the members that *left* the array.

    *left*: member UUID -> lowest and highest event counter that its superblock can have.
    """

    stripes: int
    regions: set[int] = field(default_factory=set)
    left: dict[str, tuple[int, int]] = field(default_factory=dict)

    def coarsen(self) -> None:
        """Let a region have twice as many stripes."""
        self.stripes *= 2
        self.regions = {region >> 1 for region in self.regions}

    def keep(self, waiting: Collection[str]) -> None:
        """Forget the members that left and are not among *waiting* (UUIDs)."""
        self.left = {uuid: events for uuid, events in self.left.items() if uuid in waiting}


@dataclass(frozen=True, slots=True)
class StoredAbsenceMap:
    """The map as a superblock has it, for the layout *shape* and the start *starts*."""

    left: dict[str, tuple[int, int]]
    regions: str
    shape: str
    starts: int
    stripes: int


def shape_of(config: ArrayConfig) -> str:
    """Return a short hash of everything that decides which stripe lies where."""
    shape = [config.layout, config.params, config.width, config.chunk_bytes]
    text = json.dumps(shape, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=SHAPE_BYTES).hexdigest()


def catches_up(config: ArrayConfig, record: MemberRecord) -> bool:
    """Return whether the member of *record* is rebuilt only where stripes changed in its absence.

    If its map has been dropped meanwhile, it is not, though another member has begun a new map.
    """
    if record.state != REBUILDING:
        return False
    progress, kept = config.jobs.get(f"{REBUILD}{record.role}"), config.job(KEY, StoredAbsenceMap)
    if not isinstance(progress, dict) or kept is None:
        return False
    return progress.get(CHANGED) is True and record.member_uuid in kept.left


def with_absence_map(config: ArrayConfig, absences: AbsenceMap) -> ArrayConfig:
    """Return *config* with *absences*, whose regions are made larger in place until they fit."""
    while max(absences.regions, default=0) >= REGIONS_MAX:
        absences.coarsen()
    while len(text := _packed(absences.regions)) > TEXT_BYTES_MAX:
        absences.coarsen()
    kept = StoredAbsenceMap(absences.left, text, shape_of(config), config.starts, absences.stripes)
    return config.with_job(KEY, encode(kept))


def tended(config: ArrayConfig) -> ArrayConfig:
    """Return *config* without members that no longer wait, and without a map that is void."""
    if KEY not in config.jobs:
        return config
    kept = config.job(KEY, StoredAbsenceMap)
    if (
        kept is None
        or kept.starts != config.starts
        or kept.shape != shape_of(config)
        or any(key in config.jobs for key in _MOVING)
    ):
        return config.without_job(KEY)
    waiting = {
        record.member_uuid
        for record in config.members
        if record.role != NO_ROLE
        and (record.state in (FAILED, MISSING) or catches_up(config, record))
    }
    left = {uuid: events for uuid, events in kept.left.items() if uuid in waiting}
    if not left:
        return config.without_job(KEY)
    return config if left == kept.left else config.with_job(KEY, encode(replace(kept, left=left)))


def absence_map_of(config: ArrayConfig) -> AbsenceMap | None:
    """Return the map of *config*; None if there is none, or none that can be used."""
    kept = tended(config).job(KEY, StoredAbsenceMap)
    if kept is None or kept.stripes < 1:
        return None
    try:
        return AbsenceMap(kept.stripes, _unpacked(kept.regions), kept.left)
    except (ValueError, zlib.error):
        return None  # like no map: a member that returns is rebuilt whole


def _packed(regions: set[int]) -> str:
    bits = np.zeros(max(regions, default=-1) + 1, np.bool_)
    bits[list(regions)] = True
    return packed(np.packbits(bits, bitorder="little").tobytes())


def _unpacked(text: object) -> set[int]:
    content = unpacked(text, REGIONS_MAX // 8)
    bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
