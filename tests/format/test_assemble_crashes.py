"""Assembly after crashes and splits: interrupted rounds, halves that both continued."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import AssemblyError
from raidx_fuse.format.configuration.config import ACTIVE, FAILED, MISSING, REBUILDING, MemberRecord
from tests.support.scenario import SIZE, Running, Scenario, roles, stale, with_state

# -- crashes in the middle of a round ------------------------------------------------------------


SOME = [subset for n in range(5) for subset in itertools.combinations(range(4), n)]


@pytest.mark.parametrize("reached", SOME)
def test_a_crash_in_the_middle_of_a_round_costs_no_member(reached: tuple[int, ...]) -> None:
    life = Scenario()
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
    life = Scenario()
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
        life = Scenario()
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
    """d0 alone learned that d1 failed; d1, d2, d3 ran without d0."""
    life = Scenario()
    life.start().fail(1, only=[0])
    life.start(1, 2, 3).note("acknowledged")
    assembly = life.assemble()
    assert assembly.config.settings["note"] == "acknowledged"
    assert list(stale(assembly)) == ["d0"]
    # Without a third disk that tells who went on, nobody can know.
    assert "was split: [d0] and [d1]" in life.refused(0, 1)


def test_of_two_interrupted_rounds_the_one_with_more_members_is_valid() -> None:
    """d1 alone learned that d3 failed; d3 alone that d0 and d3 had started without the others."""
    life = Scenario("rdp", 4)
    life.start().note("acknowledged").fail(3, only=[1])
    life.start(0, 3, only=[3])
    assembly = life.assemble()
    assert assembly.config.settings["note"] == "acknowledged"
    assert roles(assembly) == {0: "d0", 1: "d1", 2: "d2"}
    assert list(stale(assembly)) == ["d3"]
    life.start().note("went on")
    assert life.assemble().config.settings["note"] == "went on"
    # Without d0 and d2, nobody can tell that the rounds were interrupted.
    life = Scenario("rdp", 4)
    life.start().fail(3, only=[1])
    life.start(0, 3, only=[3])
    assert "was split: [d1] and [d3]" in life.refused(1, 3)


def test_old_copies_do_not_make_sides_interrupted() -> None:
    life = Scenario("raid1", 4)
    life.start().note("old")
    copies = [bytes(disk.memory) for disk in life.disks]
    life.start().note("newer")
    life.start(0, 1).note("left")
    life.start(2, 3).note("right")
    for number in (1, 3):
        life.disks[number].memory[:] = copies[number]
    assert "was split: [d0] and [d2]" in life.refused()


def test_a_crash_while_a_spare_joins_or_leaves() -> None:
    life = Scenario()
    life.start().spare(only=[4])  # the spare alone was told
    assembly = life.assemble()
    assert len(assembly.by_role) == 4
    for lonely in (1, 5):
        life = Scenario()
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
    life = Scenario("rdp", 5)
    running = life.start().fail(1)
    disk = life.new_disk()
    record = MemberRecord(1, life.uuid(), REBUILDING, SIZE, disk.path)
    running.members[record.member_uuid] = disk
    config = running.config.with_record(record)
    if also_failed:  # in the very same round
        running.members.pop(config.record(2).member_uuid)
        config = with_state(config, 2, FAILED)
    running.config = replace(running.config, events=running.config.events + lonely)
    running.update(config, only=[5])
    life.start(0, 2, 3, 4).note("acknowledged")
    assembly = life.assemble()
    assert assembly.config.settings["note"] == "acknowledged"
    assert roles(assembly) == {0: "d0", 2: "d2", 3: "d3", 4: "d4"}
    assert "another member took its place" in stale(assembly)["d5"]


def test_a_spare_remembers_who_was_excluded() -> None:
    """The mirror's survivor is away; the spare alone knows that the other half is stale."""
    life = Scenario("raid1", 2)
    life.start().spare().fail(1).note("acknowledged")
    text = life.refused(1, 2)
    assert "d1 is not used: it failed" in text
    assert "role 0 (d0" in text


# -- halves --------------------------------------------------------------------------------------


def test_the_half_that_did_not_go_on_is_stale() -> None:
    life = Scenario("raid1", 2)
    life.start(0).note("acknowledged").close()
    assembly = life.assemble()
    assert roles(assembly) == {0: "d0"}
    assert "it was missing" in stale(assembly)["d1"]


@pytest.mark.parametrize("more", [0, 1, 7])
def test_two_halves_that_both_went_on_are_refused(more: int) -> None:
    life = Scenario("raid1", 2)
    life.start(0).note("left")
    right = life.start(1).note("right")
    for number in range(more):
        right.note(str(number))
    text = life.refused()
    assert "array 'disk' was split: [d0] and [d1] each ran without the other" in text
    assert "start with one side alone" in text
    assert roles(life.assemble(0)) == {0: "d0"}
    assert roles(life.assemble(1)) == {1: "d1"}
    # As the message says: one side alone, the other's disk as a new one.
    life.start(0).replace(1).close()
    assert roles(life.assemble(0, 2)) == {0: "d0", 1: "d2"}
    assert "was split" in life.refused(0, 1, 2)


def test_two_halves_of_a_two_loss_array_that_both_went_on_are_refused() -> None:
    life = Scenario("rdp", 4)
    life.start(0, 2).note("left")
    life.start(1, 3).note("right").note("more")
    assert "was split: [d0, d2] and [d1, d3]" in life.refused()
    assert life.assemble(0, 2).config.settings["note"] == "left"


def test_halves_that_both_replaced_the_other_are_still_refused() -> None:
    life = Scenario("raid1", 2)
    life.start(0).replace(1).close()
    life.start(1).replace(0).close()
    assert "was split: [d0, d2] and [d1, d3]" in life.refused()


def test_a_line_that_left_out_the_same_disks_later_is_another_line() -> None:
    """d0 without d1; d1 without d0, then with d2, then d2 without d1: who left out d1 differs."""
    life = Scenario("raid1", 2)
    life.start(0).note("left")
    life.start(1).replace(0).close()
    life.start(2).note("right")
    assert "was split: [d0] and [d2]" in life.refused(0, 2)
    assert "was split: [d0] and [d2]" in life.refused(0, 1, 2)
    assert roles(life.assemble(1, 2)) == {0: "d2"}


def test_an_old_disk_beside_its_successors_successor_is_stale_not_a_split() -> None:
    """d1 failed, d2 took its place, d0 died: d1 never ran without another member."""
    life = Scenario("raid1", 2)
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
    life = Scenario(*shape)
    try:
        live(life, shape, random.Random(seed))
    finally:
        for disk in life.disks:
            disk.close()


def live(life: Scenario, shape: tuple[str, int], rng: random.Random) -> None:
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
