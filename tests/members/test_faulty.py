"""Every fault of the fault wrapper: what the caller sees, and what really lies on the member."""

from __future__ import annotations

import errno

import pytest
import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import WRITE, Fault, FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.member_contract import read, refused, write

SIZE_BYTES = 1 << 20


@pytest.fixture
def member() -> FaultMember:
    return FaultMember(RamMember(SIZE_BYTES, name="ram3"), seed=1)


async def test_errors_name_the_member_and_keep_the_number(member: FaultMember) -> None:
    fault = member.error(number=errno.ENOSPC)
    assert await refused(lambda: member.try_writev(0, [b"x"])) == errno.ENOSPC
    assert await refused(lambda: member.try_readv(0, [bytearray(1)])) == errno.ENOSPC
    assert await refused(lambda: member.writev(0, [b"x"])) == errno.ENOSPC
    assert await refused(lambda: member.punch(0, 1)) == errno.ENOSPC
    assert await refused(member.flush) == errno.ENOSPC
    with pytest.raises(MemberError, match="ram3: read at byte 512 failed"):
        await member.readv(512, [bytearray(1)])
    assert fault.hits == member.injected["error"] == 6
    fault.lift()
    await member.flush()
    assert await read(member, 0, 1) == b"\0"


async def test_a_burst_ends_by_itself(member: FaultMember) -> None:
    member.error(("write",), count=3)
    assert await read(member, 0, 1) == b"\0"
    for _ in range(3):
        assert await refused(lambda: member.writev(0, [b"x"])) == errno.EIO
    await write(member, 0, b"x")
    assert member.view(0, 1) is not None, "healthy again, so views are offered again"


async def test_a_bad_area_has_edges(member: FaultMember) -> None:
    member.error(("read",), offset_bytes=1000, length_bytes=100)
    await read(member, 900, 100)
    await read(member, 1100, 10)
    for begin, length in ((900, 101), (1099, 1), (0, 5000)):
        assert await refused(lambda b=begin, n=length: member.readv(b, [bytearray(n)]))  # type: ignore[misc]
    await write(member, 1000, b"writes pass")
    await member.flush()


def test_chances_follow_the_seed() -> None:
    async def failures(seed: int) -> list[int]:
        member = FaultMember(RamMember(SIZE_BYTES), seed=seed)
        member.error(("read",), probability=0.3)
        failed = []
        for number in range(200):
            try:
                await member.readv(0, [bytearray(1)])
            except MemberError:
                failed.append(number)
        return failed

    first = run(failures, 5)
    assert first == run(failures, 5)
    assert first != run(failures, 6)
    assert 30 < len(first) < 90


async def test_a_hang_lasts_until_it_is_lifted(member: FaultMember) -> None:
    fault = member.hang(("write",))
    assert not member.try_writev(0, [b"held"])
    assert await read(member, 0, 4) == bytes(4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"held"])
        with trio.move_on_after(3600) as scope:
            await member.writev(100, [b"left"])
        assert scope.cancelled_caught
        assert await read(member, 0, 4) == bytes(4)
        fault.lift()
    assert await read(member, 0, 4) == b"held"
    assert await read(member, 100, 4) == bytes(4)
    assert trio.current_time() == 3600


async def test_a_slow_member_is_late_by_exactly_that(member: FaultMember) -> None:
    member.slow(0.25, ("read",), count=2)
    for expected_s in (0.25, 0.5, 0.5):
        await member.readv(0, [bytearray(1)])
        assert trio.current_time() == expected_s


async def test_a_lost_write_is_acknowledged(member: FaultMember) -> None:
    member.inject(Fault("lost", WRITE, count=1))
    await write(member, 0, b"lost")
    await write(member, 4, b"kept")
    assert await read(member, 0, 8) == b"\0\0\0\0kept"
    assert member.injected == {"lost": 1}


async def test_a_misdirected_write_lands_elsewhere(member: FaultMember) -> None:
    member.inject(Fault("misdirected", WRITE, shift_bytes=4096, count=1))
    await write(member, 0, b"lost")
    assert await read(member, 0, 4) == bytes(4)
    assert await read(member, 4096, 4) == b"lost"
    member.inject(Fault("misdirected", WRITE, shift_bytes=4096, count=1))
    await write(member, SIZE_BYTES - 600, b"e" * 600)
    assert await read(member, SIZE_BYTES - 600, 600) == b"e" * 600, "nothing lies beyond"


@pytest.mark.parametrize("number", [0, errno.EIO])
def test_a_torn_write_keeps_leading_sectors(number: int) -> None:
    async def torn(seed: int) -> int:
        member = FaultMember(RamMember(SIZE_BYTES), seed=seed)
        member.inject(Fault("torn", WRITE, number=number, count=1))
        if number:
            assert await refused(lambda: member.writev(700, [b"t" * 4096])) == number
        else:
            await write(member, 700, b"t" * 4096)
        content = await read(member, 0, 8192)
        kept = content.count(b"t")
        assert content == (bytes(700) + b"t" * kept).ljust(8192, b"\0")
        assert kept < 4096
        assert not kept or (700 + kept) % 512 == 0
        return kept

    kept = {run(torn, seed) for seed in range(40)}
    assert 0 in kept
    assert len(kept) > 5


async def test_rot_flips_bits_past_all_faults(member: FaultMember) -> None:
    await write(member, 10, b"\xf0\xf0\xf0")
    member.vanish()
    await member.rot(11, 2, mask=0x81)
    member.come_back()
    assert await read(member, 10, 3) == b"\xf0\x71\x71"


async def test_vanish_and_return(member: FaultMember) -> None:
    await write(member, 0, b"before")
    member.vanish()
    assert member.view(0, 6) is None
    assert await refused(lambda: member.try_readv(0, [bytearray(6)])) == errno.ENODEV
    assert await refused(lambda: member.try_writev(0, [b"during"])) == errno.ENODEV
    assert await refused(lambda: member.writev(0, [b"during"])) == errno.ENODEV
    assert await refused(member.flush) == errno.ENODEV
    with pytest.raises(MemberError):
        member.reserve(0, 512)
    with pytest.raises(MemberError):
        list(member.data_extents(0, 512))
    member.come_back()
    assert await read(member, 0, 6) == b"before"


async def test_vanishing_during_a_wait_is_noticed(member: FaultMember) -> None:
    member.slow(1.0)
    async with trio.open_nursery() as nursery:

        async def pull() -> None:
            await trio.sleep(0.5)
            member.vanish()

        nursery.start_soon(pull)
        assert await refused(lambda: member.writev(0, [b"x"])) == errno.ENODEV
    member.clear()
    assert await read(member, 0, 1) == b"\0"


async def test_faults_stack(member: FaultMember) -> None:
    member.slow(1.0)
    member.error(("write",), count=1)
    assert await refused(lambda: member.writev(0, [b"x"])) == errno.EIO
    assert trio.current_time() == 1
    await member.writev(0, [b"x"])
    assert trio.current_time() == 2
    member.clear()
    assert member.try_readv(0, [bytearray(1)])


@pytest.mark.parametrize("kind", ["hang", "slow"])
async def test_what_was_given_up_lands_later(kind: str) -> None:
    """A hang in a range comes back when it is lifted, a slow answer by itself."""

    ram = RamMember(4096)
    member = FaultMember(ram)
    places = {"offset_bytes": 512, "length_bytes": 512, "count": 1}
    fault = (
        member.hang(("write",), **places)
        if kind == "hang"
        else member.slow(40.0, ("write",), **places)
    )
    assert member.try_writev(0, [b"elsewhere"])
    assert not member.try_writev(512, [b"A"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 512, [b"A"])
        await trio.sleep(30)
        assert bytes(ram.memory[512:513]) == b"\0"
        if kind == "hang":
            fault.lift()
    assert bytes(ram.memory[512:513]) == b"A"
    assert trio.current_time() == (30 if kind == "hang" else 40)
