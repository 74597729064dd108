"""Arrays with checksums: switched off and on again; and disks that lie.

A disk that lies answers a read without an error and gives other bytes than were written there:

- rot: some bits of a page have changed, or all of it is noise;
- a lost write: the page is what it was before the last write, or some of its sectors are (torn);
- a misdirected write: it holds what belongs to another page of its member;
- the same of the sectors of the checksums themselves.

As many members may lie about a stripe as the layout can lose. Then no byte is ever read wrong, and
in the end every page of every member is again what it was: what was right has not been touched.
Without redundancy, and where more members lie, exactly the pages that are wrong cannot be read, and
nothing is written to them, until they are written again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import trio

from raidx_fuse.format.configuration.sums import StoredSums, sums_of
from raidx_fuse.format.regions import PAGE_BYTES, SUMS_PER_SECTOR
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.hardware import in_sectors, read_all
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Rot, RotWhileOff
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.lab.crash.sums import Place, check_whole, live_pages
from raidx_fuse.layouts.numbers import Chunk, MemberChunk, Role, Stripe, cell_range
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.settings import SUMS
from raidx_fuse.store.host_space import LOOK_S

MENDED_S = 120.0
BETWEEN_READS_S = 0.004  # mean; about as long as a write of uneven disks takes
KINDS = ("bits", "bits", "noise", "lost", "torn", "misdirected", "sums", "old sums")
OF_SUMS = ("sums", "old sums")
Contents = dict[tuple[Role, int], bytes]  # of pages, by role and byte on the member


async def theme_sums(player: Player) -> None:
    """Switch checksums off and on, once or twice, among other steps."""
    rng = player.rng
    player.recording.sums_begin = True
    if rng.random() < 0.6:
        await player.fill()
    for _ in range(rng.randint(1, 2)):
        await player.steps(0, 2)
        for value in ("off", "on"):
            player.check_calm(f"before sums={value}")
            with player.doing(f"sums {value}"):
                await player.array.set(SUMS, value)
            await player.steps(0, 3)
            if rng.random() < 0.3:
                await player.remount()
        for job in player.array.jobs.running():
            job.limit(None, 0)
        if rng.random() < 0.6:
            await player.jobs_end()


async def theme_rot(player: Player) -> None:
    """Let disks lie about a stripe, until it is found by chance or by a scrub; compare all bytes.

    Without redundancy, the pages are written again.
    """
    rng = player.rng
    await player.fill()
    for _ in range(rng.randint(1, 3)):
        await player.steps(0, 2)
        kind = rng.choice(KINDS)
        if player.tolerance or kind not in OF_SUMS:  # else there is one copy of them
            await Lie(player, kind).play()
    await player.flush()


async def theme_rot_while_off(player: Player) -> None:
    """Write some stripes; when the power goes, pages of others rot, in regions that are marked."""
    rng, layout = player.rng, player.array.context.layout
    await player.fill()
    await rested(player)
    sectors, player.sectors = player.sectors, max(8, player.sectors // rng.choice((2, 3)))
    written = {
        layout.locate(Chunk(player.parts.in_image(sector) * SECTOR_BYTES // layout.chunk_bytes))[0]
        for sector in range(player.sectors)
    }
    places = tuple(
        (int(stripe), player.roles.holder(role, player.event), at)
        for stripe, role, at in await live_pages(player.array)
        if stripe not in written
    )
    begin = player.event
    await player.steps(4, 9)
    if player.tolerance and places:
        player.recording.rot_while_off = RotWhileOff(begin, player.event, places, player.tolerance)
    player.sectors = sectors


async def theme_beside(player: Player) -> None:
    """Write one page again and again while it is read: what a read meets then is no rot."""
    rng = player.rng
    await player.fill()
    await player.flush()
    for _ in range(rng.randint(1, 3)):
        where = player.place("page")
        writers = [rng.randint(3, 12) for _ in range(rng.randint(1, 2))]
        at, length = player.parts.place(*where)

        async def write(times: int, where: tuple[int, int], left: list[int]) -> None:
            for _ in range(times):
                await player.write(*where)
            left.remove(times)

        async def read(at: int, length: int, left: list[int]) -> None:
            while left:
                await player.array.read(at, length)
                await trio.sleep(rng.expovariate(1 / BETWEEN_READS_S))

        async with trio.open_nursery() as nursery:
            for times in writers[:]:
                nursery.start_soon(write, times, where, writers)
            for _ in range(rng.randint(1, 4)):
                nursery.start_soon(read, at, length, writers)
        await player.observe_met([where, where])
    await player.flush()


def disk_of(player: Player, role: Role) -> SectorDisk:
    """Return the disk that holds *role*."""
    return player.disks[player.roles.holder(role, player.event)]


def stored_sums(player: Player) -> StoredSums:
    """Return where the tables of checksums lie."""
    stored = sums_of(player.array.member_set.config)
    assert stored is not None
    return stored


def contents_of(player: Player, places: Iterable[tuple[Role, int]]) -> Contents:
    """Return what lies in the pages at *places* of the members."""
    return {
        (role, at): bytes(disk_of(player, role).cut.state.image[at : at + PAGE_BYTES])
        for role, at in places
    }


def sectors_of(player: Player, places: Iterable[tuple[Role, int]]) -> frozenset[int]:
    """Return the workload's sectors in the pages at *places*; none in those of parities."""
    context, sectors = player.array.context, set[int]()
    size = context.chunk_bytes
    for role, at in places:
        number, inner = divmod(at - context.member_set.data_offset, size)
        found = context.layout.inverse(role, MemberChunk(number))
        assert found is not None
        if found[1] < context.code.data_count:
            begin = (context.layout.logical(*found) * size + inner) // SECTOR_BYTES
            sectors.update(player.parts.sectors_of(begin, PAGE_BYTES // SECTOR_BYTES))
    return frozenset(sectors)


async def overwrite(player: Player, role: Role, at: int, content: bytes) -> None:
    """Write *content* durably to the disk of *role*, without the array."""
    cut = disk_of(player, role).cut
    await cut.writev(at, [content])
    await cut.flush()


async def write_stripe(player: Player, stripe: Stripe) -> None:
    """Write all data of *stripe*, one chunk after the other."""
    layout = player.array.context.layout
    for cell in cell_range(0, layout.code.data_count):
        sector = layout.logical(stripe, cell) * (layout.chunk_bytes // SECTOR_BYTES)
        for mine in player.parts.sectors_of(sector, 1):
            await player.write(mine * SECTOR_BYTES, layout.chunk_bytes)


async def theme_full(player: Player) -> None:
    """Let hosts have no room for the tables, which begin anew: that costs no member."""
    rng, array = player.rng, player.array
    player.recording.sums_begin = player.whole_sectors = True
    await player.fill()
    await player.flush()
    for value in ("off", "on"):
        with player.doing(f"sums {value}"):
            await array.set(SUMS, value)
    full = [disk for disk in player.disks if rng.random() < 0.7] or player.disks[:1]
    for disk in full:
        disk.fill_host(player.regions.sums)
    player.refusals = True
    for _ in range(rng.randint(2, 5)):
        await player.write(*in_sectors(*player.place()))
        draw = rng.random()
        if draw < 0.4:
            await player.flush()
        elif draw < 0.7:
            await player.tidy()
    for disk in full:
        disk.empty_host()
    await trio.sleep(1.01 * LOOK_S)
    if array.member_set.lost:
        raise ViolationError(f"roles {sorted(array.member_set.lost)} are out as hosts were full")
    player.refusals = False  # from now on nothing fails
    await player.fill()
    await player.flush()
    await player.steps(0, 2)


async def rested(player: Player) -> None:
    """Have all that was written at home, durable, with its sums, and nothing marked."""
    await player.flush()
    await player.jobs_end()
    await player.array.context.journal.drain()
    await player.array.context.dirty_bitmap.clean_quiet(all_regions=True)
    await player.array.context.cells.save_sums()  # those that a scrub has filled
    await player.flush()


async def theme_excess(player: Player) -> None:
    """Let more disks lie about a stripe than can be lost; then write it again."""
    await player.fill()
    for _ in range(player.rng.randint(1, 2)):
        await player.steps(0, 2)
        await Excess(player).play()
    await player.flush()


async def _mended(player: Player) -> None:
    """Wait until the mender has nothing left. Raises TooSlowError."""
    with trio.fail_after(MENDED_S):
        while player.array.member_set.unreadable:  # noqa: ASYNC110  # mending tells nobody
            await trio.sleep(0.05)


class Lie:
    """Disks of *player* lie about one stripe, as *kind* says, until it is found out."""

    def __init__(self, player: Player, kind: str) -> None:
        self.player = player
        self.kind = kind
        self.places: list[Place] = []

    async def play(self) -> None:
        """Let them, and check that in the end every byte is what it was."""
        player, rng = self.player, self.player.rng
        await rested(player)
        self.places = await live_pages(player.array)
        self.stripe = rng.choice(sorted({stripe for stripe, _, _ in self.places}))
        mine = [(role, at) for stripe, role, at in self.places if stripe == self.stripe]
        roles = sorted({role for role, _ in mine})
        self.liars = rng.sample(roles, rng.randint(1, max(1, player.tolerance)))
        mine = [place for place in mine if place[0] in self.liars]
        self.chosen = [place for place in mine if rng.random() < 0.7] or mine[:1]
        before, tables = self._contents(), self._tables()
        if self.kind in ("lost", "torn", "old sums"):  # of the write of the whole stripe
            await write_stripe(player, self.stripe)
            await rested(self.player)
        right = self._contents()
        event = player.event
        player.roles.damaged.append((event, math.inf))
        with player.doing("rot"):
            if self.kind in OF_SUMS:
                await self._lie_about_sums(tables)
            else:
                await self._lie(before, right, event)
            cache = player.array.context.cache
            if cache is not None:  # it has what was written
                cache.clear()
            is_quiet = rng.random() < 0.6
            if player.tolerance:
                await self._find_out(is_quiet)
            else:
                await self._write_again()
            await rested(self.player)
        if is_quiet and player.tolerance:
            self._compare(right)
        await check_whole(player.array)
        member_set = player.array.member_set
        if member_set.lost:
            raise ViolationError(f"{self.kind}: roles {sorted(member_set.lost)} are out for it")
        assert member_set.sums is not None
        await _mended(player)  # also what was written is read once more
        if member_set.sums.suspects:
            raise ViolationError(f"{self.kind}: {member_set.sums.suspects} are not healed")
        player.roles.repair(player.event)
        if player.recording.rotten:
            player.recording.rotten[-1].end = min(player.recording.rotten[-1].end, player.event)

    def _contents(self) -> Contents:
        """Return what lies in the live pages of the members."""
        return contents_of(self.player, [place[1:] for place in self.places])

    def _tables(self) -> Contents:
        """Return the first page of each table, by role and byte on the member."""
        regions = self.player.regions
        return contents_of(
            self.player,
            (
                (Role(holder), regions.sum_table_offset(slot))
                for table in stored_sums(self.player).tables
                for holder, slot in table.slots
            ),
        )

    async def _lie(self, before: Contents, right: Contents, event: int) -> None:
        rng, kind = self.player.rng, self.kind
        wrong: Contents = {}
        for place in self.chosen:
            content = bytearray(right[place])
            if kind == "bits":
                for _ in range(rng.randint(1, 3)):
                    content[rng.randrange(PAGE_BYTES)] ^= 1 << rng.randrange(8)
            elif kind == "noise":
                content[:] = rng.randbytes(PAGE_BYTES)
            elif kind == "lost":
                content[:] = before[place]
            elif kind == "torn":
                for sector in rng.sample(range(PAGE_BYTES // SECTOR_BYTES), rng.randint(1, 7)):
                    part = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
                    content[part] = before[place][part]
            else:
                others = [one for one in right if one[0] == place[0] and one != place]
                content[:] = right[rng.choice(others)]
            wrong[place] = bytes(content)
        self.chosen = [place for place in self.chosen if wrong[place] != right[place]]
        self.sectors = sectors_of(self.player, self.chosen)
        self.player.recording.rotten.append(Rot(event, math.inf, self.stripe, self.sectors))
        for place in self.chosen:
            await overwrite(self.player, *place, wrong[place])

    async def _lie_about_sums(self, tables: Contents) -> None:
        """Damage sectors of as many copies of a table as the layout can lose members."""
        player, rng = self.player, self.player.rng
        about = rng.choice(self.liars)
        page = {place: place for place in tables}
        slots = stored_sums(self.player).tables[about].slots
        sector = rng.randrange(2) * SECTOR_BYTES
        for holder, slot in rng.sample(slots, player.tolerance):
            role, at = Role(holder), player.regions.sum_table_offset(slot)
            assert (role, at) in page
            content = bytearray(disk_of(self.player, role).cut.state.image[at : at + PAGE_BYTES])
            if self.kind == "sums":
                content[sector + rng.randrange(SECTOR_BYTES)] ^= 1 << rng.randrange(8)
            else:
                content[:] = tables[role, at]
            await overwrite(self.player, role, at, bytes(content))

    async def _find_out(self, is_quiet: bool) -> None:
        player, rng = self.player, self.player.rng
        if not is_quiet:
            await player.steps(0, 3)
        if self.kind in OF_SUMS or rng.random() < 0.4:
            await player.remount()
        if rng.random() < 0.5:
            await player.compare()
        await player.jobs_end()
        status = await player.array.jobs.wait(await player.array.start_scrub(repair=False))
        if status["state"] != "done" or status["mismatches"]:
            raise ViolationError(f"{self.kind}: a scrub found {status}")
        await _mended(player)

    async def _write_again(self) -> None:
        """Check that just the wrong pages cannot be read; write them, then everything can be."""
        player = self.player
        found = await read_all(player.array, player.parts.ranges(PAGE_BYTES))
        unreadable = {sector for sector, content in enumerate(found) if content is None}
        if unreadable != self.sectors:
            raise ViolationError(f"{self.kind}: {unreadable ^ self.sectors} can be read, or not")
        for sector in sorted(self.sectors):
            if sector * SECTOR_BYTES % PAGE_BYTES == 0:
                await player.write(sector * SECTOR_BYTES, PAGE_BYTES)
        await player.compare()

    def _compare(self, right: Contents) -> None:
        found = self._contents()
        for place, content in right.items():
            if found[place] != content:
                what = "stays wrong" if place in self.chosen else "was right, and has changed"
                raise ViolationError(f"{self.kind} in {self.stripe}: the page at {place} {what}")


class Excess:
    """More disks of *player* lie about one stripe than the layout can lose.

    Perhaps one of them holds a parity of which all copies of the checksum are damaged, too.
    """

    def __init__(self, player: Player) -> None:
        self.player = player

    async def play(self) -> None:
        """Let them: no byte is read wrong, and none is overwritten until the stripe is written."""
        player, rng = self.player, self.player.rng
        await rested(player)
        places = await live_pages(player.array)
        stripe = rng.choice(sorted({stripe for stripe, _, _ in places}))
        mine = [(role, at) for one, role, at in places if one == stripe]
        roles = sorted({role for role, _ in mine})
        liars = rng.sample(roles, min(len(roles), player.tolerance + 1))
        self.right = contents_of(player, mine)
        lying = [place for place in mine if place[0] in liars]
        chosen = [place for place in lying if rng.random() < 0.8] or lying
        self.sectors = sectors_of(player, chosen)
        event = player.event
        player.roles.damaged.append((event, math.inf))
        rot = Rot(event, math.inf, stripe, self.sectors, is_lost=True)
        player.recording.rotten.append(rot)
        with player.doing("rot"):
            self.wrong: Contents = {}
            inside, bit = rng.randrange(PAGE_BYTES), rng.randrange(8)
            alike = rng.random() < 0.3
            for place in chosen:
                content = bytearray(self.right[place])
                if not alike:
                    inside, bit = rng.randrange(PAGE_BYTES), rng.randrange(8)
                content[inside] ^= 1 << bit
                self.wrong[place] = bytes(content)
                await overwrite(player, *place, self.wrong[place])
            mute = [role for role in liars if not sectors_of(player, self._pages_on(role))]
            # A copy without a checksum is read as it is.
            if mute and not player.layout.code.is_copies and rng.random() < 0.7:
                await self._damage_sums_of(mute[0])
                await player.remount()
            if (cache := player.array.context.cache) is not None:  # it has what was written
                cache.clear()
            for _ in range(rng.randint(1, 3)):
                await self._look()
                await self._compare()
            await write_stripe(player, stripe)
            await rested(player)
            await player.compare()
            if mute:  # what is computed from a parity without a checksum may be as wrong as it
                await player.array.jobs.wait(await player.array.start_scrub(repair=True))
            status = await player.array.jobs.wait(await player.array.start_scrub(repair=False))
            if status["state"] != "done" or status["mismatches"]:
                raise ViolationError(f"when all is written again, a scrub found {status}")
            await rested(player)
        await check_whole(player.array)
        member_set = player.array.member_set
        if member_set.lost:
            raise ViolationError(f"roles {sorted(member_set.lost)} are out for it")
        player.roles.repair(player.event)
        rot.end = player.event

    def _pages_on(self, role: Role) -> list[tuple[Role, int]]:
        return [place for place in self.right if place[0] == role]

    async def _damage_sums_of(self, role: Role) -> None:
        """Damage all copies of the checksums of the pages on *role*."""
        player = self.player
        begin = player.array.member_set.data_offset
        for holder, slot in stored_sums(player).tables[role].slots:
            table = player.regions.sum_table_offset(slot)
            for _, at in self._pages_on(role):
                sector = (at - begin) // PAGE_BYTES // SUMS_PER_SECTOR
                noise = player.rng.randbytes(SECTOR_BYTES)
                await overwrite(player, Role(holder), table + sector * SECTOR_BYTES, noise)

    async def _look(self) -> None:
        """Read everything, or scrub, or mount again: what is lost cannot be read, all else can."""
        player, rng = self.player, self.player.rng
        draw = rng.random()
        if draw < 0.3:
            await player.array.jobs.wait(await player.array.start_scrub(repair=rng.random() < 0.5))
        elif draw < 0.5:
            await player.remount()
        found = await read_all(player.array, player.parts.ranges(PAGE_BYTES))
        for sector, content in enumerate(found):
            if content is not None or sector not in self.sectors:
                player.history.check(sector, content, "of more liars than can be lost")

    async def _compare(self) -> None:
        for place, content in contents_of(self.player, self.right).items():
            if content not in (self.right[place], self.wrong.get(place)):
                raise ViolationError(f"the page at {place} was overwritten")
