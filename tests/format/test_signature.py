"""Signatures: the table, real file systems where their tools are installed, no false alarms."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.signature import (
    Signature,
    clear_front,
    describe,
    find_in_front,
    find_signatures,
)
from raidx_fuse.format.superblock import read_slots
from raidx_fuse.members.local import LocalMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.scenario import Scenario

SIZE = 8 << 20
MD = b"\xfc\x4e\x2b\xa9"
EXT_LINE = [(1024 + 24, b"\x02"), (1024 + 76, b"\x01"), (1080, b"\x53\xef")]
MBR = [(446, b"\x80"), (450, b"\x83"), (510, b"\x55\xaa")]

CASES: list[tuple[str, list[tuple[int, bytes]]]] = [
    ("raidx", [(0, b"RAIDX-SB")]),
    ("raidx", [(65536, b"RAIDX-SB")]),
    ("XFS", [(0, b"XFSB")]),
    ("Btrfs", [(65536 + 64, b"_BHRfS_M")]),
    ("LUKS", [(0, b"LUKS\xba\xbe")]),
    ("LUKS", [(16384, b"SKUL\xba\xbe")]),
    ("LVM2", [(512, b"LABELONE")]),
    ("LVM2", [(1536, b"LABELONE")]),
    ("swap", [(4086, b"SWAPSPACE2")]),
    ("GPT", [(512, b"EFI PART")]),
    ("GPT", [(4096, b"EFI PART")]),
    ("GPT", [(SIZE - 512, b"EFI PART")]),
    ("MBR", MBR),
    ("md", [(0, MD)]),
    ("md", [(4096, MD)]),
    ("md", [(SIZE - 65536, MD)]),
    ("md", [(SIZE - 8192, MD)]),
    ("ext2", EXT_LINE),
    ("ext3", [*EXT_LINE, (1116, b"\x04")]),
    ("ext4", [*EXT_LINE, (1120, b"\x40")]),
    ("bcache", [(4096 + 24, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"))]),
    ("bcachefs", [(4096 + 24, bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef"))]),
    ("F2FS", [(1024, b"\x10\x20\xf5\xf2")]),
    ("NTFS", [(3, b"NTFS    ")]),
    ("exFAT", [(3, b"EXFAT   ")]),
    ("FAT", [(82, b"FAT32   ")]),
    ("ISO 9660", [(32769, b"CD001")]),
    ("ZFS", [(131072 + 5 * 1024, b"\x0c\xb1\xba\0\0\0\0\0")]),
    ("ZFS", [(131072, b"\0\0\0\0\0\xba\xb1\x0c")]),
    ("ZFS", [(131032, bytes.fromhex("117a0cb17ada1002"))]),
    ("hibernation", [(4086, b"S1SUSPEND")]),
    ("UDF", [(32769, b"BEA01")]),
    ("ReiserFS", [(65536, b"ReIsEr4")]),
    ("APFS", [(32, b"NXSB")]),
    ("HFS+", [(1024, b"H+\0\4")]),
    ("GFS2", [(65536, b"\x01\x16\x19\x70")]),
    ("UFS", [(65536 + 1372, b"\x19\x01\x54\x19")]),
    ("BitLocker", [(3, b"-FVE-FS-")]),
    ("dm-integrity", [(0, b"integrt\0")]),
    ("Stratis", [(516, b"!Stra0tis\x86\xff\x02^\x41rh")]),
    ("Apple", [(512, b"PM\0\0")]),
    ("Intel", [(SIZE - 1024, b"Intel Raid ISM Cfg Sig. ")]),
]


def holding(pieces: list[tuple[int, bytes]], size: int = SIZE) -> RamMember:
    member = RamMember(size)
    for offset, piece in pieces:
        member.memory[offset : offset + len(piece)] = piece
    return member


@pytest.mark.parametrize(("name", "pieces"), CASES)
def test_a_signature_is_found_and_goes_when_it_is_cleared(
    name: str, pieces: list[tuple[int, bytes]]
) -> None:
    member = holding(pieces)
    found = run(find_signatures, member)
    assert len(found) == 1
    assert name in describe(found)
    start, end = found[0].offset, found[0].offset + found[0].length
    member.memory[start:end] = bytes(end - start)
    assert run(find_signatures, member) == []


FRONT_BYTES = 2 * SUPERBLOCK_SLOT_BYTES
IN_FRONT = [case for case in CASES if case[0] != "raidx" and case[1][0][0] < FRONT_BYTES]


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(("name", "pieces"), IN_FRONT)
def test_a_format_that_was_made_on_a_member_is_found_in_front_of_it(
    name: str, pieces: list[tuple[int, bytes]], slot: int
) -> None:
    """As the tools leave it: one superblock of the two may be intact, and it hides nothing."""

    async def found() -> list[Signature]:
        return find_in_front(await read_slots(member, searched=True))

    life = Scenario()
    life.start().close()
    member = life.disks[1]
    assert [each.superblock is not None for each in run(read_slots, member)] == [True, True]
    assert run(found) == []
    at = SUPERBLOCK_SLOT_BYTES * slot
    if name == "ZFS":
        member.memory[16 << 10 : 128 << 10] = bytes(112 << 10)  # its label
    elif len(pieces) > 1:  # a whole block of its own
        member.memory[:4096] = bytes(4096)
    elif not any(at <= offset < at + 4096 for offset, _ in pieces):
        member.memory[at : at + 4096] = bytes(4096)  # mkswap, pvcreate and others zero the begin
    for offset, piece in pieces:
        member.memory[offset : offset + len(piece)] = piece
    assert name in describe(run(found))
    assembly = life.assemble()
    assert assembly.missing_roles == [1]
    assert assembly.warnings[0].startswith("not used: d1")
    run(clear_front, member, run(found))
    assert run(found) == []


def test_what_a_superblock_says_is_no_signature_and_what_cannot_be_read_hides_none() -> None:
    life = Scenario()
    life.start().close()
    disk = life.disks[1]
    disk.memory[4086:4096] = b"SWAPSPACE2"  # say it is in the name of a volume
    slots = run(lambda: read_slots(disk, searched=True))
    assert describe(find_in_front(slots)) == "swap space"
    assert find_in_front([replace(slots[0], length=5000), slots[1]]) == []
    member = FaultMember(disk)
    for offset in (32 << 10, 64 << 10):
        member.lose_sectors(offset)
    slots = run(lambda: read_slots(member, searched=True))
    assert [slot.superblock is not None for slot in slots] == [True, False]
    assert describe(find_in_front(slots)) == "swap space", "the head of the slot can be read"
    assert life.assemble(0, 2, 3).missing_roles == [1]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [(510, b"\x55\xaa")],
        [(446, b"\x12"), (450, b"\x83"), (510, b"\x55\xaa")],
        [(1080, b"\x53\xef"), (1048, b"\x99")],
        [(4096, b"RAIDX-SB")],
        [(SIZE - 12288, MD)],
    ],
)
def test_what_only_resembles_a_signature_is_none(pieces: list[tuple[int, bytes]]) -> None:
    assert run(find_signatures, holding(pieces)) == []


def test_random_bytes_and_tiny_members_raise_no_alarm() -> None:
    for seed in range(20):
        member = holding([(0, random.Random(seed).randbytes(1 << 20))], 1 << 20)
        assert run(find_signatures, member) == []
    for size in (512, 1024, 1536, 4096, 65536):
        assert run(find_signatures, RamMember(size)) == []


def test_several_signatures_are_all_named() -> None:
    member = holding([*MBR, (512, b"EFI PART"), (SIZE - 512, b"EFI PART"), (65600, b"_BHRfS_M")])
    text = describe(run(find_signatures, member))
    for name in ("MBR", "GPT partition table and", "backup", "Btrfs"):
        assert name in text


TOOLS = [
    ("ext4", ["mkfs.ext4", "-q", "-F"], 64),
    ("ext2", ["mkfs.ext2", "-q", "-F"], 64),
    ("XFS", ["mkfs.xfs", "-q", "-f"], 512),
    ("Btrfs", ["mkfs.btrfs", "-q", "-f"], 256),
    ("swap", ["mkswap", "-q"], 64),
]


@pytest.mark.parametrize(("name", "command", "mib"), TOOLS)
def test_what_real_tools_make_is_found(
    name: str, command: list[str], mib: int, tmp_path: Path
) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(mib << 20)
    path.chmod(0o600)
    subprocess.run([*command, str(path)], check=True, capture_output=True)
    member = LocalMember(str(path))
    try:
        assert name in describe(run(find_signatures, member))
    finally:
        member.close()
