"""The batches of a growth: several are copied at a time, and the position passes them in order."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.format.create import create_array
from raidx_fuse.jobs.grow.copy import Copier, Load
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.lab.experiments.modelled import BlankMember, assume_written
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import job_ended
from tests.support.growing import SmallRig, grow
from tests.support.load import eventually, opened

CHUNK_BYTES = 64 << 10
MEMBER_BYTES = 112 << 20


async def bandwidth_share(layout: str, added: int) -> float:
    """Grow four full disks by *added*; return the share of a new disk's bandwidth that it takes."""
    model = make_model("ssd")

    def disk(number: int) -> ModelMember:
        return ModelMember(BlankMember(MEMBER_BYTES, name=f"disk{number}"), model, seed=number)

    members = [disk(number) for number in range(4)]
    await create_array(
        members, layout, name="speed", now_s=0, chunk_bytes=CHUNK_BYTES, overwrite_signature=True
    )
    async with open_array(members) as array:
        assume_written(array)
        array.grow_operation.set_granule(16)  # as in a larger array
        start_s = trio.current_time()
        await array.grow([disk(4 + number) for number in range(added)])
        (job,) = (job for job in array.jobs.running() if isinstance(job, Grow))
        await job_ended(job)
        moved = job.done_bytes / added
        return moved / (model.write_mb_s * 1e6) / (trio.current_time() - start_s)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ("hdd hdd hdd hdd", 64),
        ("ssd ssd ssd ssd", 4),
        ("ssd ssd ssd hdd", 64),
        ("ram ssd ssd ssd", 16),
        ("ram hdd ssd ssd", 64),
    ],
)
async def test_a_granule_is_long_on_rotating_disks_and_short_on_others(
    names: str, rows: int
) -> None:
    members = [
        ModelMember(BlankMember(MEMBER_BYTES << 1, name=f"d{n}"), make_model(name), seed=n)
        for n, name in enumerate(names.split())
    ]
    await create_array(
        members, "raid5", name="g", now_s=0, chunk_bytes=4096, overwrite_signature=True
    )
    async with open_array(members) as array:
        layout = array.grow_operation.plan(1).layout
        assert layout.mapping.rules[-1] is not None
        assert layout.mapping.rules[-1][0] == rows


async def test_a_window_that_began_in_an_idle_time_ends_when_users_ask() -> None:
    """A read waits for no lock, so it would compete with all batches of the window."""
    rig = await opened(SmallRig("raid5", 4, slow=True), 1.0)
    await trio.sleep(10)  # idle
    job = await grow(rig, 2)
    job.window = 4
    await eventually(lambda: job.layout.migrated > 0)
    await rig.array.read(0, 100)
    at = job.layout.migrated
    held = rig.array.context.locks.held
    await eventually(lambda: not held)
    assert job.layout.stripes >= 100
    assert job.layout.migrated - at < 20, "the batches in flight, and no more"
    await job.finished.wait()
    await rig.compare()


@pytest.mark.parametrize(("layout", "added"), [("raid4", 2), ("raid5", 2), ("raid5", 1)])
def test_all_new_disks_write_all_the_time(layout: str, added: int) -> None:
    """While some granules move to one of two new disks only, others keep the other one busy."""
    assert run(bandwidth_share, layout, added, seed=1) > 0.85


@pytest.mark.parametrize("back", [False, True])
async def test_the_position_passes_no_batch_before_it_and_all_earlier_ones_are_written(
    back: bool,
) -> None:
    rig = await opened(SmallRig(), 1.0)
    chance = random.Random(2)
    written: set[tuple[bool, int]] = set()
    half = trio.Event()
    under_way: list[Load] = []
    overtaken = 0
    job = await grow(rig, 2, windows=2)
    layout = job.layout
    write, migrate_to = Copier.write, ArrayContext.migrate_to

    async def slow_write(copier: Copier, load: Load) -> None:
        nonlocal overtaken
        under_way.append(load)
        await trio.sleep(chance.random())
        await write(copier, load)
        written.update((copier.back, stripe) for stripe in load.stripes)
        overtaken += under_way[0] is not load
        under_way.remove(load)

    def checked(context: ArrayContext, stripe: Stripe) -> None:
        passed, _ = job._live(*sorted((stripe, layout.migrated)))
        assert {(job.back, stripe) for stripe in passed} <= written
        migrate_to(context, stripe)
        if stripe > layout.stripes // 2:
            half.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Copier, "write", slow_write)
        patch.setattr(ArrayContext, "migrate_to", checked)
        if back:
            await half.wait()
            job.cancel()
        await job_ended(job, "cancelled" if back else "done")
    assert overtaken
    await rig.compare()
