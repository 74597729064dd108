"""Starting and stopping: what is kept, what is refused, and that inspection changes nothing."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, ReadOnlyError, Reason, UsageError
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import jobs_ended, ram_array
from tests.support.reasons import because
from tests.support.spy import (
    FLUSH,
    WRITE,
    Log,
    SpyMember,
    members_from,
    noise,
    restarted,
    spied,
    spying,
)

CHUNK = 4096


@pytest.mark.parametrize("state", ["clean", "dirty", "degraded"])
async def test_a_read_only_start_writes_nothing_at_all(state: str) -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        if state == "degraded":
            await rig.array.fail_disk(2)
        if state != "dirty":
            await rig.close()
        images = rig.images()
        if state != "dirty":
            await rig.open()
    given = images[:2] if state == "degraded" else images
    log = Log()
    bare = members_from(given)
    members: list[Member] = [SpyMember(member, log) for member in bare]
    async with open_array(members, read_only=True) as array:
        assert array.read_only
        for at in range(0, len(rig.model), 1 << 18):
            expected = rig.model[at : at + (1 << 18)]
            assert bytes(await array.read(at, len(expected))) == expected
        with pytest.raises(ReadOnlyError):
            await array.write(0, b"x")
        settings = array.settings()
        for refused in (
            *(array.fail_disk(0), array.add_spare(bare[0]), array.remove_disk(0)),
            *(array.set("speed_max", "5MiB"), array.set("journal", "none")),
        ):
            with pytest.raises(ReadOnlyError):
                await refused
        assert array.settings() == settings
        await array.flush()
        array.status()
    assert not log.of(WRITE)
    assert not log.of(FLUSH)
    assert [bytes(member.memory) for member in bare] == given


async def test_settings_are_saved_and_work_after_a_remount() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    for key, text in (
        ("parity.policy", "rcw"),
        ("speed_min", "1MiB"),
        ("speed_max", "5MiB"),
        ("io.timeout_s", "7.5"),
        ("journal", "full"),
    ):
        await rig.array.set(key, text)
    for _ in range(2):
        await rig.reopen()
        settings = rig.array.settings()
        kept = {
            "io.timeout_s": 7.5,
            "journal": "full",
            "parity.policy": "rcw",
            "speed_max": 5 << 20,
            "speed_min": 1 << 20,
        }
        assert {key: settings[key] for key in kept} == kept
        assert rig.array.member_set.io_timeout_s == 7.5
        assert rig.array.jobs.speed_max_bytes == 5 << 20
        await rig.put(0, noise(3 * CHUNK))
        await rig.in_place()
        before = rig.array.stats()["array"]["rcw"]
        await rig.put(0, noise(512))  # traditional would read fewer: rmw
        await rig.in_place()  # the parity follows the logged data
        assert rig.array.stats()["array"]["rcw"] == before + 1


WRONG_SETTINGS = (
    ("speed_mx", "1MiB", "did you mean speed_max"),
    ("nonsense", "1", "known:"),
    ("speed_max", "fast", "not a size"),
    ("parity.policy", "bogus", "choose one of"),
    ("journal", "both", "choose partial"),
    ("io.timeout_s", "0", "outside"),
    ("io.timeout_s", "soon", "not a time"),
    ("bpu.t_light", "soon", "not a time"),
    ("bpu.t_light", "-1us", "not a time"),
    ("bpu.t_heavy", "2h", "longer than 3600 s"),
    ("bpu.t_skew", "4000", "longer than 3600 s"),
    ("bpu.t_pre", "2.5", "not a number of chunks"),
    ("bpu.t_pre", "256", "0 to 255"),
    ("bpu.auto", "on", "no setting bpu.auto any more: set bpu.t_light"),
    ("bpu.a_read", "1ms,2ms", "one service time holds for all members"),
    ("bpu.a_read", "", "not a time"),
    ("bpu.t_ligth", "1ms", "did you mean bpu.t_light"),
)


async def test_a_wrong_setting_is_refused_and_changes_nothing() -> None:
    rig = await spied("raid5", 3)
    before = rig.array.settings()
    for key, text, words in WRONG_SETTINGS:
        with pytest.raises(UsageError, match=words):
            await rig.array.set(key, text)
    assert rig.array.settings() == before


@pytest.mark.parametrize("given", [False, True])
async def test_what_was_said_of_an_absent_member_goes_when_its_role_has_another_one(
    given: bool,
) -> None:
    """*given*: an old copy of it is there, and becomes the new member."""
    members = await ram_array("raid5", 4)
    content = noise(100_000)
    async with open_array(members) as array:
        await array.fail_disk(1)  # for good: it is not taken back
        await array.write(0, content)
    old = members[1]
    present = members if given else [members[0], *members[2:]]
    for read_only in (True, False):
        async with open_array(present, read_only=read_only) as array:
            (text,) = array.status()["warnings"]
            assert ("d1 is not used: " if given else "role 1 (d1, ") in text
            assert array.warnings == [text]
    async with open_array(present) as array:
        new = old if given else RamMember(old.size_bytes, name="new")
        await array.replace_disk(1, new)
        await jobs_ended(array)
        assert array.status()["warnings"] == []
        assert array.status()["state"] == "clean"
        assert await array.read(0, len(content)) == content


async def test_a_degraded_array_starts_with_a_warning_a_failed_one_does_not() -> None:
    async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.close()
        images = rig.images()
        await rig.open()
    async with restarted(images[1:]) as array:
        assert array.status()["state"] == "degraded"
        assert any("role 0" in warning for warning in array.warnings)
        assert bytes(await array.read(0, CHUNK)) == rig.model[:CHUNK]
    with pytest.raises(AssemblyError, match=r"role 0 .* is missing; role 1 .* is missing"):
        async with restarted(images[2:]):
            pass


async def test_a_member_that_missed_writes_is_let_in_again_by_a_rebuild_only() -> None:
    async with spying("raid1", 2, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.close()
        old = rig.images()
        await rig.open()
    first = members_from(old[:1])
    async with open_array(first) as array:
        await array.write(0, b"new" * 100)
    newer = bytes(first[0].memory)
    async with restarted([newer, old[1]]) as array:
        assert array.status()["state"] == "rebuilding"
        assert bytes(await array.read(0, 300)) == b"new" * 100
        await array.jobs.running()[0].finished.wait()
        await array.fail_disk(0)
        assert bytes(await array.read(0, 300)) == b"new" * 100
    second = members_from(old[1:])
    async with open_array(second) as array:
        await array.write(0, b"other" * 60)
    with pytest.raises(AssemblyError, check=because(Reason.SPLIT)):
        async with restarted([newer, bytes(second[0].memory)]):
            pass


async def test_the_split_is_still_known_after_one_half_was_repaired() -> None:
    """Half A replaced B by C; half B went on alone too. B must never rule, nor join."""
    async with spying("raid1", 2, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.close()
        old = rig.images()
        await rig.open()
    half = members_from(old[:1])
    new = rig.new_member()
    async with open_array(half) as array:
        await array.write(0, b"A" * 300)
        job = (await array.replace_disk(1, new))["job"]
        assert (await array.jobs.wait(job))["state"] == "done"
    other = members_from(old[1:])
    async with open_array(other) as array:
        for number in range(40):  # its counter runs ahead
            await array.set("speed_max", str(number))
        await array.write(0, b"B" * 300)
    repaired = [bytes(half[0].memory), bytes(rig.rams[2].memory)]
    stale = bytes(other[0].memory)
    with pytest.raises(AssemblyError, check=because(Reason.SPLIT)):
        async with restarted([*repaired, stale]):
            pass
    async with restarted(repaired) as array:
        assert array.status()["state"] == "clean"
        assert bytes(await array.read(0, 300)) == b"A" * 300


@pytest.mark.parametrize("hangs", ["superblock", "written", "log"])
async def test_a_member_that_does_not_answer_does_not_stop_the_start(hangs: str) -> None:
    """The array has no queues then, whose watchdog would end the read."""
    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.array.flush()
        regions = rig.array.member_set.config.regions
        images = rig.images()
    members = [FaultMember(member) for member in members_from(images)]
    place = regions.named()[hangs]
    members[1].hang(("read",), offset_bytes=place.offset, length_bytes=place.length)
    async with open_array(members) as array:
        for at in range(0, len(rig.model), 1 << 18):
            expected = rig.model[at : at + (1 << 18)]
            assert bytes(await array.read(at, len(expected))) == expected
        await array.write(0, noise(CHUNK, 2))
        await array.flush()
        assert trio.current_time() < 300
