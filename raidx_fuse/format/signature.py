"""Detect arrays, file systems and partition tables on a member by their magic numbers.

There is a table of (name, offset, magic) for the formats that are usual on Linux disks, and a few
functions for formats whose magic number of two bytes is no sufficient proof. A false positive only
costs the user an option; a false negative could cost a disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.members.base import Member

HEAD_BYTES = 260 << 10  # up to and including the first ZFS label
TAIL_BYTES = 260 << 10
_KI = 1024


@dataclass(frozen=True, slots=True)
class Signature:
    """A detected format: *name*, and *offset* and *length* of its magic number in bytes."""

    name: str
    offset: int
    length: int


_TABLE: tuple[tuple[str, int, bytes], ...] = (
    ("a raidx member", 0, MAGIC),
    ("a raidx member", SUPERBLOCK_SLOT_BYTES, MAGIC),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 64 * _KI + 64, b"_BHRfS_M"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a LUKS volume", 16 * _KI, b"SKUL\xba\xbe"),
    ("an LVM2 physical volume", 0, b"LABELONE"),
    ("an LVM2 physical volume", 512, b"LABELONE"),
    ("an LVM2 physical volume", 1024, b"LABELONE"),
    ("an LVM2 physical volume", 1536, b"LABELONE"),
    ("swap space", 4096 - 10, b"SWAPSPACE2"),
    ("swap space", 4096 - 10, b"SWAP-SPACE"),
    ("swap space", 64 * _KI - 10, b"SWAPSPACE2"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a Linux md member", 0, b"\xfc\x4e\x2b\xa9"),
    ("a Linux md member", 4096, b"\xfc\x4e\x2b\xa9"),
    ("a bcache device", 4096 + 24, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81")),
    ("a bcachefs file system", 4096 + 24, bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef")),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("a JFS file system", 32 * _KI, b"JFS1"),
    ("a ReiserFS file system", 64 * _KI + 52, b"ReIsEr"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT12   "),
    ("a FAT file system", 54, b"FAT16   "),
    ("a FAT file system", 82, b"FAT32   "),
    ("an ISO 9660 image", 32 * _KI + 1, b"CD001"),
    ("a SquashFS image", 0, b"hsqs"),
)

_TAIL_MAGICS: tuple[tuple[str, Callable[[int], int], bytes], ...] = (
    ("a Linux md member", lambda size: (size // 512 - 16) // 8 * 8 * 512, b"\xfc\x4e\x2b\xa9"),
    (
        "a Linux md member",
        lambda size: size // (64 * _KI) * 64 * _KI - 64 * _KI,
        b"\xfc\x4e\x2b\xa9",
    ),
    ("a GPT partition table (backup)", lambda size: size - 512, b"EFI PART"),
    ("a GPT partition table (backup)", lambda size: size - 4096, b"EFI PART"),
)

_ZFS_UBERBLOCK_MAGIC = 0x00BAB10C
_ZFS_UBERBLOCKS_OFFSET = 128 * _KI


def _find_ext(head: bytes) -> Iterator[Signature]:
    """ext2, 3, 4: 0xEF53 at 1080, accepted only with a possible block size and revision."""
    if head[1080:1082] != b"\x53\xef" or len(head) < 2048:
        return
    log_block, revision = struct.unpack_from("<I", head, 1048)[0], head[1100]
    compatible, incompatible = struct.unpack_from("<II", head, 1116)
    if log_block > 6 or revision > 1:
        return
    has_journal, has_extents = compatible & 0x4, incompatible & (0x40 | 0x80 | 0x200)
    version = "ext4" if has_extents else "ext3" if has_journal else "ext2"
    yield Signature(f"an {version} file system", 1080, 2)


def _find_mbr(head: bytes) -> Iterator[Signature]:
    """A DOS partition table: 55 AA at 510 and four plausible entries, not all of them empty."""
    if head[510:512] != b"\x55\xaa":
        return
    entries = [head[at : at + 16] for at in range(446, 510, 16)]
    if all(e[0] in (0, 0x80) for e in entries) and any(e[4] for e in entries):
        yield Signature("an MBR partition table", 510, 2)


def _find_zfs(head: bytes) -> Iterator[Signature]:
    """ZFS: the uberblock magic, of either byte order, in the ring of the first label."""
    for offset in range(_ZFS_UBERBLOCKS_OFFSET, min(256 * _KI, len(head)), _KI):
        word = head[offset : offset + 8]
        if _ZFS_UBERBLOCK_MAGIC in (int.from_bytes(word, "little"), int.from_bytes(word, "big")):
            yield Signature("a ZFS pool member", offset, 8)


def find_in_head(head: bytes) -> list[Signature]:
    """Return the signatures in *head*, the first bytes of a member."""
    found = [
        Signature(name, offset, len(magic))
        for name, offset, magic in _TABLE
        if head[offset : offset + len(magic)] == magic
    ]
    for find in (_find_ext, _find_mbr, _find_zfs):
        found.extend(find(head))
    return found


def find_in_tail(tail: bytes, size_bytes: int) -> list[Signature]:
    """Return the signatures in *tail*, the last bytes of a member of *size_bytes*."""
    start = size_bytes - len(tail)
    found = []
    for name, place, magic in _TAIL_MAGICS:
        offset = place(size_bytes)
        if offset >= start and tail[offset - start :][: len(magic)] == magic:
            found.append(Signature(name, offset, len(magic)))
    return found


async def find_signatures(member: Member) -> list[Signature]:
    """Return the signatures on *member*, in rising order of offset. Raises MemberError."""
    head = bytearray(min(HEAD_BYTES, member.size_bytes))
    tail = bytearray(min(TAIL_BYTES, member.size_bytes))
    await member.readv(0, [head])
    await member.readv(member.size_bytes - len(tail), [tail])
    found = {*find_in_head(bytes(head)), *find_in_tail(bytes(tail), member.size_bytes)}
    return sorted(found, key=lambda signature: signature.offset)


def describe(signatures: Sequence[Signature]) -> str:
    """Return *signatures* (one or more) as words: "a LUKS volume and an MBR partition table"."""
    return " and ".join(dict.fromkeys(signature.name for signature in signatures))
