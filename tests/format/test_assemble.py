"""Assembly: who rules, who joins, who is refused; small lives of arrays, cut short everywhere."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import AssemblyError, UsageError
from raidx_fuse.format.assemble import Assembly, assemble
from raidx_fuse.format.config import (
    ACTIVE,
    FAILED,
    MISSING,
    NO_ROLE,
    REBUILDING,
    SPARE,
    ArrayConfig,
    MemberRecord,
)
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import write_config
from raidx_fuse.members.base import Member
from raidx_fuse.members.faulty import FaultMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.testing.virtual import run

SIZE = 1 << 20
METADATA_BYTES = SUPERBLOCK_SLOT_BYTES * 2


class Life:
    """Disks of one array, and what an engine writes to their superblocks over the years."""

    def __init__(self, layout: str = "raid5", width: int = 4, *, first: int = 1, **options: Any):
        self._numbers = itertools.count(first << 64)
        self.disks = [RamMember(SIZE, name=f"d{n}") for n in range(width)]
        self._made = width

        async def make() -> ArrayConfig:
            return await create_array(
                self.disks,
                layout,
                chunk_bytes=4096,
                name=options.get("name", "disk"),
                now_s=0,
                uuid_source=self.uuid,
            )

        self.config = run(make)

    def uuid(self) -> str:
        return str(uuid.UUID(int=next(self._numbers)))

    def new_disk(self) -> RamMember:
        self._made += 1
        self.disks.append(RamMember(SIZE, name=f"d{self._made - 1}"))
        return self.disks[-1]

    def assemble(self, *numbers: int) -> Assembly:
        disks = [self.disks[n] for n in numbers] if numbers else self.disks
        return run(assemble, disks)

    def refused(self, *numbers: int) -> str:
        with pytest.raises(AssemblyError) as error:
            self.assemble(*numbers)
        text = str(error.value)
        assert "\n" not in text
        return text

    def write(
        self, config: ArrayConfig, members: dict[str, Member], only: Iterable[int] | None = None
    ) -> None:
        """One round; a crash let it reach the disks *only* (default: all that it is for)."""
        before = [bytes(disk.memory[:METADATA_BYTES]) for disk in self.disks]

        async def do() -> set[str]:
            return await write_config(members, config)

        assert run(do) == set()
        for number, disk in enumerate(self.disks):
            if only is not None and number not in only:
                disk.memory[:METADATA_BYTES] = before[number]

    def start(self, *numbers: int, only: Iterable[int] | None = None) -> Running:
        return Running(self, self.assemble(*numbers), only)


class Running:
    """An array that was started: the absent are excluded before anything else."""

    def __init__(self, life: Life, assembly: Assembly, only: Iterable[int] | None = None) -> None:
        self.life = life
        self.config = assembly.starting_config()
        self.members: dict[str, Member] = {
            self.config.record(role).member_uuid: member
            for role, member in assembly.by_role.items()
        }
        self.members.update(assembly.spares)
        life.write(self.config, self.members, only)

    def update(self, config: ArrayConfig, only: Iterable[int] | None = None) -> Running:
        self.config = replace(config, events=self.config.events + 1)
        self.life.write(self.config, self.members, only)
        return self

    def fail(self, role: int, only: Iterable[int] | None = None) -> Running:
        self.members.pop(self.config.record(role).member_uuid, None)
        return self.update(self.config.with_member_state(role, FAILED), only)

    def spare(self, only: Iterable[int] | None = None) -> Running:
        disk = self.life.new_disk()
        record = MemberRecord(NO_ROLE, self.life.uuid(), SPARE, SIZE, disk.path)
        self.members[record.member_uuid] = disk
        return self.update(self.config.with_record(record), only)

    def replace(self, role: int, only: Iterable[int] | None = None) -> Running:
        """A new disk takes *role*, rebuilt at once."""
        disk = self.life.new_disk()
        self.members.pop(self.config.record(role).member_uuid, None)
        record = MemberRecord(role, self.life.uuid(), REBUILDING, SIZE, disk.path)
        self.members[record.member_uuid] = disk
        self.update(self.config.with_record(record))
        return self.update(self.config.with_member_state(role, ACTIVE), only)

    def note(self, text: str, only: Iterable[int] | None = None) -> Running:
        return self.update(replace(self.config, settings={"note": text}), only)

    def close(self, only: Iterable[int] | None = None) -> Running:
        return self.update(replace(self.config, clean=True), only)


def roles(assembly: Assembly) -> dict[int, str]:
    return {role: member.path for role, member in assembly.by_role.items()}


def stale(assembly: Assembly) -> dict[str, str]:
    for member, reason in assembly.stale:
        assert any(member.path in line and reason in line for line in assembly.warnings)
    return {member.path: reason for member, reason in assembly.stale}


# -- the ordinary --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_members_join_by_superblock_whatever_their_order(order: tuple[int, ...]) -> None:
    life = Life()
    life.start().close()
    assembly = life.assemble(*order)
    assert roles(assembly) == {0: "d0", 1: "d1", 2: "d2", 3: "d3"}
    assert (assembly.missing_roles, assembly.stale, assembly.warnings) == ([], [], [])
    assert assembly.config.clean


def test_a_missing_member_is_named() -> None:
    assembly = Life().assemble(3, 0, 1)
    assert roles(assembly) == {0: "d0", 1: "d1", 3: "d3"}
    assert assembly.missing_roles == [2]
    assert len(assembly.warnings) == 1
    assert "role 2 (d2, " in assembly.warnings[0]
    assert "is missing" in assembly.warnings[0]


def test_too_many_missing_members_are_named() -> None:
    text = Life().refused(0, 2)
    for part in ("'disk' has failed", "raid5", "role 1 (d1", "role 3 (d3", "is missing; give"):
        assert part in text
    assert "role 1 (d1" in Life("raid0", 2).refused(0)
    assert Life("raid1", 3).assemble(2).missing_roles == [0, 1]
    assert Life("rdp", 6).assemble(0, 1, 3, 5).missing_roles == [2, 4]
    assert "has failed" in Life("rdp", 6).refused(0, 1, 3)


def test_a_failed_member_stays_out() -> None:
    life = Life()
    life.start().fail(1).close()
    assembly = life.assemble()
    assert assembly.missing_roles == [1]
    assert "it failed" in stale(assembly)["d1"]
    assert "event counter 2 is behind 4" in stale(assembly)["d1"]
    assert life.assemble(0, 2, 3).warnings[0].endswith("failed earlier")
    text = life.refused(0, 1, 2)
    assert "role 1 (d1" in text
    assert "d1 is not used: it failed" in text


def test_a_member_that_missed_a_mount_stays_out() -> None:
    life = Life()
    life.start(0, 1, 2).close()
    assert "it was missing" in stale(life.assemble())["d3"]


def test_a_replaced_member_stays_out() -> None:
    life = Life()
    life.start().fail(1).replace(1).close()
    assembly = life.assemble()
    assert roles(assembly) == {0: "d0", 1: "d4", 2: "d2", 3: "d3"}
    assert "another member took its place" in stale(assembly)["d1"]
    assert assembly.missing_roles == []


def test_a_spare_joins_as_spare_and_an_absent_one_is_named() -> None:
    life = Life()
    life.start().spare().close()
    spares = life.assemble().spares
    assert [member.path for member in spares.values()] == ["d4"]
    assembly = life.assemble(0, 1, 2, 3)
    assert assembly.spares == {}
    assert "the spare d4" in assembly.warnings[0] or "the spare (d4" in assembly.warnings[0]
    life.start(0, 1, 2, 3).close()  # it is missing now, and comes back
    assert [member.path for member in life.assemble().spares.values()] == ["d4"]
    back = life.start()
    assert [r.state for r in back.config.members if r.role == NO_ROLE] == [SPARE]


def test_a_member_being_rebuilt_counts_as_lost() -> None:
    life = Life()
    running = life.start().fail(1)
    disk = life.new_disk()
    record = MemberRecord(1, life.uuid(), REBUILDING, SIZE, disk.path)
    running.members[record.member_uuid] = disk
    running.update(running.config.with_record(record))
    assembly = life.assemble(0, 2, 3, 4)
    assert roles(assembly)[1] == "d4"
    assert assembly.missing_roles == []
    assert "role 1 (d4" in life.refused(0, 2, 4)
    assert "is not rebuilt yet" in life.refused(0, 2, 4)


def test_starting_excludes_the_absent_and_moves_the_counter() -> None:
    life = Life()
    started = life.assemble(0, 1, 2).starting_config()
    assert started.record(3).state == MISSING
    assert (started.events, started.clean) == (2, False)
    assert started.starts == 1
    assert started.extends(life.config)
    assert not life.config.extends(started)


# -- bad input -----------------------------------------------------------------------------------


def test_no_members() -> None:
    with pytest.raises(UsageError, match="no members given"):
        run(assemble, [])


def test_a_stranger_is_refused_and_named_by_what_it_is() -> None:
    life = Life()
    blank, xfs, cut = (RamMember(SIZE, name=name) for name in ("blank", "xfs", "cut"))
    xfs.memory[:4] = b"XFSB"
    for disk, said in ((blank, "blank is no member.*superblock"), (xfs, "xfs is .*an XFS")):
        with pytest.raises(AssemblyError, match=said):
            run(assemble, [*life.disks, disk])
    cut = RamMember(4096, name="cut")
    with pytest.raises(AssemblyError, match="cut is no member: 4096 bytes are too few"):
        run(assemble, [*life.disks, cut])


def test_a_truncated_member_is_refused_unless_it_is_out_anyway() -> None:
    life = Life()
    short = RamMember(SIZE - 4096, name="short")
    short.memory[:] = life.disks[1].memory[: SIZE - 4096]
    life.disks[1] = short
    assert "short has 1044480 bytes, but the array needs" in life.refused()
    assert "truncated; leave it out" in life.refused()
    assert life.assemble(0, 2, 3).missing_roles == [1]
    life.start(0, 2, 3).close()
    assert "it was missing" in stale(life.assemble())["short"]


def test_a_member_of_another_array_is_refused() -> None:
    life, other = Life(), Life(first=2, name="other")
    with pytest.raises(AssemblyError, match=r"2 arrays: d0, d1, d2 of array 'disk'.*; d3 of array"):
        run(assemble, [*life.disks[:3], other.disks[3]])


def test_the_same_member_twice_is_refused() -> None:
    life = Life()
    copy = RamMember(SIZE, name="copy")
    copy.memory[:] = life.disks[2].memory
    with pytest.raises(AssemblyError, match="copy and d2 are the same member"):
        run(assemble, [*life.disks, copy])


def test_an_unknown_layout_is_refused() -> None:
    life = Life()
    running = life.start()
    running.update(replace(running.config, layout="raid77"))
    assert "layout 'raid77', unknown to this raidx" in life.refused(0, 1, 2)


def test_an_unreadable_or_damaged_member_counts_as_missing() -> None:
    life = Life()
    life.start().close()
    for slot in range(2):
        life.disks[1].memory[slot * SUPERBLOCK_SLOT_BYTES + 300] ^= 1
    assembly = life.assemble()
    assert assembly.missing_roles == [1]
    assert "d1: no superblock is valid" in assembly.warnings[0]
    dead = FaultMember(life.disks[1])
    dead.vanish()
    assembly = run(assemble, [life.disks[0], dead, life.disks[2], life.disks[3]])
    assert assembly.missing_roles == [1]
    assert "not used" in assembly.warnings[0]
    with pytest.raises(AssemblyError, match="no superblock is valid"):
        life.assemble(1)


def test_one_damaged_slot_is_said_and_the_member_joins() -> None:
    life = Life()
    life.start()
    life.disks[1].memory[SUPERBLOCK_SLOT_BYTES + 300] ^= 1  # the newer of its two
    assembly = life.assemble()
    assert assembly.missing_roles == []
    assert "d1: superblock slot 1 is damaged (checksum" in assembly.warnings[0]


def test_an_old_copy_of_a_member_stays_out() -> None:
    """Put back from a backup: its UUID is active, but it stands before the last whole round."""
    life = Life()
    old = bytes(life.disks[2].memory)
    life.start().close()
    life.start().close()
    life.disks[2].memory[:] = old
    assembly = life.assemble()
    assert "it is an old copy of this member" in stale(assembly)["d2"]
    assert assembly.missing_roles == [2]


# -- crashes in the middle of a round ------------------------------------------------------------


SOME = [subset for n in range(5) for subset in itertools.combinations(range(4), n)]


@pytest.mark.parametrize("reached", SOME)
def test_a_crash_in_the_middle_of_a_round_costs_no_member(reached: tuple[int, ...]) -> None:
    life = Life()
    life.start().note("a").note("b", only=reached)
    assembly = life.assemble()
    assert len(assembly.by_role) == 4
    assert assembly.stale == []
    assert assembly.config.settings["note"] == ("b" if reached else "a")
    again = life.start().note("c", only=reached).config  # and once more on top of it
    assembly = life.assemble()
    assert len(assembly.by_role) == 4
    assert assembly.config.events in (again.events, again.events - 1)


@pytest.mark.parametrize("reached", SOME)
def test_a_crash_while_a_member_is_failed_leaves_it_in_or_out(reached: tuple[int, ...]) -> None:
    life = Life()
    life.start().note("a").fail(1, only=reached)
    assembly = life.assemble()
    if set(reached) - {1}:
        assert assembly.missing_roles == [1]
        assert "it failed" in stale(assembly)["d1"]
    else:
        assert assembly.missing_roles == []


def test_a_round_that_reached_one_member_is_void_when_the_others_go_on() -> None:
    """That member's counter is as high as theirs, or higher; nothing was acknowledged on it."""
    for lonely in (1, 5):
        life = Life()
        running = life.start().note("a")
        for _ in range(lonely - 1):  # a counter may move several times in one round
            running.config = running.config.bumped()
        running.note("lonely", only=[0])
        life.start(1, 2, 3).note("acknowledged")
        assembly = life.assemble()
        assert assembly.config.settings["note"] == "acknowledged"
        assert "it was missing" in stale(assembly)["d0"]
        life.start()  # a round leaves it alone
        assert life.assemble().config.settings["note"] == "acknowledged"


def test_a_failure_that_reached_one_member_is_void_when_the_others_go_on() -> None:
    """d0 alone learned that d1 failed; d1, d2, d3 went on without d0."""
    life = Life()
    life.start().fail(1, only=[0])
    life.start(1, 2, 3).note("acknowledged")
    assembly = life.assemble()
    assert assembly.config.settings["note"] == "acknowledged"
    assert list(stale(assembly)) == ["d0"]
    # Without a third disk that tells who went on, nobody can know.
    assert "was split: [d0] and [d1]" in life.refused(0, 1)


def test_a_crash_while_a_spare_joins_or_leaves() -> None:
    life = Life()
    life.start().spare(only=[4])  # the spare alone was told
    assembly = life.assemble()
    assert len(assembly.by_role) == 4
    for lonely in (1, 5):
        life = Life()
        running = life.start().spare()
        running.config = replace(running.config, events=running.config.events + lonely)
        running.note("lonely", only=[4])
        life.start(0, 1, 2, 3).note("acknowledged")
        assembly = life.assemble()
        assert assembly.config.settings["note"] == "acknowledged"
        assert len(assembly.spares) == 1
        life.start().note("with the spare")
        assert life.assemble().warnings == []


@pytest.mark.parametrize("lonely", [1, 5])
@pytest.mark.parametrize("also_failed", [False, True])
def test_a_newcomer_that_alone_was_told_is_no_member(lonely: int, also_failed: bool) -> None:
    life = Life("rdp", 5)
    running = life.start().fail(1)
    disk = life.new_disk()
    record = MemberRecord(1, life.uuid(), REBUILDING, SIZE, disk.path)
    running.members[record.member_uuid] = disk
    config = running.config.with_record(record)
    if also_failed:  # in the very same round
        running.members.pop(config.record(2).member_uuid)
        config = config.with_member_state(2, FAILED)
    running.config = replace(running.config, events=running.config.events + lonely)
    running.update(config, only=[5])
    life.start(0, 2, 3, 4).note("acknowledged")
    assembly = life.assemble()
    assert assembly.config.settings["note"] == "acknowledged"
    assert roles(assembly) == {0: "d0", 2: "d2", 3: "d3", 4: "d4"}
    assert "another member took its place" in stale(assembly)["d5"]


def test_a_spare_remembers_who_was_excluded() -> None:
    """The mirror's survivor is away; the spare alone knows that the other half is stale."""
    life = Life("raid1", 2)
    life.start().spare().fail(1).note("acknowledged")
    text = life.refused(1, 2)
    assert "d1 is not used: it failed" in text
    assert "role 0 (d0" in text


# -- halves --------------------------------------------------------------------------------------


def test_the_half_that_did_not_go_on_is_stale() -> None:
    life = Life("raid1", 2)
    life.start(0).note("acknowledged").close()
    assembly = life.assemble()
    assert roles(assembly) == {0: "d0"}
    assert "it was missing" in stale(assembly)["d1"]


@pytest.mark.parametrize("more", [0, 1, 7])
def test_two_halves_that_both_went_on_are_refused(more: int) -> None:
    life = Life("raid1", 2)
    life.start(0).note("left")
    right = life.start(1).note("right")
    for number in range(more):
        right.note(str(number))
    text = life.refused()
    assert "array 'disk' was split: [d0] and [d1] each went on without the other" in text
    assert "start with one side alone" in text
    assert roles(life.assemble(0)) == {0: "d0"}
    assert roles(life.assemble(1)) == {1: "d1"}
    # As the message says: one side alone, the other's disk as a new one.
    life.start(0).replace(1).close()
    assert roles(life.assemble(0, 2)) == {0: "d0", 1: "d2"}
    assert "was split" in life.refused(0, 1, 2)


def test_two_halves_of_a_two_loss_array_that_both_went_on_are_refused() -> None:
    life = Life("rdp", 4)
    life.start(0, 2).note("left")
    life.start(1, 3).note("right").note("more")
    assert "was split: [d0, d2] and [d1, d3]" in life.refused()
    assert life.assemble(0, 2).config.settings["note"] == "left"


def test_halves_that_both_replaced_the_other_are_still_refused() -> None:
    life = Life("raid1", 2)
    life.start(0).replace(1).close()
    life.start(1).replace(0).close()
    assert "was split: [d0, d2] and [d1, d3]" in life.refused()


def test_a_line_that_left_out_the_same_disks_later_is_another_line() -> None:
    """d0 without d1; d1 without d0, then with d2, then d2 without d1: who left out d1 differs."""
    life = Life("raid1", 2)
    life.start(0).note("left")
    life.start(1).replace(0).close()
    life.start(2).note("right")
    assert "was split: [d0] and [d2]" in life.refused(0, 2)
    assert "was split: [d0] and [d2]" in life.refused(0, 1, 2)
    assert roles(life.assemble(1, 2)) == {0: "d2"}


def test_an_old_disk_beside_its_successors_successor_is_stale_not_a_split() -> None:
    """d1 failed, d2 took its place, d0 died: d1 never went on without anybody."""
    life = Life("raid1", 2)
    life.start().fail(1).replace(1).close()
    life.start(2).close()
    assembly = life.assemble(1, 2)
    assert roles(assembly) == {1: "d2"}
    assert "another member took its place" in stale(assembly)["d1"]


# -- any life ------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([("raid1", 2), ("raid1", 3), ("raid5", 4), ("rdp", 4), ("rdp", 5)]),
    st.integers(0, 1 << 32),
)
def test_what_was_acknowledged_is_never_passed_over(shape: tuple[str, int], seed: int) -> None:
    """Random starts of random subsets, rounds cut short anywhere, failures, replacements.

    What a round that was complete acknowledged is a version; every assembly must show the newest
    version of a single line of life, or refuse.
    """
    life = Life(*shape)
    try:
        live(life, shape, random.Random(seed))
    finally:
        for disk in life.disks:
            disk.close()


def live(life: Life, shape: tuple[str, int], rng: random.Random) -> None:
    """Start, write, fail, replace and crash at random; check every assembly."""
    tolerance = {"raid1": shape[1] - 1, "raid5": 1, "rdp": 2}[shape[0]]
    # Per disk: the set of versions its lineage has acknowledged while it took part.
    knows: dict[str, set[int]] = {disk.path: set() for disk in life.disks}
    versions = itertools.count(1)
    for _ in range(rng.randint(1, 8)):
        given_disks = rng.sample(range(len(life.disks)), rng.randint(1, len(life.disks)))
        try:
            assembly = life.assemble(*given_disks)
        except AssemblyError:
            continue
        joined = {member.path for member in assembly.by_role.values()}
        # No two lines of life may meet, and none may lag: all that joined know the same versions.
        assert len({frozenset(knows[path]) for path in joined}) == 1
        newest_given = set().union(*(knows[life.disks[n].path] for n in given_disks))
        assert knows[next(iter(joined))] == newest_given, "an acknowledged version was passed over"
        cut = rng.random() < 0.3
        reached = rng.sample(range(len(life.disks)), rng.randint(0, len(life.disks)))
        running = Running(life, assembly, reached if cut else None)
        if cut:
            continue
        for _ in range(rng.randint(0, 3)):
            step = rng.choice(["write", "write", "fail", "replace", "cut", "cut failing"])
            # The engine moves the counter with every change, a round may carry several.
            running.config = replace(
                running.config, events=running.config.events + rng.choice([0, 0, 4])
            )
            present = sorted(running.config.roles_in(ACTIVE))
            lost = running.config.roles_in(FAILED, MISSING)
            if step == "write":
                version = next(versions)
                for role in present:
                    path = running.members[running.config.record(role).member_uuid].path
                    knows[path].add(version)
            elif step == "fail" and len(lost) < tolerance:
                running.fail(rng.choice(present))
            elif step == "replace" and lost:
                source = running.members[running.config.record(present[0]).member_uuid].path
                running.replace(min(lost))
                knows[life.disks[-1].path] = set(knows[source])
            elif step == "cut":
                running.note("cut", only=reached)
                break
            elif step == "cut failing" and len(lost) < tolerance:
                running.fail(rng.choice(present), only=reached)
                break
