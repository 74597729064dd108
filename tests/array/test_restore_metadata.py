"""Superblocks from saved metadata: the front comes back, and what would harm is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.array.restore_metadata import FRONT_BYTES, Permits, Restoration, plan
from raidx_fuse.array.save_metadata import save
from raidx_fuse.errors import AssemblyError, FormatError, RaidxError, Reason
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.format.saved_metadata import Saved, essence, from_bytes, to_document, to_text
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array
from tests.support.reasons import because

CONTENT = random.Random(7).randbytes(300_000)
WIDTHS = {"raid0": 3, "raid1": 3, "raid5": 4, "rdp": 5, "raidx-copy": 4, "raidx-parity": 5}
ALL = 255
OWN = {number: Role(number) for number in range(4)}


async def filled(layout: str, size_bytes: int = 2 << 20, **options: Any) -> list[RamMember]:
    """Return the members of a closed array with CONTENT."""
    members = await ram_array(layout, WIDTHS[layout], size_bytes, **options)
    async with open_array(members) as array:
        await array.write(0, CONTENT)
    return members


async def kept(array: Array) -> Saved:
    """Return what is read back from a file about *array*."""
    saved = await save(array, array.member_set.present(), 5)
    assert from_bytes(to_text(to_document(saved))) == saved
    return saved


async def saved_of(members: Sequence[Member]) -> Saved:
    async with open_array(members, read_only=True, start_degraded=True) as array:
        return await kept(array)


def without_sums(saved: Saved) -> Saved:
    return replace(saved, members=tuple(replace(one, samples={}) for one in saved.members))


def lose_front(*members: RamMember, size: int = FRONT_BYTES) -> None:
    for member in members:
        member.memory[:size] = bytes(size)


def copy_of(member: RamMember) -> RamMember:
    copy = RamMember(member.size_bytes, name=member.path)
    copy.memory[:] = member.memory
    return copy


def as_the_kernel_names(members: Sequence[RamMember]) -> None:
    """Give *members* paths that say nothing about what they are."""
    for number, member in enumerate(members):
        member.path = f"/dev/sd{number}"


async def restored(saved: Saved, members: Sequence[Member], **permits: Any) -> Restoration:
    found = await plan(saved, members, Permits(**permits))
    await found.carry_out()
    return found


async def refused(
    reason: Reason,
    saved: Saved,
    members: Sequence[RamMember],
    words: str | None = None,
    **permits: Any,
) -> None:
    """Expect that it is refused, and that nothing was written."""
    before = [bytes(member.memory) for member in members]
    with pytest.raises(RaidxError, match=words, check=because(reason)):
        await restored(saved, members, **permits)
    assert [bytes(member.memory) for member in members] == before


async def has_content(members: Sequence[Member], content: bytes = CONTENT) -> None:
    async with open_array(members) as array:
        assert bytes(await array.read(0, len(content))) == content
        if array.context.code.tolerance:
            await parity_holds(array)


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", WIDTHS)
@pytest.mark.parametrize("count", [1, 2, ALL])
async def test_lost_fronts_come_back_in_any_order(layout: str, count: int) -> None:
    members = await filled(layout)
    saved = await saved_of(members)
    lose_front(*members[:count])
    found = await restored(saved, members[::-1])
    assert found.from_members == (count < len(members))
    assert (found.state, found.wrong) == ("clean", 0)
    await has_content(members)


@pytest.mark.parametrize("count", [1, ALL])
async def test_what_only_the_log_has_comes_back(count: int) -> None:
    members = await filled("raid5")
    async with open_array(members) as array:
        saved = await kept(array)
        await array.write(5000, b"only in the log")
        await array.flush()
        cut = [copy_of(member) for member in members]  # the machine stops here
    lose_front(*cut[:count])
    await restored(saved, cut, is_newest=True)
    await has_content(cut, CONTENT[:5000] + b"only in the log" + CONTENT[5015:])


async def test_members_get_what_newer_ones_have() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    async with open_array(members) as array:
        await array.member_set.update(lambda config: replace(config, name="renamed"))
    lose_front(*members[:3])
    found = await restored(saved, members)
    assert found.config.name == "renamed"
    await has_content(members)


async def test_a_cut_restoration_is_continued() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    lose_front(*members)
    faulty = [FaultMember(member) for member in members]
    fault = faulty[2].error(["write"])
    with pytest.raises(RaidxError, match="written so far: d0, d1"):
        await restored(saved, faulty)
    fault.lift()
    found = await restored(saved, faulty)
    assert [one.superblock is None for one in found.members] == [True, True, False, False]
    await has_content(members)


# -- which member is which -------------------------------------------------------------------------


async def test_a_member_takes_no_role_but_its_own() -> None:
    # Exchanged members of raid5 pass every check of the parity, and a log would be redone in wrong
    # places.
    members = await filled("raid5")
    saved = await saved_of(members)
    lose_front(*members)
    await refused(Reason.ARGUMENT, saved, members, roles={0: Role(1), 1: Role(0)})
    as_the_kernel_names(members)
    await refused(Reason.AMBIGUOUS, without_sums(saved), members)
    await refused(Reason.AMBIGUOUS, without_sums(saved), members, roles={0: Role(0)})
    await restored(without_sums(saved), members, roles=OWN)
    await has_content(members)


async def test_parity_finds_a_wrong_order_where_it_can() -> None:
    members = await filled("rdp")
    saved = without_sums(await saved_of(members))
    lose_front(*members)
    swapped = {0: Role(1), 1: Role(0), **{n: Role(n) for n in range(2, 5)}}
    await refused(Reason.OUTDATED, saved, members, "contradict their parity", roles=swapped)


async def test_what_is_no_member_takes_no_role() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    blank, *others = RamMember(2 << 20, name="d0"), *members[1:]
    lose_front(*others)
    await refused(Reason.NOT_A_MEMBER, saved, [blank, *others])
    await refused(Reason.NOT_A_MEMBER, saved, [blank, *others], roles={0: Role(0)})
    await refused(Reason.OUTDATED, saved, [copy_of(members[1]), *members[1:]], "a copy")
    other = await ram_array("raid5", 4, 2 << 20)
    await refused(Reason.SEVERAL_ARRAYS, saved, [other[0], *others])
    await refused(Reason.MEMBERS_MISSING, saved, others, degraded=False)
    await restored(saved, others, degraded=True)
    await has_content(others)


async def test_a_foreign_signature_is_refused() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    lose_front(members[0])
    members[0].memory[:6] = b"LUKS\xba\xbe"
    await refused(Reason.SIGNATURE_FOUND, saved, members)
    await restored(saved, members, overwrite_signature=True)
    await has_content(members)


# -- old files, old members ------------------------------------------------------------------------


async def test_a_file_from_before_a_start_needs_a_word() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    async with open_array(members) as array:
        await array.write(0, b"later")
        running = await kept(array)
    lose_front(*members)
    await refused(Reason.OUTDATED, saved, members, "was started since")
    await refused(Reason.OUTDATED, saved, members, is_newest=True)
    await refused(Reason.OUTDATED, running, members, "ran when the file was saved")
    await refused(Reason.OUTDATED, running, members, "later.json", newer="later.json", older=True)
    await restored(saved, members, older=True)
    await has_content(members, b"later" + CONTENT[5:])


async def test_checksums_of_a_file_from_before_a_start_begin_anew() -> None:
    members = await filled("raid5", sums=True)
    saved = await saved_of(members)
    content = bytes(8192) + CONTENT[8192:]
    async with open_array(members) as array:  # what the tables say is of before
        await array.set("sums", "off")
        await array.write(0, content[:8192])
    lose_front(*members)
    done = await restored(saved, members, older=True)
    assert any("checksums begin anew" in warning for warning in done.warnings)
    async with open_array(members) as array:
        assert array.member_set.sums is None
        assert await array.read(0, len(content)) == content
        await array.set("sums", "on")
        for job in array.jobs.running():
            await job.finished.wait()
        assert await array.read(0, len(content)) == content
        assert array.member_set.sums is not None
        assert not array.member_set.sums.misfits


async def test_a_file_from_before_a_change_is_found_out() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    fresh = RamMember(2 << 20, name="fresh")
    async with open_array(members) as array:
        await array.replace_disk(1, fresh)
        await jobs_ended(array)
    now = [members[0], fresh, *members[2:]]
    lose_front(*now, members[1])
    for given in (now, members):
        await refused(Reason.OUTDATED, saved, given, older=True)


async def test_a_file_from_before_a_growth_is_found_out() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    fresh = RamMember(2 << 20, name="fresh")
    async with open_array(members) as array:
        await array.member_changes.plan_adding(1, None).begin([fresh])
        await jobs_ended(array)
        await array.write(0, CONTENT[::-1])  # until then, all of it lies at its old places as well
    lose_front(*members, fresh)
    await refused(Reason.OUTDATED, saved, members, "contradict", older=True)


async def test_a_file_from_before_a_restripe_is_found_out() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    async with open_array(members) as array:
        await array.restripe_operation.plan(0, "raid4", {}).begin([])
        await jobs_ended(array)
    lose_front(*members)
    await refused(Reason.OUTDATED, saved, members, older=True)
    await refused(Reason.OUTDATED, saved, members, older=True, roles=OWN)


async def test_a_growth_is_restored_only_as_it_stood() -> None:
    members = await filled("raid5")
    fresh = RamMember(2 << 20, name="fresh")
    async with open_array(members) as array:
        await array.member_changes.plan_adding(1, None).begin([fresh])
        midway = await kept(array)
    assert "migrated" in midway.config.params
    every = [*members, fresh]
    at_rest = await saved_of(every)
    lose_front(*every)
    await refused(Reason.OUTDATED, midway, every, "growth", older=True, is_newest=True)
    await restored(at_rest, every)
    async with open_array(every) as array:
        await jobs_ended(array)
        assert bytes(await array.read(0, len(CONTENT))) == CONTENT
        await parity_holds(array)


async def test_a_member_that_was_left_behind_is_not_taken_for_whole() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    old = copy_of(members[3])
    async with open_array(members) as array:
        await array.fail_disk(3)
        await array.write(0, bytes(100_000))
        later = await kept(array)
    closed = await saved_of(members[:3])
    lose_front(members[3], old)
    await refused(Reason.OUTDATED, saved, members, "continued without it")
    # Its superblock is the only one that is left, and counts it as whole.
    everything = [copy_of(member) for member in members[:3]]
    lose_front(*everything)
    left = copy_of(old)
    left.memory[:FRONT_BYTES] = (await _front_of(saved, 3))[:FRONT_BYTES]
    await refused(Reason.OUTDATED, saved, [*everything, left])
    await refused(Reason.OUTDATED, saved, [*everything, left], older=True)
    await restored(closed, [*everything, left])
    await has_content([*everything, left], bytes(100_000) + CONTENT[100_000:])
    assert later.config.find(saved.config.members[3].member_uuid) is not None


async def _front_of(saved: Saved, role: int) -> bytes:
    """Return the front of the member of *role* when *saved* was made."""
    member = RamMember(4 << 20)
    from raidx_fuse.format.superblock import Superblock, write_superblock

    uuid = saved.config.record(Role(role)).member_uuid
    one = saved.member(uuid)
    assert one.sequence is not None
    await write_superblock(member, Superblock(uuid, one.sequence, saved.base_events, saved.config))
    return bytes(member.memory)


async def test_a_member_that_was_away_is_not_caught_up_by_too_little() -> None:
    members = await filled("raid5", 8 << 20)
    async with open_array(members[:3]) as array:
        await array.write(0, b"missed")
        await array.flush()
        saved = await kept(array)
        assert "away" in saved.config.jobs
        await array.write(6 << 20, CONTENT)  # in a region that the file does not have
        await array.flush()
        cut = [*(copy_of(member) for member in members[:3]), members[3]]
    lose_front(*cut[:3])
    await restored(saved, cut[:3], is_newest=True)
    async with open_array(cut) as array:
        await jobs_ended(array)
        assert array.member_set.lost == {3}  # with the map of the file it would count as whole
        assert bytes(await array.read(6 << 20, len(CONTENT))) == CONTENT


async def test_an_old_copy_of_a_member_is_refused() -> None:
    members = await filled("raid5")
    old = copy_of(members[1])
    async with open_array(members) as array:
        await array.write(0, CONTENT[::-1])
    saved = await saved_of(members)
    lose_front(old)
    await refused(Reason.OUTDATED, saved, [members[0], old, *members[2:]])
    lose_front(*members)
    await refused(Reason.OUTDATED, saved, [members[0], old, *members[2:]])
    await refused(Reason.OUTDATED, saved, [members[0], old, *members[2:]], older=True)


async def test_all_members_from_before_the_file_are_refused() -> None:
    members = await filled("raid5")
    async with open_array(members) as array:
        await array.write(0, b"first")
        await array.flush()
        old = [copy_of(member) for member in members]  # a snapshot of a running machine
        await array.write(0, CONTENT[::-1])
    saved = await saved_of(members)
    lose_front(*old)
    await refused(Reason.OUTDATED, saved, old)
    await refused(Reason.OUTDATED, saved, old, older=True)


async def test_a_spare_alone_does_not_say_what_the_array_is() -> None:
    members = await filled("raid5")
    spare = RamMember(2 << 20, name="spare")
    async with open_array(members) as array:
        await array.add_spare(spare)
    saved = await saved_of([*members, spare])
    pulled = copy_of(spare)
    async with open_array(members) as array:
        await array.member_set.update(lambda config: replace(config, volumes=VolumeTable()))
    lose_front(*members)
    early = replace(saved, config=replace(saved.config, events=saved.config.events - 1))
    await refused(Reason.OUTDATED, early, [*members, pulled])


async def test_a_restored_member_is_never_newer_than_it_was() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    async with open_array(members) as array:
        await array.write(0, b"later")
        await array.set("speed_max", "1000000")
        await array.set("speed_max", "2000000")
    newer = members[3]
    lose_front(*members[:3])
    await restored(saved, members[:3], degraded=True, older=True)
    with pytest.raises(AssemblyError, match="old copy"):
        await assemble(members)
    superblock = await read_superblock(newer)
    assert superblock is not None
    assert superblock.events > saved.config.events


# -- what lies behind ------------------------------------------------------------------------------


async def test_maps_that_are_gone_are_said_to_be() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    before = [bytes(member.memory) for member in members]
    behind = saved.config.regions.data.offset
    lose_front(*members, size=behind)
    await refused(Reason.LOST, saved, members, "; all members were given: make the array anew")
    await refused(Reason.LOST, saved, members, older=True, degraded=True)
    await refused(Reason.LOST, saved, members[:3], "; give the other members, too", degraded=True)
    members[3].memory[:] = before[3]  # one has them all
    found = await restored(saved, members)
    assert any("old copy" in text for text in found.warnings)
    await has_content(members)


async def test_a_member_without_maps_is_rebuilt_where_that_is_possible() -> None:
    members = await filled("raid5")
    saved = await saved_of(members)
    lose_front(members[0], size=saved.config.regions.data.offset)
    await refused(Reason.OUTDATED, saved, members, "can do without it")


# -- the file --------------------------------------------------------------------------------------


async def test_a_damaged_file_is_refused() -> None:
    saved = await saved_of(await filled("raid5"))
    text = to_text(to_document(saved))
    for at in range(0, len(text), 13):
        for mask in (1, 0x20):
            damaged = bytearray(text)
            damaged[at] ^= mask
            try:
                assert from_bytes(bytes(damaged)) == saved  # a space
            except FormatError:
                continue
    for length in range(0, len(text) - 1, 101):
        with pytest.raises(FormatError):
            from_bytes(text[:length])


async def test_only_changes_that_matter_are_changes() -> None:
    members = await filled("raid5")
    config = (await saved_of(members)).config
    progress = config.with_job("rebuild:1", {"next_stripe": 4})
    moved = config.with_job("rebuild:1", {"next_stripe": 9}).bumped()
    assert essence(progress) == essence(moved)
    changes = [
        progress,
        replace(config, volumes=VolumeTable()),
        replace(config, name="other"),
        replace(config, settings={"journal": "none"}),
        config.with_record(replace(config.members[0], state="failed")),
        config.with_job("bad_chunks", {"count": 1, "steps": "x"}),
        replace(config, params={"migrated": 0}),
    ]
    assert len({essence(each) for each in (config, *changes)}) == len(changes) + 1
