"""What an array remembers for people: its last scrub, errors of its members, the pool around it.

It is bounded, and the first to give way where space is scarce (fitting.py). Content that cannot be
read counts as none. A mount that lacks an array of the pool can name what is absent:

    "pool": [[UUID, name, [volume, ...], number of volumes], ...]
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, cast

from raidx_fuse.format.configuration.codec import Stored, decode, encode
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.names import is_clean
from raidx_fuse.format.configuration.volumes import VOLUMES_MAX

if TYPE_CHECKING:
    from raidx_fuse.documents import LastScrub

HEALTH, POOL = "health", "pool"
"""The keys in the `jobs` of a configuration."""
PLACES_MAX = 16
MEMBERS_MAX = 64
ROLES_MAX = 8  # of a place
UUID_CHARS = 8
ARRAYS_MAX = 16
MISFITS_MAX = 4096  # pages
MISFIT_RUNS_MAX = 128
NAMES_BYTES_MAX = 2 << 10  # of all volumes, as JSON; further ones are only counted


def short_uuid(member_uuid: str) -> str:
    """Return the part of a UUID that names a member in the counts."""
    return member_uuid[:UUID_CHARS]


def _count(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is no count")
    return number


Count: TypeAlias = Annotated[int, _count]


class ScrubbedMember(NamedTuple):
    """What a scrub found on the member in *role*: chunks that were *wrong*."""

    role: Count
    wrong: Count
    repaired: Count


class ScrubbedPlace(NamedTuple):
    """A place that a scrub left wrong; *image_offset* None: it holds no data."""

    stripe: int
    image_offset: int | None
    roles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptScrub:
    """The last scrub; *ended_s* 0: not known."""

    state: str
    repair: bool
    ended_s: Count
    seconds: Count
    mismatches: Count
    repaired: Count
    left: Count
    unchecked_stripes: Count
    members: tuple[ScrubbedMember, ...]
    places: tuple[ScrubbedPlace, ...]


@dataclass(frozen=True, slots=True)
class KeptHealth:
    """The last *scrub*, and of each member, by `short_uuid`, the errors and repairs since ever.

    *misfits*: runs of pages of the image (first, count) that did not fit their checksums.
    """

    members: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    scrub: Annotated[KeptScrub | None, Stored(optional=True)] = None
    misfits: Annotated[tuple[tuple[Count, Count], ...], Stored(optional=True)] = ()

    def counts_of(self, member_uuid: str) -> tuple[int, int]:
        return self.members.get(short_uuid(member_uuid), (0, 0))


def health_of(config: ArrayConfig) -> KeptHealth:
    return config.job(HEALTH, KeptHealth) or KeptHealth()


def with_health(config: ArrayConfig, health: KeptHealth) -> ArrayConfig:
    """Return *config* with *health*; unchanged if there is nothing to remember.

    The members with most errors and repairs are kept, the first places of a scrub.
    """
    counted = sorted(health.members.items(), key=lambda item: -sum(item[1]))[:MEMBERS_MAX]
    members = {uuid: pair for uuid, pair in counted if any(pair)}
    scrub = health.scrub
    if scrub is not None:
        places = (one._replace(roles=one.roles[:ROLES_MAX]) for one in scrub.places[:PLACES_MAX])
        scrub = replace(scrub, members=scrub.members[:MEMBERS_MAX], places=tuple(places))
    if not (members or scrub or health.misfits) and HEALTH not in config.jobs:
        return config
    return config.with_job(HEALTH, encode(KeptHealth(members, scrub, health.misfits)))


def joined_pages(pages: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the first of *pages* as runs (first, count), as many as are kept."""
    runs: list[tuple[int, int]] = []
    for page in sorted(pages)[:MISFITS_MAX]:
        if runs and sum(runs[-1]) == page:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        elif len(runs) == MISFIT_RUNS_MAX:
            break
        else:
            runs.append((page, 1))
    return tuple(runs)


def shown_scrub(health: KeptHealth) -> LastScrub | None:
    """Return the last scrub as `status --json` shows it, None if there was none."""
    scrub = health.scrub
    if scrub is None:
        return None
    shown = {
        **asdict(scrub),
        "ended_s": scrub.ended_s or None,
        "members": [row._asdict() for row in scrub.members],
        "places": [{**one._asdict(), "roles": list(one.roles)} for one in scrub.places],
    }
    return cast("LastScrub", shown)


class RememberedArray(NamedTuple):
    """An array by *uuid* and *name*; it had *total* volumes, some or all of them *volumes*."""

    uuid: str
    name: str
    volumes: tuple[str, ...]
    total: int


def remembered_arrays(config: ArrayConfig) -> list[RememberedArray]:
    """Return the arrays that *config* remembers."""
    kept = config.jobs.get(POOL)
    found = []
    for row in kept[:ARRAYS_MAX] if isinstance(kept, list) else []:
        with suppress(ValueError):
            found.append(decode(RememberedArray, row))
    return [
        one
        for one in found
        if all(map(is_clean, (one.uuid, one.name, *one.volumes)))
        and len(one.volumes) <= one.total <= VOLUMES_MAX
    ]


def with_remembered_arrays(config: ArrayConfig, arrays: Iterable[RememberedArray]) -> ArrayConfig:
    """Return *config* that remembers *arrays*, as many as have room; unchanged if it does."""
    rows: list[list[object]] = []
    room = NAMES_BYTES_MAX
    for uuid, name, volumes, total in sorted(arrays)[:ARRAYS_MAX]:
        names = []
        for volume in volumes:
            room -= len(volume.encode("ascii", "backslashreplace")) + 3
            if room >= 0:
                names.append(volume)
        rows.append([uuid, name, names, total])
    if rows == config.jobs.get(POOL, []):
        return config
    return config.with_job(POOL, rows) if rows else config.without_job(POOL)
