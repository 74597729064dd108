"""The admission of writes: the truth table of `route` and `must_mark`, and the states by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from raidx_fuse.engine.write.route import (
    Route,
    Shape,
    StripeState,
    logs_data_only,
    must_mark,
    route,
    whole_state_of,
)
from tests.support.arrays import Rig
from tests.support.load import opened

CHUNK = 4096
IN_PLACE, LOG, BYPASS = Route.IN_PLACE, Route.LOG, Route.BYPASS

# mode, has parity, in the log, whole, degraded, writes a first chunk, zeros relied on -> route;
# None stands for both values. Exactly one row fits each case.
TABLE = (
    (None, None, True, None, None, None, None, LOG),
    ("full", None, False, None, None, None, None, LOG),
    ("none", True, False, True, None, None, None, BYPASS),
    ("none", True, False, False, None, None, None, IN_PLACE),
    ("none", False, False, None, None, None, None, IN_PLACE),
    ("partial", True, False, False, None, None, None, LOG),
    ("partial", True, False, True, True, None, None, LOG),
    ("partial", True, False, True, False, False, None, BYPASS),
    ("partial", True, False, True, False, True, True, BYPASS),
    ("partial", True, False, True, False, True, False, LOG),
    ("partial", False, False, None, True, None, None, LOG),
    ("partial", False, False, None, False, False, None, IN_PLACE),
    ("partial", False, False, None, False, True, True, IN_PLACE),
    ("partial", False, False, None, False, True, False, LOG),
)
CASES = tuple(product(("partial", "full", "none"), *[(True, False)] * 6))


def answer(table: Sequence[tuple[Any, ...]], case: Sequence[object]) -> Any:
    """Return the last item of the one row of *table* that fits *case*; None fits every value."""
    rows = [
        row
        for row in table
        if all(want is None or want == have for want, have in zip(row[:-1], case, strict=True))
    ]
    assert len(rows) == 1, "the table has one row for each case"
    return rows[0][-1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_takes_the_route_of_its_row(case: tuple[object, ...]) -> None:
    expected = answer(TABLE, case)
    mode, has_parity, in_log, whole, degraded, first, reads_zero = case
    state = StripeState(
        7,
        str(mode),
        bool(has_parity),
        lost=0b10 if degraded else 0,
        unwritten=0b01 if first else 0b10,
        reads_zero=bool(reads_zero),
        in_log=bool(in_log),
    )
    assert route(state, 0b01, bool(whole)) is expected


# may follow, degraded, first write, unsettled, from the front, filling, large -> data only;
# None stands for both values. Exactly one row fits each case.
FOLLOWS = (
    (False, None, None, None, None, None, None, False),
    (True, True, None, None, None, None, None, False),
    (True, False, True, None, None, None, None, False),
    (True, False, False, True, None, None, None, True),
    (True, False, False, False, True, None, None, True),
    (True, False, False, False, False, True, None, False),
    (True, False, False, False, False, False, True, False),
    (True, False, False, False, False, False, False, True),
)


def test_data_alone_is_logged_where_its_row_says_so() -> None:
    for case in product((True, False), repeat=7):
        expected = answer(FOLLOWS, case)
        follow, degraded, first, unsettled, from_front, filling, large = case
        state = StripeState(
            7,
            "partial",
            has_parity=True,
            lost=0b10 if degraded else 0,
            unwritten=0b01 if first else 0b10,
            may_follow=follow,
            unsettled=unsettled,
            filling=filling,
        )
        assert logs_data_only(state, Shape(0b01, from_front, large)) is expected, case


def test_a_mark_is_needed_where_a_crash_leaves_work_for_a_resync() -> None:
    for mode, has_parity, first in product(("partial", "full", "none"), (True, False), (1, 0)):
        state = StripeState(0, mode, has_parity, unwritten=0b10 | first)
        assert must_mark(state, 0b01) == (has_parity or mode == "none" or bool(first))


async def test_a_snapshot_names_the_states_that_hold() -> None:
    rig = await opened(Rig("raid5", 4, chunk_bytes=CHUNK))
    array = rig.array
    context = array.context
    data = context.code.data_mask

    def names(stripe: int) -> list[str]:
        return whole_state_of(context, stripe).names(data)

    assert names(0) == ["unwritten"]
    await array.write(0, bytes(6 * CHUNK))  # two full stripes, past the log
    assert names(0) == ["in flight past the log"]
    await array.flush()
    await context.dirty_bitmap.clean_quiet(all_regions=True)
    assert names(0) == ["clean"]
    await array.write(100, b"part")
    assert names(0) == ["logged", "parity deferred"]
    await context.locks.acquire(0)
    await context.journal.settle([0])
    context.locks.release(0)
    assert names(0) == ["logged"]
    await context.locks.acquire(1)
    assert names(1) == ["locked"]
    context.locks.release(1)
    context.journal.overlay.freeze()
    assert "being checkpointed" in names(0)
    context.journal.overlay.frozen = {}
    await array.fail_disk(0)
    assert "degraded" in names(0)
