"""Signatures: the table, real file systems where their tools are installed, no false alarms."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from raidx_fuse.format.signature import describe, find_signatures
from raidx_fuse.members.local import LocalMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run

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
