"""`explain --step`: the steps are those of the plan, in the order of the write path."""

from __future__ import annotations

import pytest

from raidx_fuse.answers import ExplainedStep
from raidx_fuse.array.array import Array
from raidx_fuse.engine import steps as words
from raidx_fuse.engine.steps import steps_of
from tests.engine.test_peek import CHUNK, half_written


def planned(array: Array, offset: int, length: int, *, write: bool) -> list[ExplainedStep]:
    """Return the steps of a request; they must read and write what its plan does."""
    plan = array.explain(offset, length, write)
    steps = steps_of(plan)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    bands = [band for stripe in plan["stripes"] for band in stripe["bands"]]
    for does, places in (
        ("read", [place for band in bands for place in band["reads"]]),
        ("write", [place for band in bands for place in band["writes"] if write]),
    ):
        cells = [cell for step in steps if step["does"] == does for cell in step["cells"]]
        assert cells == [place["cell"] for place in places]
    return steps


def kinds(steps: list[ExplainedStep]) -> list[str]:
    return [step["does"] for step in steps]


async def test_a_small_write_goes_through_the_log_and_its_parity_follows() -> None:
    _, array = await half_written()
    steps = planned(array, 0, 512, write=True)
    answered = ["lock", "log", "acknowledge", "flush"]
    assert kinds(steps) == [
        *(*answered, "read", "read", "xor", "log"),
        *("write", "write", "flush"),
    ]
    assert steps[0]["power"] == words.UNCHANGED
    assert steps[1]["power"] == words.TORN_LOG
    assert {step["power"] for step in steps[3:10]} == {words.REDONE}


async def test_without_a_log_the_write_hole_is_named() -> None:
    _, array = await half_written()
    await array.set("journal", "none")
    steps = planned(array, 0, 512, write=True)
    assert kinds(steps)[-5:] == ["mark", "write", "write", "acknowledge", "flush"]
    assert all(step["power"] == words.HOLE for step in steps if step["does"] == "write")


async def test_a_full_stripe_bypasses_the_log() -> None:
    _, array = await half_written()
    steps = planned(array, 0, 3 * CHUNK, write=True)
    assert "log" not in kinds(steps)
    assert "read" not in kinds(steps)
    assert all(step["power"] == words.WHOLE for step in steps if step["does"] == "write")


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("rdp", 6)])
async def test_a_degraded_read_locks_reads_and_xors(layout: str, width: int) -> None:
    _, array = await half_written(layout, width)
    assert kinds(planned(array, 0, 512, write=False)) == ["read", "acknowledge"]
    await array.fail_disk(0)
    found = kinds(planned(array, 0, 512, write=False))
    assert (found[0], found[-2:]) == ("lock", ["xor", "acknowledge"])
    assert set(found[1:-2]) == {"read"}


async def test_a_chunk_that_was_never_written_is_not_read() -> None:
    _, array = await half_written()
    (first, _) = planned(array, array.size_bytes - 512, 512, write=False)
    assert "zeros" in first["what"]
