"""Two losses through the real I/O path: every code, every width to 14, sets of lost members.

One array for each code and width goes through all its single and double losses: degraded reads
against a slow decoder that shares nothing with the package, degraded writes, rebuild of one member
and of two at once, scrub. What is on the members afterwards must be what the slow encoder says.

Of eight members or more, every third pair is lost, and every thirteenth triple is missing at a
start; RAIDX_TEST_SCALE=10 tries them all.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import ArrayFailedError, AssemblyError, MemberError
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import plan_regions
from raidx_fuse.layouts.registry import allowed_widths
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import job_ended
from tests.support.slow_codes import Cell, SlowCode, slow_code

CHUNK = 4096
STRIPES = 2  # looked at: the first is full, the second is written in part
WIDTH_MAX = 14
SCALE = float(os.environ.get("RAIDX_TEST_SCALE", "1"))
SETUPS = [
    (name, width, False)
    for name in ("rdp", "evenodd", "xcode", "pcode", "upc")
    for width in allowed_widths(name, WIDTH_MAX)
]
ROTATED = [("rdp", 5, True), ("rdp", 8, True), ("evenodd", 4, True), ("evenodd", 7, True)]


@dataclass
class Subject:
    """A running array of RAM members, the slow code beside it, and what the image should hold."""

    code: SlowCode
    rotate: bool
    members: list[FaultMember]
    array: Array
    rng: random.Random
    model: bytearray = field(default_factory=bytearray)
    made: int = 100

    def new_member(self) -> FaultMember:
        """Return a blank member."""
        self.made += 1
        return FaultMember(RamMember(self.members[0].size_bytes, name=f"ram{self.made}"))

    def role(self, stripe: int, column: int) -> int:
        """Return the member that holds *column* of *stripe*."""
        return (column - stripe) % self.code.width if self.rotate else column

    async def stripe_on_members(self, stripe: int) -> dict[Cell, int]:
        """Return the cells of *stripe* as they lie on the members, present or not."""
        content = {}
        for row in range(self.code.rows):
            for column in range(self.code.width):
                buffer = bytearray(CHUNK)
                at = self.array.member_set.data_offset + (stripe * self.code.rows + row) * CHUNK
                await self.members[self.role(stripe, column)].inner.readv(at, [buffer])
                content[row, column] = int.from_bytes(buffer, "little")
        return content

    def data_of(self, stripe: int) -> list[int]:
        """Return the model's data cells of *stripe*."""
        start = stripe * len(self.code.data) * CHUNK
        places = (start + i * CHUNK for i in range(len(self.code.data)))
        return [int.from_bytes(self.model[at : at + CHUNK], "little") for at in places]

    async def put(self, offset: int, length: int) -> None:
        """Write random bytes to the array and the model."""
        data = self.rng.randbytes(length)
        await self.array.write(offset, data)
        self.model[offset : offset + length] = data

    async def compare(self) -> None:
        """Read everything through the array."""
        assert bytes(await self.array.read(0, len(self.model))) == self.model

    async def check_slowly(self, lost: Sequence[int]) -> None:
        """The slow decoder, given the surviving members only, must arrive at the model too."""
        await self.array.context.journal.drain()
        for stripe in range(STRIPES):
            columns = [c for c in range(self.code.width) if self.role(stripe, c) in lost]
            content = self.code.decode(await self.stripe_on_members(stripe), columns)
            assert [content[cell] for cell in self.code.data] == self.data_of(stripe)

    async def check_members(self) -> None:
        """Every cell on every member must be what the slow encoder says."""
        await self.array.context.journal.drain()
        for stripe in range(STRIPES):
            assert await self.stripe_on_members(stripe) == self.code.encode(self.data_of(stripe))

    async def rebuild(self, lost: Sequence[int]) -> None:
        """Fill the vacant roles with blank members: one by replacing, two at once as spares."""
        news = [self.new_member() for _ in lost]
        if len(lost) == 1:
            await self.array.replace_disk(lost[0], news[0])
        else:
            await seat_together(self.array, lost, news)
        for role, new in zip(lost, news, strict=True):
            self.members[role] = new
        (job,) = self.array.jobs.running()
        assert job.detail()["roles"] == list(lost)
        await job_ended(job)

    async def scrub(self) -> None:
        """Scrub; everything must hold, nothing may be left out."""
        result = await self.array.jobs.wait(await self.array.start_scrub(repair=False))
        assert (result["state"], result["mismatches"]) == ("done", 0), result
        assert result["unchecked_stripes"] == 0


async def seat_together(array: Array, roles: Sequence[int], members: list[FaultMember]) -> None:
    """Let two vacant roles be taken by two spares in one rebuild."""
    async with array.membership.attaching:  # both spares are there before either is seated
        for member in members:
            await array.add_spare(member)
    while not array.jobs.running():
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def subject(name: str, width: int, rotate: bool) -> AsyncIterator[Subject]:
    """Make an array of *name* with content in its first stripes."""
    code = slow_code(name, width)
    guess = 4 << 20
    offset = plan_regions(guess, CHUNK, width, code.rows).data.offset
    size = offset + 3 * code.rows * CHUNK
    members = [FaultMember(RamMember(size, name=f"ram{role}")) for role in range(width)]
    params = {"rotate": True} if rotate else {}
    await create_array(members, name, chunk_bytes=CHUNK, name="two", now_s=0, params=params)
    async with open_array(list(members)) as array:
        made = Subject(code, rotate, members, array, random.Random(width))
        made.model = bytearray(STRIPES * len(code.data) * CHUNK)
        await made.put(0, len(code.data) * CHUNK)
        await made.put(len(code.data) * CHUNK, len(code.data) * CHUNK * 2 // 3 + 100)
        yield made


def pairs_of(roles: range) -> list[tuple[int, int]]:
    """Return the pairs of *roles* to lose: all of them, or some if they are many."""
    return list(combinations(roles, 2))[:: 1 if len(roles) < 8 or SCALE >= 10 else 3]


async def degraded_writes(made: Subject) -> None:
    """Write inside one chunk, across several, and nearly a whole stripe."""
    stripe = len(made.code.data) * CHUNK
    await made.put(made.rng.randrange(stripe), 700)
    at = made.rng.randrange(stripe - 3 * CHUNK)
    await made.put(at, made.rng.randrange(CHUNK, 3 * CHUNK))
    await made.put(CHUNK // 2, stripe - CHUNK)


@pytest.fixture
def quiet_superblocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the superblocks as they were made: thousands of them would be most of the test's time.

    Who is a member is tested elsewhere; here it matters what is on the members.
    """

    async def write_config(*_: object, **__: object) -> set[str]:
        return set()

    monkeypatch.setattr("raidx_fuse.store.member_set.write_config", write_config)


@pytest.mark.usefixtures("quiet_superblocks")
@pytest.mark.parametrize(("name", "width", "rotate"), SETUPS + ROTATED)
async def test_every_single_and_double_loss(name: str, width: int, rotate: bool) -> None:
    async with subject(name, width, rotate) as made:
        await made.check_members()
        for lost in [*combinations(range(width), 1), *pairs_of(range(width))]:
            for role in lost:
                await made.array.fail_disk(role)
            await made.check_slowly(lost)
            await made.compare()
            await degraded_writes(made)
            await made.compare()
            await made.rebuild(lost)
            await made.check_members()
        await made.scrub()
        await made.compare()


@pytest.mark.usefixtures("quiet_superblocks")
@pytest.mark.parametrize(("name", "width", "rotate"), SETUPS)
async def test_every_triple_loss_is_refused(name: str, width: int, rotate: bool) -> None:
    """Three missing: no start. Two missing: the third is not let go, and its death is EIO."""
    async with subject(name, width, rotate) as made:
        await made.array.flush()
    members: list[Member] = list(made.members)
    # A start counts members and knows no cells: of wide arrays some triples tell enough.
    for missing in list(combinations(range(width), 3))[:: 1 if width < 8 or SCALE >= 10 else 13]:
        present = [member for role, member in enumerate(members) if role not in missing]
        with pytest.raises(AssemblyError, match="has failed") as refusal:
            await assemble(present)
        for role in missing:
            assert f"role {role} (ram{role}, " in refusal.value.message
    for lost in pairs_of(range(width - 1)):
        async with open_array(members) as array:
            for role in lost:
                assert array.member_set.fail(role, "test")
            for third in range(lost[1] + 1, width):
                await refuse_third(made, array, third)
            assert bytes(await array.read(0, len(made.model))) == made.model


async def refuse_third(made: Subject, array: Array, third: int) -> None:
    """With two members lost, lose *third*: reads that need it fail, and it stays a member."""
    with pytest.raises(ArrayFailedError, match=f"role {third} cannot be spared"):
        await array.fail_disk(third)
    made.members[third].vanish()
    for chunk in [chunk for chunk, (_, column) in enumerate(made.code.data) if column == third][:1]:
        with pytest.raises(MemberError, match=rf"ram{third}: read at byte \d+ failed"):
            await array.read(chunk * CHUNK, CHUNK)
    with pytest.raises(MemberError, match=f"ram{third}: read at byte"):
        await array.read(0, len(made.code.data) * CHUNK)
    made.members[third].come_back()
    assert third not in array.member_set.lost, "it is kept: most of it may still be readable"
