"""The members of `mount --lab`: what a power cut leaves of the writes that no flush has covered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from raidx_fuse.errors import MemberError
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated import lab_member
from raidx_fuse.members.simulated.lab_member import Cut, LabMember

SIZE_BYTES = 1 << 20
OLD, NEW = b"o" * 4096, b"n" * 4096


@pytest.fixture
def ram() -> RamMember:
    return RamMember(SIZE_BYTES)


@asynccontextmanager
async def over(ram: RamMember) -> AsyncIterator[LabMember]:
    disk = LabMember(ram)
    await disk.writev(0, [OLD, OLD])
    await disk.flush()
    yield disk


disk = pytest.fixture(over)


def content(ram: RamMember, length: int = 8192) -> bytes:
    return bytes(ram.memory[:length])


async def test_the_host_sees_a_write_before_any_flush(disk: LabMember) -> None:
    assert disk.try_writev(0, [NEW])
    await disk.writev(4096, [NEW])
    got = bytearray(8192)
    await disk.readv(0, [got])
    assert got == NEW + NEW
    assert disk.unflushed.unflushed == 2


@pytest.mark.parametrize(("keep", "left"), [("none", OLD), ("all", NEW)])
async def test_a_cut_takes_back_or_keeps_what_no_flush_has_covered(
    keep: str, left: bytes, disk: LabMember, ram: RamMember
) -> None:
    assert disk.try_writev(0, [NEW])
    await disk.flush()
    await disk.writev(4096, [b"x" * 4096])
    await disk.writev(4096, [NEW])  # over an open write
    cut = await disk.cut_power(keep, "1")
    assert cut == (Cut(2, 0, 0) if keep == "all" else Cut(0, 2, 0))
    assert content(ram) == NEW + left


async def test_some_writes_are_torn_by_the_seed_whatever_else_is_open() -> None:
    found = []
    for more in (False, True):
        for seed in range(8):
            ram = RamMember(SIZE_BYTES)
            async with over(ram) as disk:
                if more:
                    await disk.writev(65536, [NEW])
                await disk.writev(0, [NEW])
                await disk.cut_power("some", str(seed))
                found.append(content(ram, 4096))
    assert found[:8] == found[8:]
    assert {OLD, NEW} < set(found)  # kept, lost, and torn
    for each in set(found):
        sectors = {each[at : at + 512] for at in range(0, 4096, 512)}
        assert sectors <= {OLD[:512], NEW[:512]}


async def test_a_punched_hole_is_a_write_too(disk: LabMember, ram: RamMember) -> None:
    assert await disk.punch(0, 4096)
    assert content(ram) == bytes(4096) + OLD
    await disk.cut_power("none", "0")
    assert content(ram) == OLD + OLD


async def test_rot_is_behind_the_cache_and_no_cut_heals_it(disk: LabMember, ram: RamMember) -> None:
    await disk.rot(5, mask=0x04)
    await disk.cut_power("none", "0")
    assert content(ram, 6) == b"ooooo" + bytes([ord("o") ^ 4])


async def test_after_the_cut_nothing_works_and_nothing_changes(
    disk: LabMember, ram: RamMember
) -> None:
    disk.hang(("write",))
    disk.vanish()
    await disk.cut_power("none", "0")
    for attempt in (disk.try_writev, disk.try_readv):
        with pytest.raises(MemberError, match="the power was cut"):
            attempt(0, [bytearray(4096)])
    for wait in (disk.writev(0, [NEW]), disk.readv(0, [bytearray(4096)]), disk.flush()):
        with pytest.raises(MemberError, match="the power was cut"):
            await wait
    assert content(ram) == OLD + OLD


async def test_a_full_cache_writes_the_oldest_out(
    monkeypatch: pytest.MonkeyPatch, disk: LabMember, ram: RamMember
) -> None:
    monkeypatch.setattr(lab_member, "CACHE_BYTES", 8192)
    for at in (0, 4096, 8192):
        await disk.writev(at, [NEW])
    await disk.cut_power("none", "0")
    assert content(ram, 12288) == NEW + OLD + bytes(4096)


async def test_a_flush_covers_only_the_writes_before_it(
    monkeypatch: pytest.MonkeyPatch, disk: LabMember, ram: RamMember
) -> None:
    flush = ram.flush

    async def write_meanwhile() -> None:
        await flush()
        assert disk.try_writev(4096, [NEW])

    await disk.writev(0, [NEW])
    monkeypatch.setattr(ram, "flush", write_meanwhile)
    await disk.flush()
    monkeypatch.undo()
    await disk.cut_power("none", "0")
    assert content(ram) == NEW + OLD
