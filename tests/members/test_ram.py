"""Memory as a member: sparse to a tebibyte, views, what was touched."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.members.ram import RamMember
from tests.support.member_contract import read, refused, write
from tests.support.reasons import because

TIB = 1 << 40


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def test_a_tebibyte_costs_what_is_written() -> None:
    before = resident_bytes()
    members = [RamMember(TIB) for _ in range(4)]
    for member in members:
        await write(member, TIB - 5, b"hello")
        await write(member, TIB // 3, b"x" * (3 << 20))
        assert await read(member, TIB - 5, 5) == b"hello"
        assert await read(member, TIB // 2, 5) == bytes(5)
        extents = list(member.data_extents(0, TIB))
        assert sum(length for _, length in extents) <= 5 << 20
        assert await member.punch(100, TIB - 200)
        assert await read(member, TIB // 3, 5) == bytes(5)
        assert await read(member, TIB - 5, 5) == b"hello"
    assert resident_bytes() - before < 100 << 20
    for member in members:
        member.close()


async def test_punching_gives_memory_back() -> None:
    member = RamMember(64 << 20)
    await write(member, 0, b"x" * (64 << 20))
    full = resident_bytes()
    await member.punch(1000, (64 << 20) - 2000)
    assert full - resident_bytes() > 50 << 20
    assert list(member.data_extents(0, member.size_bytes)) == [
        (0, 1 << 20),
        (63 << 20, 1 << 20),
    ]


def test_more_than_the_address_space_is_a_clear_error() -> None:
    for size_bytes in (1 << 60, 1 << 70):
        with pytest.raises(UsageError, check=because(Reason.SHORTAGE)):
            RamMember(size_bytes, name="ram:1EiB")


def test_writing_past_the_member_counts_all_as_written() -> None:
    member = RamMember(8 << 20)
    assert not list(member.data_extents(0, 8 << 20))
    member.memory[12345] = 7
    assert list(member.data_extents(0, 8 << 20)) == [(0, 8 << 20)]
    view = member.view(12345, 1)
    assert view is not None
    assert bytes(view) == b"\7"


async def test_read_only_memory() -> None:
    member = RamMember(4096, read_only=True)
    assert await refused(lambda: member.try_writev(0, [b"x"])) == errno.EROFS
    assert await refused(lambda: member.punch(0, 10)) == errno.EROFS
    assert await read(member, 0, 4096) == bytes(4096)


def test_a_view_outlives_its_member() -> None:
    member = RamMember(4096)
    assert member.try_writev(0, [b"kept"])
    view = member.view(0, 4)
    member.close()
    assert view is not None
    assert bytes(view) == b"kept"
