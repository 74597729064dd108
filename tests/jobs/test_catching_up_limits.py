"""What a map of changed regions cannot tell: a rebuild of everything; crashes lose nothing."""

from __future__ import annotations

import base64
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
from tests.jobs.test_catching_up import CHUNK, JOURNALS, KINDS, check_whole, come_back, leave
from tests.support.arrays import jobs_ended
from tests.support.scenario import with_state
from tests.support.spy import filled, members_from, noise, spied


async def test_an_old_copy_is_rebuilt_whole() -> None:
    rig = await filled("raid1", 2, chunk_bytes=CHUNK, stripes=600)
    old = bytes(rig.rams[1].memory)
    await rig.array.set("speed_min", "1MiB")  # any change of the configuration
    await rig.put(0, noise(CHUNK, 1))
    member = await leave(rig, 1)
    rig.rams[1].memory[:] = old
    assert (await come_back(rig, 1, member))["catches_up"] is False
    await check_whole(rig, 1)


@pytest.mark.parametrize(("journal", "late"), [(name, n) for n, name in enumerate(JOURNALS)])
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind[0] for kind in KINDS])
async def test_a_copy_of_the_same_run_is_rebuilt_whole(kind: int, journal: str, late: int) -> None:
    """Its superblock is that of the member: only its pages are older than what had become durable.

    *killed*: the member is absent when the array starts after the kill, and given later.
    """
    layout, width, options = KINDS[kind]
    killed = (kind + late) % 2 == 1
    rig = await filled(layout, width, chunk_bytes=CHUNK, stripes=128, **options, journal=journal)
    await trio.sleep(30)
    await rig.in_place()
    old = bytes(rig.rams[1].memory)
    for seed in range(3):
        await rig.put(0, noise(len(rig.model) // 3, seed))
        await rig.put(len(rig.model) // 2, noise(10, seed))
        await rig.array.flush()
        await trio.sleep(30)
    if killed:
        member = rig.members.pop(1)
        rig.array.member_set.end_superblocks()
        await rig.reopen()
    else:
        member = await leave(rig, 1)
    rig.rams[1].memory[:] = old
    assert (await come_back(rig, 1, member))["catches_up"] is False
    await check_whole(rig, 1)


async def test_a_half_that_was_started_alone_is_rebuilt_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its event counter may be one that the member can have left with: the lineage tells.
    monkeypatch.setattr(changed_regions.ChangedRegions, "left", lambda _self, _uuid: (0, 1000))
    rig = await filled("raid1", 2, chunk_bytes=CHUNK, stripes=600)
    member = await leave(rig, 1)
    alone = members_from([bytes(rig.rams[1].memory)])
    async with open_array(alone, start_degraded=True) as other:
        await other.write(0, noise(CHUNK, 5))
    rig.rams[1].memory[:] = alone[0].memory
    assert (await come_back(rig, 1, member))["catches_up"] is False
    await check_whole(rig, 1)


async def test_a_growth_in_between_makes_it_a_whole_rebuild() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK, stripes=600)
    await rig.array.set("speed_max", "256KiB")
    await rig.array.grow([rig.new_member()])
    await trio.sleep(1.0)
    member = rig.members[1]
    await rig.array.fail_disk(1)
    await rig.array.flush()
    assert KEY not in rig.array.member_set.config.jobs
    begun = await rig.array.replace_disk(1, member)
    assert begun["catches_up"] is False
    await rig.array.set("speed_max", "0")
    await jobs_ended(rig.array)
    await check_whole(rig, 1)


async def test_a_start_that_cannot_tell_what_it_redoes_begins_no_map() -> None:
    """A member that fails while such a log is redone may lack anything of it."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    changes, config = rig.array.context.changes, rig.array.member_set.config
    assert KEY not in changes.begin(config, 0, None).jobs
    changes.note_leaving(rig.array.context.layout.roles(0)[0])
    assert KEY not in rig.array.member_set.config.jobs
    changes.note_redone()
    changes.note_leaving(rig.array.context.layout.roles(0)[0])
    assert KEY in rig.array.member_set.config.jobs


async def test_the_map_of_a_huge_array_has_a_bounded_number_of_regions() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    config = rig.array.member_set.config
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
