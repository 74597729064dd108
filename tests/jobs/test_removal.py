"""A member of a striped array leaves, and the others hold everything, while the array is in use."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing

from raidx_fuse.array.advice import action
from raidx_fuse.errors import BusyError, JobRunningError, RaidxError, Reason, UsageError
from raidx_fuse.format.create import shape
from raidx_fuse.format.shapes import leaving_roles
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.layouts.placements.rotated import RotatedLayout
from raidx_fuse.layouts.registry import make_layout
from raidx_fuse.members.base import Member
from tests.support.arrays import Rig, job_ended, jobs_ended
from tests.support.growing import ram_of
from tests.support.load import CHUNK, ended, eventually, opened, scrubbed, under_load
from tests.support.reasons import because
from tests.support.restriping import SmallRig, job_of, reach, restripe
from tests.support.spy import restarted


def rig_of(name: str, width: int, **options: Any) -> SmallRig:
    """Return a rig of *name* whose image takes all that one member less can hold."""
    rig = SmallRig(name, width, **options)
    if name in ("rdp", "evenodd"):
        rig.member_bytes = 10 << 20  # for a log that holds what moves at first
    regions, _ = shape(name, [rig.member_bytes] * width, CHUNK, rig.params, None)
    chunks = regions.data.length // CHUNK
    most = make_layout(name, width - 1, chunks, CHUNK, **rig.params).size_bytes
    rig.image_bytes = min(most, 600 * CHUNK)
    return rig


async def remove(rig: Rig, role: int, window_bytes: int = 6 * CHUNK) -> Any:
    """Begin to take out *role*; return the job, with small windows."""
    await rig.array.remove_disk(role)
    job = job_of(rig)
    job.window = window_bytes
    return job


async def gone(rig: Rig, job: Any, role: int) -> None:
    """Wait for the end of the removal of *role*; check array, members and content."""
    released: list[Member] = []
    rig.array.on_release.append(released.append)
    await job.finished.wait()
    assert released in ([rig.members[role]], [])
    del rig.members[role]
    rig.width -= 1
    await ended(rig, job)
    config = rig.array.member_set.config
    assert (config.width, config.params.get("restripe")) == (rig.width, None)
    uuids = [record.member_uuid for record in config.members if record.role >= 0]
    assert len(set(uuids)) == rig.width


STRIPED = [
    ("raid0", 3, 0, {}),
    ("raid4", 4, 3, {}),
    ("raid4", 4, 1, {}),
    ("raid5", 5, 0, {}),
    ("raid5", 4, 3, {}),
    ("rdp", 5, 2, {"prime": 5, "rotate": True}),
    ("evenodd", 5, 4, {"prime": 5}),
]


@pytest.mark.parametrize(("name", "width", "role", "params"), STRIPED)
async def test_any_member_leaves_under_load_and_the_rest_keeps_every_byte(
    name: str, width: int, role: int, params: dict[str, Any]
) -> None:
    rig = await opened(rig_of(name, width, params=params, slow=True), 0.8)
    paths = [member.path for member in rig.members]
    async with under_load(rig, 2):
        job = await remove(rig, role, 24 * CHUNK)
        await job.finished.wait()
    assert rig.array.context.journal.log_members.roles == tuple(range(len(paths) - 1))
    await gone(rig, job, role)
    del paths[role]
    config = rig.array.member_set.config
    assert [rig.array.membership.path_of(r) for r in config.members] == paths
    assert config.params == params
    if name != "raid0":
        await rig.array.fail_disk(min(role, rig.width - 1))
        await rig.compare()


async def test_the_bytes_are_those_of_growth_by_restripe() -> None:
    """All data is read once and written once, with a parity for three chunks; more in the log."""

    def moved_bytes(rig: Rig) -> int:
        queues = [queue for queue in rig.array.member_set.queues if queue is not None]
        return sum(queue.read_bytes + queue.write_bytes for queue in queues)

    rig = rig_of("raid5", 5)
    rig.member_bytes = 4 << 20
    rig.image_bytes = 3 * 900 * CHUNK
    await opened(rig, 1.0)
    await rig.array.context.journal.drain()
    before, size = moved_bytes(rig), rig.array.size_bytes
    job = await remove(rig, 1, 1 << 20)
    queue = rig.array.member_set.queues[1]
    await job.finished.wait()
    assert queue is not None
    left = queue.read_bytes + queue.write_bytes
    assert 1 + 4 / 3 <= (moved_bytes(rig) + left - before) / size < 2.7
    del rig.members[1]
    rig.width = 4


async def test_it_is_cancelled_and_goes_on_after_an_unmount() -> None:
    rig = await opened(rig_of("raid5", 4, slow=True), 1.0)
    before = rig.array.member_set.config
    job = await remove(rig, 1)
    await reach(job, job.total_bytes / 2)
    await rig.reopen()
    job = job_of(rig)
    assert leaving_roles(rig.array.member_set.config) == {1}
    job.cancel()
    await ended(rig, job, "cancelled")
    assert rig.array.size_bytes == len(rig.model)
    config = rig.array.member_set.config
    assert (config.width, config.params) == (before.width, before.params)
    assert [r.member_uuid for r in config.members] == [r.member_uuid for r in before.members]
    job = await remove(rig, 1)
    await reach(job, job.total_bytes / 2)
    await rig.reopen()
    await gone(rig, job_of(rig), 1)


async def test_a_lost_member_leaves_and_the_array_has_its_redundancy_back() -> None:
    rig = await opened(rig_of("raid5", 4), 1.0)
    array = rig.array
    await array.fail_disk(1)
    with pytest.raises(RaidxError, check=because(Reason.DEGRADED)):
        await array.remove_disk(2)
    job = await remove(rig, 1)
    assert "leaves when the restripe ends" in (action(array.status()) or "")
    await array.add_spare(rig.new_member())
    await job.finished.wait()
    assert len(array.member_set.spares) == 1, "no spare takes a role that is given up"
    del rig.members[1]
    rig.width -= 1
    assert array.status()["redundancy_left"] == 1
    await scrubbed(rig)
    await array.fail_disk(2)
    await rig.compare()


async def test_the_member_that_leaves_fails_on_the_way() -> None:
    rig = await opened(rig_of("raid5", 4, slow=True), 1.0)
    array = rig.array
    await array.add_spare(rig.new_member())
    job = await remove(rig, 0)
    await reach(job, job.total_bytes / 2)
    await array.fail_disk(0)
    await job_ended(job)
    del rig.members[0]
    rig.width -= 1
    await scrubbed(rig)


async def test_the_position_of_a_rebuild_that_failed_does_not_stop_the_next_start() -> None:
    """The leaving member failed while it was rebuilt over the stripes of both layouts."""
    rig = await opened(rig_of("raid5", 4, slow=True), 1.0)
    array = rig.array
    job = await remove(rig, 1)
    await array.fail_disk(1)
    await array.replace_disk(1, rig.new_member())
    (rebuild,) = (each for each in array.jobs.running() if isinstance(each, Rebuild))
    await eventually(lambda: rebuild.watermark > array.context.layout.stripes / 2, 3600, 0.001)
    await rebuild.checkpoint()
    await array.fail_disk(1)
    saved = array.member_set.config.jobs["rebuild:1"]["next_stripe"]
    await gone(rig, job, 1)
    assert rig.array.context.layout.stripes < saved
    assert "rebuild:1" not in rig.array.member_set.config.jobs


async def test_no_record_is_redone_on_a_member_that_moved_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await opened(rig_of("raid5", 4), 1.0)
    array = rig.array
    job = await remove(rig, 0, 24 * CHUNK)
    context, size = array.context, len(rig.model)
    drain, force = context.journal.drain, context.journal.force
    images: list[bytes] = []

    async def drain_and_write(*then: Any) -> None:
        await drain(*then)
        if not context.gate.is_closed and not images:
            data = random.Random(size).randbytes(9 * CHUNK)
            await rig.put(0, data)

    def killed_then(full: bool) -> None:
        if not full:
            images.extend(bytes(ram_of(member).memory) for member in rig.members)
        force(full)

    monkeypatch.setattr(context.journal, "drain", drain_and_write)
    monkeypatch.setattr(context.journal, "force", killed_then)
    await job.finished.wait()
    async with restarted(images) as again:
        assert again.member_set.config.width == 3
        assert bytes(await again.read(0, size)) == bytes(rig.model)
    del rig.members[0]
    rig.width = 3
    await rig.compare()


async def test_an_old_member_of_a_grown_array_leaves_if_the_growth_is_not_in_use() -> None:
    """Then only the generations in use move, and the array is as one that never grew."""
    rig = rig_of("raid5", 4)
    rig.image_bytes = 180 * CHUNK
    await opened(rig, 0.9)
    array = rig.array
    members = [rig.new_member(), rig.new_member()]
    await array.grow(members)
    rig.members += members
    rig.width += 2
    await jobs_ended(array)
    async with under_load(rig, 2):
        job = await remove(rig, 1, 24 * CHUNK)
        await reach(job, job.total_bytes / 2)
    job.cancel()
    await ended(rig, job, "cancelled")
    assert rig.array.context.layout.history == (4, 6)  # type: ignore[attr-defined]
    async with under_load(rig, 2):
        job = await remove(rig, 1, 24 * CHUNK)
        await job.finished.wait()
    await gone(rig, job, 1)
    assert type(rig.array.context.layout) is RotatedLayout
    assert rig.array.member_set.config.params == {}


async def test_what_cannot_leave_is_refused_with_the_next_step() -> None:
    upc = SmallRig("upc", 6)
    upc.member_bytes, upc.image_bytes = 24 << 20, 600 * CHUNK
    rig = await opened(upc, 0.5)
    words = r"upc does not exist for 5 members .*reshape ARRAY --layout rdp$"
    with pytest.raises(UsageError, match=words):
        await rig.array.remove_disk(0)
    await ended(rig, await restripe(rig, "rdp", 6, window_bytes=96 * CHUNK))
    await gone(rig, await remove(rig, 0, 96 * CHUNK), 0)
    rig = await opened(SmallRig("raid5", 3))
    words = "raid5 does not exist for 2 members .*--layout raid0 --lose-redundancy$"
    with pytest.raises(UsageError, match=words):
        await rig.array.remove_disk(0)
    rig = await opened(rig_of("raid5", 4), 1.0)
    errors: list[RaidxError] = []

    async def once() -> None:
        try:
            await rig.array.remove_disk(1)
        except BusyError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(once)
        nursery.start_soon(once)
    assert len(errors) == 1
    for again in (0, 1):
        with pytest.raises(JobRunningError):
            await rig.array.remove_disk(again)
    await gone(rig, job_of(rig), 1)


async def test_what_is_written_behind_the_end_of_a_narrower_array_stays_when_it_is_wide_again() -> (
    None
):
    """Its page of the written map is newer than the one that the wider array of before has left."""
    rig = SmallRig("raid5", 4)
    rig.member_bytes = 49 << 20
    rig.image_bytes = 600 * CHUNK
    await opened(rig)
    size, end = 16 * CHUNK, rig.array.context.layout.size_bytes
    for _ in range(3):
        await rig.array.write(end - size, bytes(size))
        await rig.array.discard(end - size, size)
    pages = rig.array.context.written.pages
    assert max(pages.generations) == 1, "the end has a page of its own"
    await gone(rig, await remove(rig, 2, 1 << 20), 2)
    await rig.reopen()
    member = rig.new_member()
    await rig.array.grow([member])
    rig.members.append(member)
    await jobs_ended(rig.array)
    data = random.Random(1).randbytes(size)
    await rig.array.write(end - size, data)
    await rig.array.flush()
    await rig.reopen()
    assert bytes(await rig.array.read(end - size, size)) == data


@pytest.mark.parametrize("role", [0, 2])
async def test_no_write_has_the_roles_of_afterwards_before_the_superblocks_do(role: int) -> None:
    """A record of it would be redone by a mount for which these roles are other members."""
    rig = await opened(rig_of("raid5", 5), 1.0)
    array, size = rig.array, len(rig.model)
    job = await remove(rig, role)
    update, written = array.member_set.update, rig.model[:]
    places = range(0, 15 * CHUNK, 5 * CHUNK)  # no stripe whole, and little of the log
    for at in places:
        written[at : at + CHUNK] = random.Random(at).randbytes(CHUNK)
    asked: list[int] = []
    flushed: list[int] = []

    async def write(at: int) -> None:
        await array.write(at, bytes(written[at : at + CHUNK]))
        await array.flush()
        flushed.append(at)

    async def watched(*given: Any, **options: Any) -> None:
        if isinstance(array.context.layout, RotatedLayout) and not asked:
            asked.append(len(rig.members))
            for at in places:
                nursery.start_soon(write, at)
            await trio.testing.wait_all_tasks_blocked()
            images = [bytes(ram_of(member).memory) for member in rig.members]
            async with restarted(images) as again:
                found = bytes(await again.read(0, size))
            for at in range(0, size, CHUNK):
                part = slice(at, at + CHUNK)
                before = () if at in flushed else (rig.model[part],)
                assert found[part] in (*before, written[part]), at // CHUNK
        await update(*given, **options)

    async with trio.open_nursery() as nursery:
        array.member_set.update = watched  # type: ignore[method-assign]
        await job.finished.wait()
    assert asked
    rig.model[:] = written
    del rig.members[role]
    rig.width -= 1
    await ended(rig, job)
