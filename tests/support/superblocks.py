"""Members of 1 MiB in RAM and a configuration of two of them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import crc32c

from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, plan_regions
from raidx_fuse.format.superblock import HEADER_BYTES, Superblock, encode_superblock
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run

SIZE = 1 << 20
NAMES = [str(uuid.UUID(int=100 + number)) for number in range(4)]


def config(width: int = 2, **changes: Any) -> ArrayConfig:
    made = ArrayConfig(
        array_uuid=str(uuid.UUID(int=5)),
        name="disk",
        layout="raid1",
        chunk_bytes=4096,
        width=width,
        members=tuple(MemberRecord(r, NAMES[r], "active", SIZE, f"m{r}") for r in range(width)),
        regions=plan_regions(SIZE, 4096, width),
    )
    return replace(made, **changes)


def ram(*contents: tuple[int, bytes], name: str = "m0") -> RamMember:
    member = RamMember(SIZE, name=name)
    for offset, content in contents:
        member.memory[offset : offset + len(content)] = content
    return member


def content(sequence: int, events: int, **changes: Any) -> tuple[int, bytes]:
    """Return offset and bytes of a superblock of member 0."""
    superblock = Superblock(NAMES[0], sequence, 0, config(events=events, **changes))
    return superblock.slot * SUPERBLOCK_SLOT_BYTES, encode_superblock(superblock)


def resigned(right: bytes, change: dict[int, bytes]) -> bytes:
    """Return the superblock *right* with pieces at offsets changed and its checksum correct."""
    raw = bytearray(right)
    for offset, piece in change.items():
        raw[offset : offset + len(piece)] = piece
    raw[12:16] = bytes(4)
    end = HEADER_BYTES + min(int.from_bytes(raw[16:20], "little"), len(raw))
    raw[12:16] = crc32c.crc32c(bytes(raw[:end])).to_bytes(4, "little")
    return bytes(raw)


def read(member: Member) -> Superblock | None:
    return run(read_superblock, member)
