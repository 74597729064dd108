"""Power cuts while a place is given up: a sector reads as what it held, or as an error.

A member is lost, a page of another one cannot be read, and something needs its place. The list of
lost chunks must be durable before the place is written: else a cut leaves zeros, or what the
parity makes of them, under a chunk that nobody calls lost (engine/write/mend.py). So must be the
note that the stripe changes while the member is away: else it is caught up without the stripe, and
the parity of content that was flushed long ago is stale.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.write.mend import Mender
from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape, read_sectors
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import DROPPED, KEPT, Cell, Cut
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import jobs_ended

LOST, STRIPE, SEED = 0, 1, 3
PARITY_LOST = 2  # a stripe whose parity is on the member that is lost
CUTS = (DROPPED, "s1", KEPT)


def given_up(journal: str, by: str, what: int, at: int = STRIPE) -> tuple[Recording, int]:
    """Record it: a write or a rebuild needs the place of cell *what* of stripe *at*.

    Return the first event.
    """
    stripe = Stripe(at)
    events = []

    async def script(player: Player) -> None:
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        context = player.array.context
        await context.journal.drain()
        await player.flush()
        await context.dirty_bitmap.clean_quiet(all_regions=True)  # the member lacks nothing
        cells = range(context.code.data_count + 1)
        whole = [c for c in cells if context.position(stripe, CellIndex(c))[0] != LOST]
        cell = CellIndex(whole[what])
        role, position = context.position(stripe, cell)
        player.roles.out.append((LOST, player.event, 1 << 60))
        await player.array.fail_disk(LOST)
        await player.disks[role].poison(position)
        player.hanging = True  # what is lost reads as an error
        events.append(player.event)
        if by == "write":
            needed = whole[0] if cell >= context.code.data_count else cell
            begin = (stripe * context.code.data_count + needed) * CHUNK_BYTES
            with suppress(UnrecoverableError):  # the page is known to be unreadable
                await player.array.read(begin, CHUNK_BYTES)
            await player.write(begin, CHUNK_BYTES)
            await player.array.context.journal.drain()
        else:
            new = player.disks[player.new_disk()]
            await player.array.jobs.wait((await player.array.replace_disk(LOST, new))["job"])
        assert player.array.context.bad_chunks or at == PARITY_LOST
        await player.flush()
        player.array.context.use_cache(0)

    player = Player(Cell("raid5", journal), SEED, "latent", Shape(3, stripes=3, pace="inline"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Player, "_check_holders", lambda _player: None)
        return run(player.play, script, 0, False, seed=SEED), events[0]


async def _wrong(
    recording: Recording, index: int, disks: list[SectorDisk], absent: SectorDisk | None
) -> list[str]:
    """Mount *disks*, rebuild the lost role; return the sectors that are neither right nor EIO.

    The role is that of *absent*, which comes back, or else gets a new member.
    """
    found: list[str] = []
    allowed = recording.history.at(index).allowed

    async def look(when: str) -> None:
        for at, length in recording.parts.ranges(1 << 16):
            content = await read_sectors(array, at, length)
            first = at // SECTOR_BYTES
            for sector, got in enumerate(content, first):
                if got is not None and got not in allowed[sector]:
                    found.append(f"sector {sector} {when} after event {index}")

    async with open_array(disks, start_degraded=True) as array:
        await look("mounted")
        await jobs_ended(array)
        if array.member_set.lost:
            new = absent or RamMember(disks[0].size_bytes, name="new")
            answer = await array.replace_disk(LOST, new)
            assert answer.get("catches_up", False) is (absent is not None)
            await array.jobs.wait(answer["job"])
            await look("rebuilt")
        scrub = await array.jobs.wait(await array.start_scrub(repair=False))
        found += [f"{finding} after event {index}" for finding in scrub["findings"]]
    return found


def broken(recording: Recording, first: int, *, returns: bool = False) -> list[str]:
    """Cut it at every event from *first* on; return what is wrong.

    The member that is lost *returns*, or else is replaced.
    """
    found: list[str] = []
    for index, disks, _event in recording.record.moments():
        if index < first:
            continue
        for decision in CUTS if returns else [CUTS[index % 2]]:
            states = list(disks)
            cuts = Cut(index, decision, ()).decisions(states)
            images = [disk.crash(cut) for disk, cut in zip(states, cuts, strict=True)]
            members = {
                n: SectorDisk(image, random.Random(0), name=f"disk{n}", under={})
                for n, image in enumerate(images)
                if bytes(image[:8]) == b"RAIDX-SB"
            }
            absent = members.pop(LOST) if returns else None
            others = [disk for n, disk in members.items() if n != LOST]
            found += run(_wrong, recording, index, others, absent)
    return found


@pytest.mark.parametrize(("by", "what"), [("write", 0), ("rebuild", 0), ("rebuild", 1)])
def test_a_place_that_is_given_up_never_reads_wrong(by: str, what: int) -> None:
    assert broken(*given_up("partial", by, what)) == []


@pytest.mark.parametrize("journal", ["none", "partial", "full"])
def test_a_member_that_comes_back_has_what_was_given_up_meanwhile(journal: str) -> None:
    assert broken(*given_up(journal, "write", 0, PARITY_LOST), returns=True) == []


def test_it_would_if_the_list_were_not_durable_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def later() -> None:
        pass

    begin = Mender.__init__
    monkeypatch.setattr(Mender, "__init__", lambda self, context, _: begin(self, context, later))
    assert broken(*given_up("partial", "rebuild", 0))
