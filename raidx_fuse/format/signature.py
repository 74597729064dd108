"""Detect arrays, file systems and partition tables on a member by their magic numbers.

There is a table of (name, offset, magic) for the formats that are usual on Linux disks, and a few
functions for formats whose magic number of two bytes is no sufficient proof. A false positive only
costs the user an option; a false negative could cost a disk.

A disk that becomes a member is searched whole (`find_signatures`). Of one that is a member already
only the front counts (`find_in_front`), because users' data lies behind it. Creation clears the
front, and arrays write nothing there but their superblocks: any other format was made later, on a
disk that was believed to be free.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raidx_fuse.errors import MemberError
from raidx_fuse.format.regions import PAGE_BYTES, SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import MAGIC, Slot
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
_TABLE: tuple[tuple[str, int, bytes], ...] = (
    (_OWN, 0, MAGIC),
    (_OWN, SUPERBLOCK_SLOT_BYTES, MAGIC),
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
    ("a SquashFS image", 0, b"sqsh"),
    ("a UDF file system", 32 * _KI + 1, b"BEA01"),
    ("a hibernation image", 4096 - 10, b"S1SUSPEND"),
    ("a hibernation image", 4096 - 10, b"S2SUSPEND"),
    ("a hibernation image", 4096 - 10, b"ULSUSPEND"),
    ("a hibernation image", 4096 - 10, b"LINHIB0001"),
    ("a ReiserFS file system", 64 * _KI, b"ReIsEr4"),
    ("an APFS container", 32, b"NXSB"),
    ("an HFS+ file system", 1024, b"H+\0\4"),
    ("an HFS+ file system", 1024, b"HX\0\5"),
    ("a NILFS2 file system", 1024, b"\x02\0\0\0\0\0\x34\x34"),
    ("an EROFS image", 1024, b"\xe2\xe1\xf5\xe0"),
    ("an OCFS2 file system", 1024, b"OCFSV2"),
    ("an OCFS2 file system", 2048, b"OCFSV2"),
    ("an OCFS2 file system", 4096, b"OCFSV2"),
    ("an OCFS2 file system", 8192, b"OCFSV2"),
    ("a GFS2 file system", 64 * _KI, b"\x01\x16\x19\x70"),
    ("a UFS file system", 8192 + 1372, b"\x54\x19\x01\0"),
    ("a UFS file system", 8192 + 1372, b"\0\x01\x19\x54"),
    ("a UFS file system", 64 * _KI + 1372, b"\x19\x01\x54\x19"),
    ("an HPFS file system", 8192, b"\x49\xe8\x95\xf9"),
    ("a VxFS file system", 1024, b"\xf5\xfc\x01\xa5"),
    ("a BeFS file system", 512 + 32, b"1SFB"),
    ("a ReFS file system", 3, b"ReFS\0"),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("a cramfs image", 0, b"\x45\x3d\xcd\x28"),
    ("a romfs image", 0, b"-rom1fs-"),
    ("a UBI volume", 0, b"UBI#"),
    ("an LVM snapshot store", 0, b"SnAp"),
    ("a dm-integrity device", 0, b"integrt\0"),
    ("a dm-verity device", 0, b"verity\0\0"),
    ("a VDO volume", 0, b"dmvdo001"),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("a Stratis pool member", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("a ZFS pool member", 128 * _KI - 40, bytes.fromhex("117a0cb17ada1002")),
    ("a ZFS pool member", 128 * _KI - 40, bytes.fromhex("0210da7ab10c7a11")),
    ("an Apple partition map", 512, b"PM\0\0"),
    ("an SGI disk label", 0, b"\x0b\xe5\xa9\x41"),
    ("a BSD disk label", 64, b"\x57\x45\x56\x82"),
    ("a BSD disk label", 512, b"\x57\x45\x56\x82"),
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
