"""Fit configurations into the limited space of a superblock before they are used.

A change that a user requests is refused if it does not fit or leaves less than a reserve. The
reserve is for changes that cannot be refused: members fail, counters rise, chunks are lost. If the
space is not enough even for these, path hints are shortened first, because they are for messages
only; then what the array remembers for people (remembered.py) is left out, then what changed while
members were absent (absence.py); then the list of lost chunks is rounded up (lost_chunks.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from raidx_fuse.errors import FormatError, Reason
from raidx_fuse.format.configuration.absence import KEY as ABSENCE_KEY
from raidx_fuse.format.configuration.config import ArrayConfig, encode_config
from raidx_fuse.format.configuration.lost_chunks import (
    FRAME_BYTES,
    KEY,
    decode_chunks,
    encode_chunks,
)
from raidx_fuse.format.configuration.names import cleaned
from raidx_fuse.format.configuration.remembered import HEALTH, POOL
from raidx_fuse.format.superblock import BODY_BYTES_MAX

RESERVE_BYTES = 4 << 10
"""The reserve: bytes that a change requested by a user must leave free."""
_HINTS = (4096, 96, 32, 0)  # last characters of a path hint that are kept
LOST_BYTES_MIN = 2 << 10  # the list of lost chunks keeps so much before a request is refused


def fitted(config: ArrayConfig, reserve_bytes: int = 0) -> ArrayConfig:
    """Return *config*, shortened if necessary, so that a superblock keeps *reserve_bytes* free.

    Raises FormatError if it does not fit even then, or if it cannot be encoded at all.
    """
    room = BODY_BYTES_MAX - reserve_bytes
    size = 0
    for shorter in _shorter(config, room, LOST_BYTES_MIN if reserve_bytes else FRAME_BYTES + 64):
        size = len(encode_config(shorter))
        if size <= room:
            return shorter
    raise FormatError(
        f"the configuration of {size} bytes does not fit into a superblock "
        f"({room} bytes are left for it)",
        action="fewer members or spares leave more room",
        reason=Reason.METADATA_FULL,
    )


def _shorter(config: ArrayConfig, room: int, list_bytes_min: int) -> Iterator[ArrayConfig]:
    """Yield *config* shortened step by step; the list of lost chunks may have *list_bytes_min*."""
    for characters in _HINTS:
        config = _with_hints(config, characters)
        yield config
    config = config.without_job(HEALTH).without_job(POOL)
    yield config
    config = config.without_job(ABSENCE_KEY)
    yield config
    if lost := config.jobs.get(KEY):
        left = max(room - len(encode_config(config.with_job(KEY, {}))), list_bytes_min)
        config = config.with_job(KEY, encode_chunks(decode_chunks(lost), left))
        yield config


def _with_hints(config: ArrayConfig, characters: int) -> ArrayConfig:
    """Return *config* with cleaned path hints of at most *characters* characters."""
    hints = [cleaned(m.path_hint)[-characters:] if characters else "" for m in config.members]
    if hints == [record.path_hint for record in config.members]:
        return config
    pairs = zip(config.members, hints, strict=True)
    return replace(config, members=tuple(replace(m, path_hint=hint) for m, hint in pairs))
