"""Which members get the records of the log: they take turns, and slow ones have none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raidx_fuse.journal.ring import TURN_BYTES, LogMembers
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import block_of


def members_of(services_s: list[float | None], tolerance: int) -> tuple[LogMembers, Any]:
    """Return the log members of an array whose members write so fast; None: the member is lost."""
    queues = [None if s is None else SimpleNamespace(write_service_s=s) for s in services_s]
    code = SimpleNamespace(tolerance=tolerance)
    member_set: Any = SimpleNamespace(
        queues=queues, readable=queues, watermarks={}, layout=SimpleNamespace(code=code)
    )
    log_members = LogMembers(member_set)
    log_members.choose()
    return log_members, member_set


@pytest.mark.parametrize(("width", "tolerance"), [(1, 0), (2, 1), (3, 0), (4, 1), (5, 2), (3, 2)])
def test_every_member_has_as_many_records_as_every_other(width: int, tolerance: int) -> None:
    log_members, _ = members_of([0.0] * width, tolerance)
    held = [0] * width
    for turn in range(width):
        roles = {log_members.at(turn * TURN_BYTES), log_members.at((turn + 1) * TURN_BYTES - 512)}
        (roles_of_turn,) = roles
        assert len(set(roles_of_turn)) == tolerance + 1
        for role in roles_of_turn:
            held[role] += 1
    assert held == [tolerance + 1] * width


def test_slow_and_lost_members_have_no_turn_where_others_suffice() -> None:
    fast, slow = 1e-4, 8e-3
    log_members, member_set = members_of([slow, fast, fast, slow, fast], 1)
    assert {role for turn in log_members.turns for role in turn} == set(range(5))
    log_members.prefer_fast()
    assert {role for turn in log_members.turns for role in turn} == {1, 2, 4}
    member_set.queues[2] = None
    log_members.prefer_fast()
    assert log_members.turns == ((1, 4), (4, 1))
    member_set.queues[4] = None  # one fast member is not enough: the slow ones are not slow then
    log_members.prefer_fast()
    assert {role for turn in log_members.turns for role in turn} == {0, 1, 3}
    assert log_members.roles == (0, 1, 2, 3, 4), "all of them are still believed"
    member_set.queues[:] = [SimpleNamespace(write_service_s=fast) for _ in range(5)]
    log_members.prefer_fast()
    assert len(log_members.turns) == 5


def test_too_few_members_keep_their_turns_and_a_lost_log_has_none() -> None:
    log_members, member_set = members_of([0.0, 0.0], 1)
    member_set.queues[0] = None
    log_members.prefer_fast()
    assert log_members.turns == ((0, 1), (1, 0))
    log_members.take(())
    log_members.prefer_fast()
    assert log_members.at(0) == ()


def test_small_writes_to_unlike_disks_wait_for_the_fast_ones_only() -> None:
    """Bursts that fit into the log, on two disks and three SSDs."""

    def bursts(size_bytes: int) -> Any:
        writes = [
            (1.0 + 3 * n // 40, True, 4096 * (n * 37 % (size_bytes >> 12)), 4096)
            for n in range(400)
        ]
        return [block_of(iter(writes))]

    turns: list[Any] = []

    def report(array: Any) -> dict[str, Any]:
        turns.extend(array.context.journal.log_members.turns)
        return {}

    simulate(
        Experiment(
            layout="raid5",
            members=("hdd", "ssd", "ssd", "hdd", "ssd"),
            member_bytes=64 << 20,
            load=bursts,
            report=report,
        )
    )
    assert {role for turn in turns for role in turn} == {1, 2, 4}
