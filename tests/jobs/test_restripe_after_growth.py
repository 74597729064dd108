"""Restripes of arrays that have grown in place, and of what such a restripe made."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.engine.gate import Gate
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.layouts.placements.numbering import OrderedLayout
from raidx_fuse.layouts.plugged import MADE_BY
from tests.support.load import CHUNK, ended, opened, under_load
from tests.support.reasons import because
from tests.support.restriping import SmallRig, reach_share, restripe

pytestmark = pytest.mark.usefixtures("own_placement")
GROWN: dict[str, tuple[str, int, dict[str, Any]]] = {
    "raid5": ("raid5", 5, {"history": [4, 5], "rules": [[2, 1]]}),
    "plain": ("raid4", 6, {"history": [4, 5, 6]}),
    "raid0": ("raid0", 4, {"history": [2, 4], "rules": [[1, 0]]}),
    "small": ("raid5", 4, {"history": [3, 4], "rules": [[3, 0]]}),
    "rdp": ("rdp", 5, {"history": [4, 5], "rules": [[1, 0]], "prime": 5, "rotate": True}),
}


def rig_of(grown: str, **options: Any) -> SmallRig:
    """Return a rig of an array that has grown."""
    name, width, params = GROWN[grown]
    rig = SmallRig(name, width, params=params, **options)
    if name == "rdp":
        rig.member_bytes = 2 << 20
    return rig


@pytest.mark.parametrize(
    ("grown", "new", "after"),
    [
        ("raid5", "raid5", 6),
        ("raid5", "raid0", 5),
        ("small", "rdp", 6),
        ("plain", "raid5", 6),
        ("raid0", "raid5", 5),
        ("rdp", "raid5", 5),
        ("raid5", "declustered", 7),  # of examples/own-code
    ],
)
async def test_a_restripe_of_a_grown_array_keeps_every_byte(
    grown: str, new: str, after: int
) -> None:
    rig = rig_of(grown, slow=grown != "plain")
    if new in ("rdp", "declustered"):
        rig.member_bytes = 2 << 20
    windows = 6 if rig.member_bytes < 2 << 20 else 24
    await opened(rig, 0.7)
    async with under_load(rig, 2):
        job = await restripe(rig, new, after, window_bytes=windows * CHUNK)
        await job.finished.wait()
    await ended(rig, job)
    array = rig.array
    assert isinstance(array.context.layout, OrderedLayout)
    assert set(array.member_set.config.params) - {MADE_BY} == {"order"}
    data = random.Random(3).randbytes(len(rig.model))
    await rig.put(0, data)
    await rig.compare()
    if array.context.code.tolerance:
        await array.fail_disk(1)
        await rig.compare()


async def test_the_result_is_restriped_once_more_and_grows_only_so() -> None:
    rig = await opened(rig_of("raid5"), 0.8)
    await ended(rig, await restripe(rig, "raid5", 6))
    order = rig.array.member_set.config.params
    with pytest.raises(UsageError, match=r"does not grow in place.*--method restripe"):
        await rig.array.grow([rig.new_member()])
    with pytest.raises(UsageError, check=because(Reason.ALREADY)):
        await rig.array.restripe([], None, {})
    await rig.fill(0.5, seed=1)
    await ended(rig, await restripe(rig, "raid5", 7))
    assert rig.array.member_set.config.params == order
    await rig.fill(0.5, seed=2)
    await rig.compare()


@pytest.mark.parametrize(
    ("grown", "new", "after"), [("raid5", "raid5", 6), ("plain", "raid0", 6), ("raid0", "raid5", 5)]
)
async def test_a_discard_that_waits_while_a_restripe_is_taken_back_drops_what_it_covers(
    grown: str, new: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked up stripes of the union: the grown shape has others of these numbers, or none.

    One that it has not may still name chunks there, as if the shape went on behind its end.
    """
    rig = await opened(rig_of(grown, slow=True), 1.0)
    array, width = rig.array, rig.width
    job = await restripe(rig, new, after)
    await reach_share(job, 0.5)
    gate, turn = array.context.gate, Gate._set
    size = len(rig.model) // 9
    parts = range(size, len(rig.model) - size, 3 * size)

    def turned(one: Gate, *, closed: bool) -> None:
        turn(one, closed=closed)
        if one is gate and closed:
            for at in parts:
                nursery.start_soon(array.discard, at, size)
                rig.model[at : at + size] = bytes(size)

    monkeypatch.setattr(Gate, "_set", turned)
    async with trio.open_nursery() as nursery:
        job.cancel()
        await job.finished.wait()
    monkeypatch.undo()
    del rig.members[width:]
    await ended(rig, job, "cancelled")
