"""Detect arrays, file systems and partition tables on a member by their magic numbers.

There is a table of (name, magic, offsets) for the formats that are usual on Linux disks, and a few
functions for formats whose magic number of two bytes is no sufficient proof. A false positive only
costs the user an option; a false negative could cost a disk.

A disk that becomes a member is searched at both ends (`find_signatures`), and where a member has
superblocks before its last MiB. Of one that is a member already
only the front counts (`find_in_front`), because users' data lies behind it. Creation clears the
front, and arrays write nothing there but their superblocks: any other format was made later, on a
disk that was believed to be free.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raidx_fuse.errors import MemberError
from raidx_fuse.format.regions import PAGE_BYTES, SUPERBLOCK_SLOT_BYTES, end_offset
from raidx_fuse.format.superblock import MAGIC, Slot, read_slots
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


_OWN = "a raidx member"
_TABLE: tuple[tuple[str, bytes, *tuple[int, ...]], ...] = (  # name, magic, offsets
    (_OWN, MAGIC, 0, SUPERBLOCK_SLOT_BYTES),
    ("an XFS file system", b"XFSB", 0),
    ("a Btrfs file system", b"_BHRfS_M", 64 * _KI + 64),
    ("a LUKS volume", b"LUKS\xba\xbe", 0),
    ("a LUKS volume", b"SKUL\xba\xbe", 16 * _KI),
    ("an LVM2 physical volume", b"LABELONE", 0, 512, 1024, 1536),
    ("swap space", b"SWAPSPACE2", 4096 - 10, 64 * _KI - 10),
    ("swap space", b"SWAP-SPACE", 4096 - 10),
    ("a GPT partition table", b"EFI PART", 512, 4096),
    ("a Linux md member", b"\xfc\x4e\x2b\xa9", 0, 4096),
    ("a bcache device", bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"), 4096 + 24),
    ("a bcachefs file system", bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef"), 4096 + 24),
    ("an F2FS file system", b"\x10\x20\xf5\xf2", 1024),
    ("a JFS file system", b"JFS1", 32 * _KI),
    ("a ReiserFS file system", b"ReIsEr", 64 * _KI + 52),
    ("an NTFS file system", b"NTFS    ", 3),
    ("an exFAT file system", b"EXFAT   ", 3),
    ("a FAT file system", b"FAT12   ", 54),
    ("a FAT file system", b"FAT16   ", 54),
    ("a FAT file system", b"FAT32   ", 82),
    ("an ISO 9660 image", b"CD001", 32 * _KI + 1),
    ("a SquashFS image", b"hsqs", 0),
    ("a SquashFS image", b"sqsh", 0),
    ("a UDF file system", b"BEA01", 32 * _KI + 1),
    ("a hibernation image", b"S1SUSPEND", 4096 - 10),
    ("a hibernation image", b"S2SUSPEND", 4096 - 10),
    ("a hibernation image", b"ULSUSPEND", 4096 - 10),
    ("a hibernation image", b"LINHIB0001", 4096 - 10),
    ("a ReiserFS file system", b"ReIsEr4", 64 * _KI),
    ("an APFS container", b"NXSB", 32),
    ("an HFS+ file system", b"H+\0\4", 1024),
    ("an HFS+ file system", b"HX\0\5", 1024),
    ("a NILFS2 file system", b"\x02\0\0\0\0\0\x34\x34", 1024),
    ("an EROFS image", b"\xe2\xe1\xf5\xe0", 1024),
    ("an OCFS2 file system", b"OCFSV2", 1024, 2048, 4096, 8192),
    ("a GFS2 file system", b"\x01\x16\x19\x70", 64 * _KI),
    ("a UFS file system", b"\x54\x19\x01\0", 8192 + 1372),
    ("a UFS file system", b"\0\x01\x19\x54", 8192 + 1372),
    ("a UFS file system", b"\x19\x01\x54\x19", 64 * _KI + 1372),
    ("an HPFS file system", b"\x49\xe8\x95\xf9", 8192),
    ("a VxFS file system", b"\xf5\xfc\x01\xa5", 1024),
    ("a BeFS file system", b"1SFB", 512 + 32),
    ("a ReFS file system", b"ReFS\0", 3),
    ("a BitLocker volume", b"-FVE-FS-", 3),
    ("a cramfs image", b"\x45\x3d\xcd\x28", 0),
    ("a romfs image", b"-rom1fs-", 0),
    ("a UBI volume", b"UBI#", 0),
    ("an LVM snapshot store", b"SnAp", 0),
    ("a dm-integrity device", b"integrt\0", 0),
    ("a dm-verity device", b"verity\0\0", 0),
    ("a VDO volume", b"dmvdo001", 0),
    ("a Ceph BlueStore device", b"bluestore block device", 0),
    ("a Stratis pool member", b"!Stra0tis\x86\xff\x02^\x41rh", 512 + 4),
    ("a ZFS pool member", bytes.fromhex("117a0cb17ada1002"), 128 * _KI - 40),
    ("a ZFS pool member", bytes.fromhex("0210da7ab10c7a11"), 128 * _KI - 40),
    ("an Apple partition map", b"PM\0\0", 512),
    ("an SGI disk label", b"\x0b\xe5\xa9\x41", 0),
    ("a BSD disk label", b"\x57\x45\x56\x82", 64, 512),
)

_TAIL_MAGICS: tuple[tuple[str, Callable[[int], int], bytes], ...] = (
    ("a Linux md member", lambda size: (size // 512 - 16) // 8 * 8 * 512, b"\xfc\x4e\x2b\xa9"),
    ("a Linux md member", lambda size: (size // (64 * _KI) - 1) * 64 * _KI, b"\xfc\x4e\x2b\xa9"),
    ("a GPT partition table (backup)", lambda size: size - 512, b"EFI PART"),
    ("a GPT partition table (backup)", lambda size: size - 4096, b"EFI PART"),
    ("an Intel RAID member", lambda size: size - 1024, b"Intel Raid ISM Cfg Sig. "),
    ("a DDF RAID member", lambda size: size - 512, b"\xde\x11\xde\x11"),
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
        for name, magic, *offsets in _TABLE
        for offset in offsets
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
    if (end := end_offset(member.size_bytes)) is not None:
        slots = await read_slots(member, end=end)
        found.update(Signature(_OWN, slot.offset, len(MAGIC)) for slot in slots if slot.ours)
    return sorted(found, key=lambda signature: signature.offset)


async def clear_signatures(member: Member, end: int) -> None:
    """Overwrite the signatures on *member* before byte *end* with zeros; not flushed.

    Behind *end* is content that stays: there the same bytes are a user's. A page that cannot be
    read is passed over: no program finds a signature there either. Raises MemberError.
    """
    head = await _readable(member, 0, min(HEAD_BYTES, end))
    found = find_in_head(head)
    start = max(0, member.size_bytes - TAIL_BYTES)
    if start < end:
        tail = await _readable(member, start, min(end, member.size_bytes) - start)
        found += find_in_tail(tail.ljust(member.size_bytes - start, b"\0"), member.size_bytes)
    for signature in found:
        await member.writev(signature.offset, [bytes(signature.length)])


async def _readable(member: Member, offset: int, length: int) -> bytes:
    """Return what can be read of a range; the pages that cannot are zeros."""
    content = bytearray(length)
    try:
        await member.readv(offset, [content])
    except MemberError:
        for at in range(0, length, PAGE_BYTES):
            page = memoryview(content)[at : at + PAGE_BYTES]
            try:
                await member.readv(offset + at, [page])
            except MemberError:
                page[:] = bytes(len(page))
    return bytes(content)


def find_in_front(slots: Sequence[Slot]) -> list[Signature]:
    """Return the signatures of others in front of a member whose *slots* were read for that.

    A magic number inside an intact superblock is no signature: its checksum says that nothing was
    written there since. A part that could not be read has no signature. In rising order of offset.
    """
    front = b"".join(slot.content.ljust(SUPERBLOCK_SLOT_BYTES, b"\0") for slot in slots)
    intact = [
        (slot.number * SUPERBLOCK_SLOT_BYTES, slot.number * SUPERBLOCK_SLOT_BYTES + slot.length)
        for slot in slots
        if slot.superblock is not None
    ]
    found = [
        signature
        for signature in find_in_head(front)
        if signature.name != _OWN
        and not any(begin <= signature.offset < end for begin, end in intact)
    ]
    return sorted(found, key=lambda signature: signature.offset)


async def clear_front(member: Member, signatures: Sequence[Signature]) -> None:
    """Overwrite *signatures* with zeros and flush: *member* is a member again.

    Raises MemberError.
    """
    for signature in signatures:
        await member.writev(signature.offset, [bytes(signature.length)])
    await member.flush()


def describe(signatures: Sequence[Signature]) -> str:
    """Return *signatures* (one or more) as words: "a LUKS volume and an MBR partition table"."""
    return " and ".join(dict.fromkeys(signature.name for signature in signatures))
