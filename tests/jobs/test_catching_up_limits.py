"""What a map of changed regions cannot tell: a rebuild of everything; crashes lose nothing."""

from __future__ import annotations

import base64
import random
import zlib
from dataclasses import replace

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine import changed_regions
from raidx_fuse.format.configuration.absence import (
    KEY,
    REGIONS_MAX,
    AbsenceMap,
    absence_map_of,
    with_absence_map,
)
from raidx_fuse.format.configuration.config import FAILED
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.members.simulated.virtual_time import run
from tests.jobs.test_catching_up import CHUNK, JOURNALS, KINDS, check_whole, come_back, leave
from tests.support.scenario import with_state
from tests.support.spy import fill, members_from, noise, spying


def test_an_old_copy_is_rebuilt_whole() -> None:
    async def main() -> None:
        async with spying("raid1", 2, chunk_bytes=CHUNK, stripes=600) as rig:
            await fill(rig)
            old = bytes(rig.rams[1].memory)
            await rig.running.set("speed_min", "1MiB")  # any change of the configuration
            await rig.put(0, noise(CHUNK, 1))
            member = await leave(rig, 1)
            rig.rams[1].memory[:] = old
            assert (await come_back(rig, 1, member))["catches_up"] is False
            await check_whole(rig, 1)

    run(main)


@pytest.mark.parametrize(("journal", "late"), [(name, n) for n, name in enumerate(JOURNALS)])
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind[0] for kind in KINDS])
def test_a_copy_of_the_same_run_is_rebuilt_whole(kind: int, journal: str, late: int) -> None:
    """Its superblock is that of the member: only its pages are older than what had become durable.

    *killed*: the member is absent when the array starts after the kill, and given later.
    """
    layout, width, options = KINDS[kind]
    killed = (kind + late) % 2 == 1

    async def main() -> None:
        async with spying(layout, width, chunk_bytes=CHUNK, stripes=128, **options) as rig:
            await rig.running.set("journal", journal)
            await fill(rig)
            await trio.sleep(30)
            await rig.in_place()
            old = bytes(rig.rams[1].memory)
            for seed in range(3):
                await rig.put(0, noise(len(rig.model) // 3, seed))
                await rig.put(len(rig.model) // 2, noise(10, seed))
                await rig.running.flush()
                await trio.sleep(30)
            if killed:
                member = rig.members.pop(1)
                rig.running.member_set.end_superblocks()
                await rig.close()
                await rig.open()
            else:
                member = await leave(rig, 1)
            rig.rams[1].memory[:] = old
            assert (await come_back(rig, 1, member))["catches_up"] is False
            await check_whole(rig, 1)

    run(main)


def test_a_half_that_was_started_alone_is_rebuilt_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its event counter may be one that the member can have left with: the lineage tells.
    monkeypatch.setattr(changed_regions.ChangedRegions, "left", lambda _self, _uuid: (0, 1000))

    async def main() -> None:
        async with spying("raid1", 2, chunk_bytes=CHUNK, stripes=600) as rig:
            await fill(rig)
            member = await leave(rig, 1)
            alone = members_from([bytes(rig.rams[1].memory)])
            async with open_array(alone, start_degraded=True) as other:
                await other.write(0, noise(CHUNK, 5))
            rig.rams[1].memory[:] = alone[0].memory
            assert (await come_back(rig, 1, member))["catches_up"] is False
            await check_whole(rig, 1)

    run(main)


def test_a_growth_in_between_makes_it_a_whole_rebuild() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=600) as rig:
            await fill(rig)
            await rig.running.set("speed_max", "256KiB")
            await rig.running.grow([rig.new_member()])
            await trio.sleep(1.0)
            member = rig.members[1]
            await rig.running.fail_disk(1)
            await rig.running.flush()
            assert KEY not in rig.running.member_set.config.jobs
            begun = await rig.running.replace_disk(1, member)
            assert begun["catches_up"] is False
            await rig.running.set("speed_max", "0")
            for job in rig.running.jobs.running():
                await job.finished.wait()
            await check_whole(rig, 1)

    run(main)


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_crash_while_it_is_away_and_another_while_it_is_caught_up(journal: str) -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=600) as rig:
            await rig.running.set("journal", journal)
            await fill(rig)
            await leave(rig, 1)
            generator = random.Random(journal)
            for number in range(20):
                length = generator.choice((100, CHUNK, 9 * CHUNK))
                await rig.put(generator.randrange(len(rig.model) - length), noise(length, number))
            members = members_from(rig.images())
            model = rig.model
        async with open_array(members, start_degraded=True) as array:
            for job in array.jobs.running():
                await job.finished.wait()
            begun = await array.replace_disk(1, members[1])
            assert begun["catches_up"] is True
            await array.set("speed_max", "256KiB")
            for job in array.jobs.running():
                if isinstance(job, Rebuild):
                    job.set_window(2)
            for number in range(20):
                at = generator.randrange(len(model) - CHUNK)
                await array.write(at, data := noise(CHUNK, 100 + number))
                model[at : at + CHUNK] = data
                await trio.sleep(0.05)
            assert array.status()["state"] == "rebuilding"
            again = members_from([bytes(member.memory) for member in members])
        async with open_array(again, start_degraded=True) as array:
            for job in array.jobs.running():
                if isinstance(job, Rebuild):
                    assert job.detail()["catches_up"] is True
            for job in array.jobs.running():
                await job.finished.wait()
            assert array.status()["state"] == "clean"
            await array.fail_disk(2)
            assert bytes(await array.read(0, len(model))) == bytes(model)

    run(main)


def test_a_start_that_cannot_tell_what_it_redoes_begins_no_map() -> None:
    """A member that fails while such a log is redone may lack anything of it."""

    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            changes, config = rig.running.context.changes, rig.running.member_set.config
            assert KEY not in changes.begin(config, 0, None).jobs
            changes.note_leaving(rig.running.context.layout.roles(0)[0])
            assert KEY not in rig.running.member_set.config.jobs
            changes.note_redone()
            changes.note_leaving(rig.running.context.layout.roles(0)[0])
            assert KEY in rig.running.member_set.config.jobs

    run(main)


def test_the_map_of_a_huge_array_has_a_bounded_number_of_regions() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            config = rig.running.member_set.config
            absences = AbsenceMap(
                1, {0, REGIONS_MAX, 5 * REGIONS_MAX}, {config.members[0].member_uuid: (1, 2)}
            )
            kept = with_absence_map(config, absences)
            assert (absences.stripes, max(absences.regions) < REGIONS_MAX) == (8, True)
            packed = base64.b64encode(zlib.compress(b"\xff" * (REGIONS_MAX // 8 + 1))).decode()
            crafted = {**kept.jobs[KEY], "regions": packed}
            failed = with_state(kept, 0, FAILED)
            assert absence_map_of(failed) is not None
            assert absence_map_of(replace(failed, jobs={**failed.jobs, KEY: crafted})) is None

    run(main)
