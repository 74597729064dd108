"""What an array remembers of the other arrays of its pool: names of arrays and of their volumes.

It is for people only: a mount that lacks one of them can name what is absent. So it is bounded, and
content that cannot be read counts as none.

    "pool": [[UUID, name, [volume, ...], number of volumes], ...]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.names import is_clean
from raidx_fuse.format.configuration.volumes import VOLUMES_MAX

KEY = "pool"
"""Its key in the `jobs` of a configuration."""
COMPANIONS_MAX = 16
NAMES_BYTES_MAX = 2 << 10  # of all volumes, as JSON; further ones are only counted


class Companion(NamedTuple):
    """An array by *uuid* and *name*; it had *total* volumes, some or all of them *volumes*."""

    uuid: str
    name: str
    volumes: tuple[str, ...]
    total: int


def companions_of(config: ArrayConfig) -> list[Companion]:
    """Return the arrays that *config* remembers."""
    kept = config.jobs.get(KEY)
    rows = kept[:COMPANIONS_MAX] if isinstance(kept, list) else []
    return [Companion(row[0], row[1], tuple(row[2]), row[3]) for row in rows if _is_row(row)]


def with_companions(config: ArrayConfig, companions: Iterable[Companion]) -> ArrayConfig:
    """Return *config* that remembers *companions*, as many as have room; unchanged if it does."""
    rows: list[list[Any]] = []
    room = NAMES_BYTES_MAX
    for uuid, name, volumes, total in sorted(companions)[:COMPANIONS_MAX]:
        names = []
        for volume in volumes:
            room -= len(volume.encode("ascii", "backslashreplace")) + 3
            if room >= 0:
                names.append(volume)
        rows.append([uuid, name, names, total])
    if rows == config.jobs.get(KEY, []):
        return config
    return config.with_job(KEY, rows) if rows else config.without_job(KEY)


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[2], list)
        and all(isinstance(text, str) and is_clean(text) for text in [*row[:2], *row[2]])
        and type(row[3]) is int
        and len(row[2]) <= row[3] <= VOLUMES_MAX
    )
