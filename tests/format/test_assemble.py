"""Assembly: which members join or are refused; short histories, interrupted everywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from raidx_fuse.errors import AssemblyError, Reason, UsageError
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.configuration.config import MISSING, NO_ROLE, REBUILDING, SPARE, MemberRecord
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.reasons import because
from tests.support.scenario import SIZE, Scenario, roles, stale, starting_config

# -- the ordinary --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_members_join_by_superblock_whatever_their_order(order: tuple[int, ...]) -> None:
    life = Scenario()
    life.start().close()
    assembly = life.assemble(*order)
    assert roles(assembly) == {0: "d0", 1: "d1", 2: "d2", 3: "d3"}
    assert (assembly.missing_roles, assembly.stale, assembly.warnings) == ([], [], [])
    assert assembly.config.clean


def test_a_missing_member_is_named() -> None:
    assembly = Scenario().assemble(3, 0, 1)
    assert roles(assembly) == {0: "d0", 1: "d1", 3: "d3"}
    assert assembly.missing_roles == [2]
    assert len(assembly.warnings) == 1
    assert "role 2 (d2, " in assembly.warnings[0]
    assert "is missing" in assembly.warnings[0]


def test_too_many_missing_members_are_named() -> None:
    text = Scenario().refused(0, 2)
    for part in ("'disk' has failed", "raid5", "role 1 (d1", "role 3 (d3", "is missing; give"):
        assert part in text
    assert "role 1 (d1" in Scenario("raid0", 2).refused(0)
    assert Scenario("raid1", 3).assemble(2).missing_roles == [0, 1]
    assert Scenario("rdp", 6).assemble(0, 1, 3, 5).missing_roles == [2, 4]
    assert "has failed" in Scenario("rdp", 6).refused(0, 1, 3)


def test_a_failed_member_stays_out() -> None:
    life = Scenario()
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
    life = Scenario()
    life.start(0, 1, 2).close()
    assert "it was missing" in stale(life.assemble())["d3"]


def test_a_replaced_member_stays_out() -> None:
    life = Scenario()
    life.start().fail(1).replace(1).close()
    assembly = life.assemble()
    assert roles(assembly) == {0: "d0", 1: "d4", 2: "d2", 3: "d3"}
    assert "another member took its place" in stale(assembly)["d1"]
    assert assembly.missing_roles == []


def test_a_spare_joins_as_spare_and_an_absent_one_is_named() -> None:
    life = Scenario()
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
    life = Scenario()
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
    life = Scenario()
    started = starting_config(life.assemble(0, 1, 2))
    assert started.record(3).state == MISSING
    assert (started.events, started.clean) == (2, False)
    assert started.starts == 1
    assert started.extends(life.config)
    assert not life.config.extends(started)


# -- bad input -----------------------------------------------------------------------------------


def test_no_members() -> None:
    with pytest.raises(UsageError, match="no members given"):
        run(assemble, [])


def test_a_stranger_is_left_out_and_named_by_what_it_is() -> None:
    life = Scenario()
    blank, xfs, cut = (RamMember(SIZE, name=name) for name in ("blank", "xfs", "cut"))
    xfs.memory[:4] = b"XFSB"
    for disk, said in ((blank, "blank is no member.*superblock"), (xfs, "xfs is .*an XFS")):
        with pytest.raises(AssemblyError, match=said):
            run(assemble, [disk])
        assembly = run(assemble, [*life.disks, disk])
        assert assembly.missing_roles == []
        assert re.search(f"^not used: {said}", assembly.warnings[0])
        with pytest.raises(AssemblyError, match=f"cannot do without role 0 .*; {said}"):
            run(assemble, [*life.disks[2:], disk])
    cut = RamMember(4096, name="cut")
    (warning, *_) = run(assemble, [*life.disks[1:], cut]).warnings
    assert "cut is no member: 4096 bytes are too few" in warning


def test_a_truncated_member_is_left_out() -> None:
    life = Scenario()
    short = RamMember(SIZE - 4096, name="short")
    short.memory[:] = life.disks[1].memory[: SIZE - 4096]
    life.disks[1] = short
    assembly = life.assemble()
    assert assembly.missing_roles == [1]
    assert "not used: short has 1044480 bytes, but the array needs" in assembly.warnings[0]
    assert "short has 1044480 bytes" in life.refused(0, 1, 2)
    assert life.assemble(0, 2, 3).missing_roles == [1]
    life.start(0, 2, 3).close()
    assert "short" not in stale(life.assemble()), "one that was only missing is taken back"
    life.start(0, 2, 3).fail(1).close()
    assert "it failed" in stale(life.assemble())["short"]


def test_a_member_of_another_array_is_refused() -> None:
    life, other = Scenario(), Scenario(first=2, name="other")
    with pytest.raises(AssemblyError, match=r"2 arrays: d0, d1, d2 of array 'disk'.*; d3 of array"):
        run(assemble, [*life.disks[:3], other.disks[3]])


def test_the_same_member_twice_is_refused() -> None:
    life = Scenario()
    copy = RamMember(SIZE, name="copy")
    copy.memory[:] = life.disks[2].memory
    with pytest.raises(AssemblyError, check=because(Reason.OUTDATED)):
        run(assemble, [*life.disks, copy])


def test_an_unknown_layout_is_refused() -> None:
    life = Scenario()
    running = life.start()
    running.update(replace(running.config, layout="raid77"))
    assert "layout 'raid77', unknown to this raidx" in life.refused(0, 1, 2)


def test_an_unreadable_or_damaged_member_counts_as_missing() -> None:
    life = Scenario()
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
    life = Scenario()
    life.start()
    life.disks[1].memory[SUPERBLOCK_SLOT_BYTES + 300] ^= 1  # the newer of its two
    assembly = life.assemble()
    assert assembly.missing_roles == []
    assert "d1: superblock slot 1 is damaged (checksum" in assembly.warnings[0]


def test_an_old_copy_of_a_member_stays_out() -> None:
    """Put back from a backup: its UUID is active, but it stands before the last whole round."""
    life = Scenario()
    old = bytes(life.disks[2].memory)
    life.start().close()
    life.start().close()
    life.disks[2].memory[:] = old
    assembly = life.assemble()
    assert "it is an old copy of this member" in stale(assembly)["d2"]
    assert assembly.missing_roles == [2]
