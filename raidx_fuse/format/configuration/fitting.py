"""What a superblock has room for: configurations are measured before anybody relies on them.

What users ask for is refused when it does not fit, and leaves some room free. That room is for what
nobody can refuse: members fail, counters rise, chunks are lost. When even that gets scarce, what is
for messages only goes first (where members were last seen), then the list of lost chunks is rounded
up (lost_chunks.py).
"""

from __future__ import annotations

from dataclasses import replace

from raidx_fuse.errors import FormatError
from raidx_fuse.format.configuration.config import ArrayConfig, encode_config
from raidx_fuse.format.configuration.lost_chunks import (
    FRAME_BYTES,
    KEY,
    decode_chunks,
    encode_chunks,
)
from raidx_fuse.format.configuration.names import cleaned
from raidx_fuse.format.superblock import BODY_BYTES_MAX

RESERVE_BYTES = 4 << 10
"""What a change that a user asks for leaves free."""
_HINTS = (4096, 96, 32, 0)  # characters of a path that are kept, the last ones
LOST_BYTES_MIN = 2 << 10  # of the list of lost chunks, before anything is refused for it


def fitted(config: ArrayConfig, reserve_bytes: int = 0) -> ArrayConfig:
    """Return *config* as a superblock has room for it, with *reserve_bytes* to spare.

    Raises FormatError when it has not, or when it cannot be encoded at all.
    """
    room = BODY_BYTES_MAX - reserve_bytes
    for characters in _HINTS:
        config = _with_hints(config, characters)
        size = len(encode_config(config))
        if size <= room:
            return config
    lost = config.jobs.get(KEY)
    if lost:
        others = len(encode_config(_with_lost(config, {})))
        left = max(room - others, LOST_BYTES_MIN if reserve_bytes else FRAME_BYTES + 64)
        config = _with_lost(config, encode_chunks(decode_chunks(lost), left))
        size = len(encode_config(config))
    if size > room:
        raise FormatError(
            f"the configuration of {size} bytes does not fit into a superblock "
            f"({room} bytes are left for it)",
            action="fewer members or spares leave more room",
        )
    return config


def _with_lost(config: ArrayConfig, lost: dict[str, object]) -> ArrayConfig:
    return replace(config, jobs={**config.jobs, KEY: lost})


def _with_hints(config: ArrayConfig, characters: int) -> ArrayConfig:
    """Return *config* with path hints that can be written, of *characters* at most."""
    members = tuple(
        replace(record, path_hint=cleaned(record.path_hint)[-characters:] if characters else "")
        for record in config.members
    )
    return config if members == config.members else replace(config, members=members)
