"""The array against a bytearray: reads, writes, failures, replacements, rebuilds, remounts.

Every example is one seed for the geometry and a list of steps; all of it runs in virtual time, so
a failing example replays exactly. The oracle is "assumed to be perfect": one bytearray.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import Rig

EXAMPLES = int(os.environ.get("RAIDX_EXAMPLES", "60"))
STEPS = 45
ROWS = {"rdp": 4, "upc": 2}  # of a stripe

layouts = st.sampled_from(
    [
        ("raid0", 2),
        ("raid0", 3),
        ("raid1", 2),
        ("raid1", 3),
        ("raid4", 3),
        ("raid4", 5),
        ("raid5", 3),
        ("raid5", 4),
        ("raid5", 6),
        ("rdp", 4),
        ("upc", 4),
    ]
)
chunks = st.sampled_from([4096, 8192, 16384])
fraction = st.floats(0, 1, exclude_max=True)
steps = st.one_of(
    st.tuples(st.just("write"), fraction, fraction, st.integers(0, 2**32)),
    st.tuples(st.just("write"), fraction, fraction, st.integers(0, 2**32)),
    st.tuples(st.just("sectors"), fraction, fraction, st.integers(0, 2**32)),
    st.tuples(st.just("discard"), fraction, fraction, st.sampled_from([1, 512, 4096])),
    st.tuples(st.just("read"), fraction, fraction),
    st.tuples(st.just("parallel"), fraction, fraction, st.integers(0, 2**32)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("fail"), st.integers(0, 7)),
    st.tuples(st.just("eio"), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("replace")),
    st.tuples(st.just("spare")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("scrub")),
    st.tuples(st.just("remount"), st.booleans()),
    st.tuples(st.just("cache"), st.sampled_from([0, 4096, 40960, 1 << 20])),
    st.tuples(st.just("policy"), st.sampled_from(["traditional", "rmw", "rcw", "bpu"])),
)


async def play(
    layout: str, width: int, chunk: int, slow: bool, zeroed: bool, script: list[tuple[object, ...]]
) -> None:
    rows = ROWS.get(layout, 1)
    rig = Rig(layout, width, chunk_bytes=chunk, stripes=24, rows=rows, slow=slow, reads_zero=zeroed)
    await rig.play(script)


@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    layouts,
    chunks,
    st.booleans(),
    st.booleans(),
    st.lists(steps, min_size=STEPS - 10, max_size=STEPS),
)
def test_array_equals_a_bytearray(
    layout: tuple[str, int],
    chunk: int,
    slow: bool,
    zeroed: bool,
    script: list[tuple[object, ...]],
) -> None:
    run(play, layout[0], layout[1], chunk, slow, zeroed, script)


def test_the_machine_notices_a_wrong_byte() -> None:
    """A model test that cannot fail proves nothing: damage a member and see it caught."""

    async def damaged() -> None:
        rig = Rig("raid0", 2, chunk_bytes=4096, stripes=8)
        await rig.play([("write", 0.0, 1.0, 7)], damage=True)

    with pytest.raises(AssertionError, match="differs"):
        run(damaged)
