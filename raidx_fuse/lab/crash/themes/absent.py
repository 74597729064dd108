"""Disks that lie while a member is absent, in arrays with checksums.

A member leaves, all kinds of writes follow, and what its pages must be is known by their checksums
alone. Then survivors lie, and the role is given a member again: the one that left, another one, a
hot spare. A survivor has rotted in pages that have checksums; or in pages of its parity that have
none, as if all copies of their table had been lost: only the checksums of absent data contradict.

As long as the layout could lose one member more, no byte is read wrong and none is lost. If it
could not, exactly the pages that depend on what has rotted cannot be read, until they are written
again, and a rebuild takes their chunks with them.
"""

from __future__ import annotations

import math
from functools import partial

import trio

from raidx_fuse.format.regions import PAGE_BYTES
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, read_all
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Rot
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.lab.crash.sums import check_whole
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.base import SECTOR_BYTES

SLOW_JOB_BYTES = 8192  # a second: a rebuild lasts for several steps
LIARS_SHARE = 0.7  # of the absences
APART_S = (0.0, 0.001, 0.01, 0.05)  # between the begin of a checkpoint and writes


async def theme_absent(player: Player) -> None:
    """Let a member leave, write, let survivors lie, and give its role a member; again, perhaps."""
    await player.fill()
    for _ in range(player.rng.choice((1, 1, 2))):
        await player.steps(0, 1)
        await Absence(player).play()
    await player.flush()


class Absence:
    """One member of *player* is absent."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.role = Role(player.rng.randrange(player.width))

    async def play(self) -> None:
        """Let it leave and give its role a member, and check all bytes and pages."""
        player, rng = self.player, self.player.rng
        await player.jobs_end()
        self.disk = player.roles.holder(self.role, player.event)
        self.out = player.roles.take_out(self.role, player.event)
        with player.doing("leave"):
            await player.unless_data_would_be_lost(partial(player.array.fail_disk, self.role))
            player.disks[self.disk].pull()
        for _ in range(rng.randint(1, 4)):
            await self._change()
        if rng.random() < 0.4:
            await player.close()
            await player.open(without=self.disk)
            await player.steps(0, 1)
        player.check_calm("while a member is absent")
        lost = frozenset[int]()
        has_liars = rng.random() < LIARS_SHARE
        if has_liars:
            await self._rest()
            lost = await self._lie()
        await self._give_back(may_write=not lost)
        if has_liars:
            await self._make_whole(lost)
        await player.compare()
        await self._rest()
        await check_whole(player.array)

    async def _change(self) -> None:
        """Write, discard, or do anything; mostly to what the absent member would hold."""
        player, rng = self.player, self.player.rng
        offset, length = player.place()
        if rng.random() < 0.5:
            offset, length = self._absent_place() or (offset, length)
            if rng.random() < 0.7:
                length = rng.choice((SECTOR_BYTES, PAGE_BYTES, 3 * SECTOR_BYTES))
        draw = rng.random()
        if draw < 0.4:
            await player.write(offset, length)
        elif draw < 0.65:
            await player.write(offset, length)
            async with trio.open_nursery() as nursery:  # a write beside a checkpoint
                nursery.start_soon(player.array.context.journal.place)
                for _ in range(rng.randint(1, 3)):
                    await trio.sleep(rng.choice(APART_S))
                    await player.write(*(self._absent_place() or (offset, length)))
        elif draw < 0.8:
            await player.write(*player.place("stripe"), discard=True)
        else:
            await player.step()
        if rng.random() < 0.3:
            await player.tidy()

    def _absent_place(self) -> tuple[int, int] | None:
        """Return (offset, length) in bytes of a chunk of the workload that is absent."""
        player = self.player
        layout = player.array.context.layout
        found = []
        for sector in range(0, player.sectors, CHUNK_BYTES // SECTOR_BYTES):
            chunk = player.parts.in_image(sector) * SECTOR_BYTES // CHUNK_BYTES
            if layout.place(*layout.locate(chunk))[0] == self.role:
                found.append((sector * SECTOR_BYTES, CHUNK_BYTES))
        return player.rng.choice(found) if found else None

    async def _rest(self) -> None:
        """Have all that was written at home, durable, with its sums, and nothing marked."""
        player = self.player
        await player.flush()
        await player.jobs_end()
        await player.array.context.journal.drain()
        await player.array.context.dirty_bitmap.clean_quiet(all_regions=True)

    # -- liars ---------------------------------------------------------------------------------

    async def _lie(self) -> frozenset[int]:
        """Let one survivor lie about one page of a stripe; return the sectors that are lost."""
        player, rng = self.player, self.player.rng
        context = player.array.context
        sums = player.array.member_set.sums
        assert sums is not None
        places = await self._places()
        without = [place for place in places if not place[3]] or places
        if not places:
            return frozenset()
        stripe, cell, inner, has_sum = rng.choice(without if rng.random() < 0.6 else places)
        role, begin = context.position(stripe, cell)
        at = begin + inner
        gone = context.layout.lost_cells(stripe, frozenset({self.role}))
        if has_sum:
            gone |= 1 << cell
        gone &= context.code.data_mask & ~context.unwritten_cells(stripe)
        pages = self._sectors(stripe, gone, inner, PAGE_BYTES)
        player.roles.damaged.append((player.event, math.inf))
        with player.doing("rot"):
            hopeless = pages if player.tolerance == 1 else frozenset[int]()
            chunks = self._sectors(stripe, gone, 0, CHUNK_BYTES) if hopeless else pages
            event = player.event
            player.recording.rotten.append(Rot(event, math.inf, stripe, chunks, bool(hopeless)))
            if not has_sum:
                await sums.forget([(role, at, (), PAGE_BYTES)])
                await sums.tables.save()
                await player.flush()
            cut = player.disks[player.roles.holder(role, player.event)].cut
            content = bytearray(cut.state.image[at : at + PAGE_BYTES])
            for _ in range(rng.randint(1, 3)):
                content[rng.randrange(PAGE_BYTES)] ^= 1 << rng.randrange(8)
            await cut.writev(at, [bytes(content)])
            await cut.flush()
            if context.cache is not None:  # it has what was written
                context.cache.clear()
            if rng.random() < 0.6:
                await self._read(hopeless)
        return chunks if hopeless else frozenset()

    async def _places(self) -> list[tuple[Stripe, CellIndex, int, bool]]:
        """Return (stripe, cell, byte in it, whether it keeps its sum) of what may rot."""
        player = self.player
        context, sums = player.array.context, player.array.member_set.sums
        assert sums is not None
        found = []
        for stripe in context.written.written_stripes(context.layout, 0, context.layout.stripes):
            absent = context.layout.lost_cells(stripe, frozenset({self.role}))
            unwritten = context.unwritten_cells(stripe)
            is_known = not absent & context.code.data_mask & unwritten
            for inner in range(0, CHUNK_BYTES, PAGE_BYTES):
                for cell in cells_of(absent & context.code.data_mask & ~unwritten):
                    role, begin = context.position(stripe, cell)
                    await sums.load([(role, begin, (), CHUNK_BYTES)])
                    is_known = is_known and not sums.lacks(role, begin + inner, PAGE_BYTES)
                for cell in cells_of(context.code.all_mask & ~(absent | unwritten)):
                    found.append((stripe, cell, inner, True))
                    is_read = cell < context.code.data_count or context.code.is_copies
                    if is_known and not is_read:
                        found.append((stripe, cell, inner, False))
        return found

    def _sectors(self, stripe: Stripe, cells: int, low: int, size: int) -> frozenset[int]:
        """Return the workload's sectors in *size* bytes from byte *low* on of data *cells*."""
        layout, parts = self.player.array.context.layout, self.player.parts
        found: set[int] = set()
        for cell in cells_of(cells):
            first = (layout.logical(stripe, cell) * CHUNK_BYTES + low) // SECTOR_BYTES
            found.update(parts.sectors_of(first, size // SECTOR_BYTES))
        return frozenset(found)

    async def _read(self, hopeless: frozenset[int]) -> None:
        """Check that exactly the *hopeless* sectors cannot be read, and the others are right."""
        player = self.player
        found = await read_all(player.array, player.parts.ranges(PAGE_BYTES))
        for sector, content in enumerate(found):
            if (content is None) != (sector in hopeless):
                raise ViolationError(f"sector {sector} can be read, or not: {sorted(hopeless)}")
            if content is not None:
                player.history.check(sector, content, "beside disks that lie")

    # -- the role gets a member ----------------------------------------------------------------

    async def _give_back(self, *, may_write: bool) -> None:
        player, rng = self.player, self.player.rng
        begin = player.event
        with player.doing("rebuild"):
            kind = rng.choice(("returns", "returns", "replaced", "spare"))
            disk = self.disk if kind == "returns" else player.new_disk()
            if kind == "spare":
                await player.array.add_spare(player.disks[disk])
            else:
                give = partial(player.array.replace_disk, self.role, player.disks[disk])
                await player.unless_data_would_be_lost(give)
            steps = rng.randint(0, 2) if may_write else 0
            for job in player.array.jobs.running():
                if steps:
                    job.limit(None, SLOW_JOB_BYTES)
                    job.set_window(2)  # several windows, not one
            for _ in range(steps):
                await player.step()
            for job in player.array.jobs.running():
                job.limit(None, 0)
            while player.array.member_set.config.record(self.role).state != "active":
                await player.jobs_end()
                await player.tidy()
        player.recording.is_whole(self.out, disk, begin)

    async def _make_whole(self, lost: frozenset[int]) -> None:
        """Write again what is *lost*, and have the rest repaired; all that is read is right."""
        player = self.player
        chunk_sectors = CHUNK_BYTES // SECTOR_BYTES
        found = await read_all(player.array, player.parts.ranges(PAGE_BYTES))
        for sector, content in enumerate(found):
            if content is not None:
                player.history.check(sector, content, "after a rebuild beside disks that lie")
            elif sector not in lost:
                raise ViolationError(f"sector {sector} cannot be read, and nothing is lost there")
        for first in sorted({sector // chunk_sectors * chunk_sectors for sector in lost}):
            await player.write(first * SECTOR_BYTES, CHUNK_BYTES)
        await self._rest()
        status = await player.array.jobs.wait(await player.array.start_scrub(repair=True))
        if status["state"] != "done" or status["repaired"] != status["mismatches"]:
            raise ViolationError(f"a scrub found {status}")
        await player.flush()
        player.roles.repair(player.event)
        if player.recording.rotten:
            player.recording.rotten[-1].repair(player.event)
