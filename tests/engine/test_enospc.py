"""A full host under sparse members: a write is refused, or a member fails; nothing is lost."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
import trio

from raidx_fuse.array.advice import action
from raidx_fuse.array.array import Array
from raidx_fuse.client.status_document import exit_status
from raidx_fuse.errors import MemberError, NoSpaceError, RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import HostSpace, Member, WrapperMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.store.host_space import LOOK_S
from tests.support.arrays import LOG_BYTES, jobs_ended, parity_holds
from tests.support.load import opened
from tests.support.spy import SpyRig, noise

CHUNK = 4096


class Host:
    """A host file system with room for *free_bytes* more; members on it share it."""

    def __init__(self) -> None:
        self.free_bytes: int | None = None
        self.number = errno.ENOSPC  # of its refusals

    def take(self, member: Member, operation: str, offset: int, length: int) -> None:
        """Use room. Raises MemberError when there is none."""
        if self.free_bytes is None:
            return
        if length > self.free_bytes:
            raise MemberError(member.path, operation, offset, self.number)
        self.free_bytes -= length


class SparseMember(WrapperMember):
    """A sparse file: the first write of a 4 KiB block takes room on the host."""

    def __init__(self, inner: Member, host: Host, *, can_reserve: bool) -> None:
        super().__init__(inner)
        self._host = host
        self._can_reserve = can_reserve
        self._allocated: set[int] = set()

    def _allocate(self, operation: str, offset: int, length: int) -> None:
        blocks = set(range(offset // 4096, (offset + length - 1) // 4096 + 1)) - self._allocated
        self._host.take(self, operation, offset, len(blocks) * 4096)
        self._allocated |= blocks

    def try_writev(self, offset_bytes: int, buffers: object) -> bool:
        return False

    async def writev(self, offset_bytes: int, buffers: object) -> None:
        parts = list(buffers)  # type: ignore[call-overload]
        self._allocate("write", offset_bytes, sum(map(len, parts)))
        await self.inner.writev(offset_bytes, parts)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        first, end = -(-offset_bytes // 4096), (offset_bytes + length_bytes) // 4096
        freed = self._allocated & set(range(first, end))
        self._allocated -= freed
        if self._host.free_bytes is not None:
            self._host.free_bytes += 4096 * len(freed)
        return await self.inner.punch(offset_bytes, length_bytes)

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        if self._can_reserve:
            self._allocate("reserve", offset_bytes, length_bytes)

    def host_space(self) -> HostSpace:
        missing = self.size_bytes - 4096 * len(self._allocated)
        free = self._host.free_bytes
        return HostSpace(7, 1 << 30 if free is None else free, missing)

    def view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return None


class HostedRig(SpyRig):
    """A rig whose members are sparse files on one host (or each on its own)."""

    def __init__(
        self, layout: str, width: int, *, can_reserve: bool = True, sums: bool = False
    ) -> None:
        super().__init__(layout, width, chunk_bytes=CHUNK)
        self.sums = sums
        self.host = Host()
        self.can_reserve = can_reserve

    def new_member(self, role: int | None = None) -> FaultMember:
        """Return a fresh sparse member."""
        member = super().new_member(role)
        member.inner = SparseMember(member.inner, self.host, can_reserve=self.can_reserve)
        member.kind = "file"
        return member

    async def create(self, filled: float = 0.0) -> Array:
        if not self.sums:
            return await super().create(filled)
        self.members = [self.new_member(role) for role in range(self.width)]
        await create_array(
            self.members,
            self.layout,
            chunk_bytes=CHUNK,
            name="rig",
            now_s=0,
            log_bytes=LOG_BYTES,
            sums=True,
        )
        array = await self.open()
        self.model = bytearray(24 * CHUNK)
        return array


async def scrub_is_clean(rig: HostedRig) -> None:
    """Assert that parity and data agree."""
    await parity_holds(rig.array)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize(("layout", "width"), [("raid0", 2), ("raid1", 2), ("raid5", 4)])
async def test_a_full_host_refuses_the_write_whole_and_keeps_every_member(
    layout: str, width: int, number: int
) -> None:
    """Full, or beyond a quota or a limit on the size of files."""
    rig = HostedRig(layout, width)
    rig.host.number = number
    await opened(rig)
    await rig.put(0, noise(6 * CHUNK, 1))
    await rig.array.flush()
    rig.host.free_bytes = CHUNK  # one chunk and no more: never enough for chunk and parity
    with pytest.raises(NoSpaceError) as caught:
        await rig.put(6 * CHUNK, noise(6 * CHUNK, 2))
    assert caught.value.errno == errno.ENOSPC
    assert ("ulimit -f" if number == errno.EFBIG else "free space") in str(caught.value)
    found = rig.array.status()
    assert found["state"] == "clean", "a full host breaks no disk"
    assert found["host_full"]
    assert exit_status(found) == 1
    assert "is full" in (action(found | {"mountpoint": None}) or "")
    await rig.compare()  # all of it as before, zeros where the refused write was to go
    await rig.put(CHUNK + 5, noise(CHUNK, 3))  # rewriting needs no room
    await rig.array.flush()
    await scrub_is_clean(rig)
    rig.host.free_bytes = None  # someone made room
    await trio.sleep(1.01 * LOOK_S)
    assert rig.array.status()["host_full"] == (number != errno.ENOSPC), "a quota is not seen"
    await rig.put(6 * CHUNK, noise(6 * CHUNK, 4))
    await rig.put(9 * CHUNK + 17, noise(100, 5))
    assert not rig.array.status()["host_full"]
    await rig.compare()
    await scrub_is_clean(rig)
    if layout != "raid0":
        await rig.array.fail_disk(0)
        await rig.compare()


@pytest.mark.parametrize(("layout", "width"), [("raid0", 2), ("raid1", 2), ("raid5", 4)])
async def test_a_write_whose_checksums_have_no_room_is_refused_whole(
    layout: str, width: int
) -> None:
    rig = await opened(HostedRig(layout, width, sums=True))
    cells = 1 if layout == "raid0" else 2
    rig.host.free_bytes = cells * CHUNK  # and nothing for the tables
    with pytest.raises(NoSpaceError):
        await rig.put(0, noise(CHUNK, 1))
    await rig.array.flush()
    await trio.sleep(30)  # a checkpoint
    assert rig.array.status()["state"] == "clean", "a full host breaks no disk"
    await rig.compare()
    rig.host.free_bytes = None
    await rig.put(0, noise(6 * CHUNK, 2))
    await rig.array.flush()
    await rig.compare()
    await scrub_is_clean(rig)


@pytest.mark.parametrize("journal", ["partial", "none"])
async def test_tables_that_cannot_be_saved_cost_no_write_and_no_member(journal: str) -> None:
    """After sums=on the tables are empty again, and what is rewritten takes room in them."""
    rig = await opened(HostedRig("raid5", 4, sums=True))
    await rig.put(0, noise(24 * CHUNK, 1))
    await rig.array.set("journal", journal)
    await rig.array.set("sums", "off")
    await rig.array.set("sums", "on")
    rig.host.free_bytes = 0
    refused = 0
    for number in range(200):  # more than the log holds
        try:
            with trio.fail_after(60):
                await rig.put(number % 24 * CHUNK, noise(CHUNK, number))
        except NoSpaceError:
            refused += 1
        if number % 20 == 0:
            with suppress(NoSpaceError):
                await rig.array.flush()
        await trio.sleep(0.1)
    assert not rig.array.member_set.lost, "a full host breaks no disk"
    if journal == "partial":
        assert refused, "the log is full"
        assert rig.array.status()["host_full"]
    else:
        assert not refused, "regions stay marked"
    await rig.compare()
    await rig.survives()
    rig.host.free_bytes = None
    await trio.sleep(1.01 * LOOK_S)
    await rig.put(0, noise(24 * CHUNK, 3))
    await rig.array.flush()
    await jobs_ended(rig.array)
    await rig.compare()
    await scrub_is_clean(rig)
    sums = rig.array.member_set.sums
    assert sums is not None
    assert (sums.misfits, sums.wrong_sums) == (0, 0)


@pytest.mark.parametrize("free_chunks", [0, 1, 2, 3])
@pytest.mark.parametrize(("layout", "width"), [("raid0", 3), ("raid1", 2), ("raid5", 3)])
async def test_where_room_cannot_be_reserved_nothing_is_lost_either(
    layout: str, width: int, free_chunks: int
) -> None:
    rig = await opened(HostedRig(layout, width, can_reserve=False))
    await rig.put(0, noise(6 * CHUNK, 1))
    await rig.array.flush()
    rig.host.free_bytes = free_chunks * CHUNK
    error: RaidxError | None = None
    data = noise(3 * CHUNK, 2)
    try:
        await rig.array.write(6 * CHUNK, data)
    except RaidxError as caught:
        error = caught
    rig.host.free_bytes = None
    got = await rig.get(6 * CHUNK, 3 * CHUNK)
    if error is None:  # acknowledged: by members that are left, all of it must be there
        assert got == data
    else:
        assert error.errno in (errno.ENOSPC, errno.EIO)
        for at in range(0, len(got), 512):
            assert got[at : at + 512] in (data[at : at + 512], bytes(512)), "a third value"
    assert await rig.get(0, 6 * CHUNK) == rig.model[: 6 * CHUNK]
    await rig.put(6 * CHUNK, noise(3 * CHUNK, 3))
    await rig.array.flush()
    await rig.reopen()
    await rig.compare()


async def test_full_on_one_host_fails_that_member_alone() -> None:
    """Members on different hosts: the code can do without the one whose host is full."""
    rig = await opened(HostedRig("raid5", 3, can_reserve=False))
    await rig.put(0, noise(6 * CHUNK, 1))
    sparse = rig.members[1].inner
    assert isinstance(sparse, SparseMember)
    sparse._host = Host()
    sparse._host.free_bytes = 0
    await rig.put(0, noise(20 * CHUNK, 2))
    status = rig.array.status()
    assert status["state"] == "degraded"
    assert [member["state"] for member in status["members"]] == ["active", "failed", "active"]
    await rig.compare()


async def test_full_for_the_maps_as_well_and_background_tasks_continue() -> None:
    """Not a byte of room, also for the first page of a map: refused, and the array goes on."""
    rig = await opened(HostedRig("raid5", 3, can_reserve=False))
    rig.host.free_bytes = 0
    with pytest.raises(RaidxError) as caught:
        await rig.array.write(0, noise(CHUNK))
    assert caught.value.errno == errno.ENOSPC
    await trio.sleep(60)
    assert await rig.get(0, CHUNK) == bytes(CHUNK)
    rig.host.free_bytes = None
    await rig.put(0, noise(5 * CHUNK))
    await rig.array.flush()
    await trio.sleep(60)
    await rig.compare()
    await rig.reopen()
    await rig.compare()
