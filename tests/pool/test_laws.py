"""Every law is broken on purpose: what does so fails, an event says it, and the array goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel

from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import LOOK_S, Watch
from raidx_fuse.engine.changed_regions import ChangedRegions
from raidx_fuse.engine.growth_position import GrowthPosition
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.engine.write.route import Route
from raidx_fuse.errors import ArrayFailedError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import StoredSums, reassigned
from raidx_fuse.format.configuration.volumes import Extent
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.journal.ring import Ring
from raidx_fuse.lab.crash.player import through_door
from raidx_fuse.laws import Law, LawError
from raidx_fuse.layouts.numbers import Chunk, Role, Stripe
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.pool import array_volumes
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.transfer import with_record
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO
from raidx_fuse.store.queue import FLUSH, CountdownLatch, Operation
from raidx_fuse.store.sum_memory import ENTRIES, SumMemory
from raidx_fuse.store.sums import Sums
from tests.support import two_arrays
from tests.support.arrays import jobs_ended
from tests.support.growing import grow
from tests.support.load import opened
from tests.support.spy import SpyRig, locked, noise, spied
from tests.support.two_arrays import move_of, slow_move

CHUNK = 4096

Patch = pytest.MonkeyPatch
Scene = Callable[[SpyRig, Patch], Awaitable[None]]

SCENES: dict[Law, tuple[Scene, str, int]] = {}


def breaks(law: Law, layout: str = "raid5", width: int = 4) -> Callable[[Scene], Scene]:
    """Note a scene that would break *law* on an array that has content, and an empty log."""

    def note(scene: Scene) -> Scene:
        SCENES[law] = scene, layout, width
        return scene

    return note


async def nothing(*_args: Any, **_options: Any) -> None:
    """Do nothing, instead of what has a bug."""


async def refused(law: Law, request: Awaitable[Any]) -> None:
    with pytest.raises(LawError) as caught:
        await request
    assert caught.value.law is law


@pytest.mark.parametrize("law", [law for law in Law if law not in (Law.WINDOW, Law.WATERMARK)])
async def test_who_would_break_a_law_is_refused_and_the_array_goes_on(law: Law) -> None:
    scene, layout, width = SCENES[law]
    told: list[Event] = []

    rig = SpyRig(layout, width, chunk_bytes=CHUNK)
    if law is Law.SAVED:
        rig.member_bytes = 640 << 10
    await opened(rig)
    array = rig.array
    await rig.put(0, noise(len(rig.model) // 2))
    await rig.in_place()
    watch = Watch(told.append, "/mnt", lambda: 0)
    watch.begin(array)
    array.nursery.start_soon(watch.run)
    with pytest.MonkeyPatch.context() as patch:
        await scene(rig, patch)
    said = array.member_set.laws.said
    assert said
    assert all(text.endswith(law.value) for text in said)
    await trio.sleep(1.01 * LOOK_S)
    messages = [event.message for event in told if event.event == "LawBroken"]
    assert len(messages) == len(said)
    assert said[0] in messages[0]
    await rig.put(5 * CHUNK, noise(3 * CHUNK, 7))
    await array.flush()
    assert await array.read(0, len(rig.model)) == rig.model


def test_every_law_is_broken_here() -> None:
    assert SCENES.keys() | {Law.WINDOW, Law.WATERMARK} == set(Law)


async def test_handlers_that_share_a_record_are_told_that_it_is_refused(monkeypatch: Patch) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    array = rig.array
    await rig.put(0, noise(len(rig.model)))
    await rig.in_place()
    laws = array.member_set.laws

    def no_room(_ring: Ring, size: int) -> tuple[int, int, int]:
        raise laws.broken(Law.ROOM, f"{size} bytes")

    monkeypatch.setattr(Ring, "take", no_room)
    told: list[int] = []

    async def handle(at: int) -> None:
        with pytest.raises(LawError):
            await array.write(at * CHUNK + 512, noise(512, at))
        told.append(at)

    await through_door([handle(at) for at in range(3)], array.context.journal.deferral)
    assert sorted(told) == [0, 1, 2]
    monkeypatch.undo()
    await rig.put(0, noise(3 * CHUNK, 5))
    await rig.in_place()
    assert await array.read(0, len(rig.model)) == rig.model


async def test_a_law_that_a_background_task_would_break_ends_no_array(monkeypatch: Patch) -> None:
    pool = await two_arrays.mounted(await two_arrays.created())
    volume = await two_arrays.make(pool)
    other = await two_arrays.make(pool, "slow", "other")
    before = await two_arrays.content(other)
    array = pool.array("fast").array
    laws, member_set = array.member_set.laws, array.member_set
    tried: Counter[str] = Counter()

    def breaking(name: str) -> Callable[..., Awaitable[None]]:
        async def refuse(*_args: Any, **_options: Any) -> None:
            tried[name] += 1
            raise laws.broken(Law.LOCKED, name)

        return refuse

    for owner, name in (
        (array.context.journal, "place"),
        (array.context.journal, "settle"),
        (array.context.dirty_bitmap, "clean_quiet"),
        (array.lost_list, "save"),
        (array, "discard"),
        (member_set, "update"),
    ):
        monkeypatch.setattr(owner, name, breaking(name))
    array.context.bad_chunks.add(Chunk(1))
    array.member_set.unreadable.add(Role(0), array.context.member_set.data_offset // CHUNK)
    with pytest.raises(LawError):
        await pool.array("fast").delete(volume, lose_data=True)
    pool.array("fast").wiper.ask()
    scrub = await array.start_scrub(repair=False)
    await trio.sleep(7200)
    assert tried.keys() >= {"place", "settle", "clean_quiet", "save", "update"}
    assert array.jobs.list()[-1]["id"] == scrub
    assert "no stripe changes but under its lock" in str(array.jobs.list()[-1]["error"])
    monkeypatch.undo()
    array.context.bad_chunks.discard(Chunk(1))
    await trio.sleep(60)
    await volume.write(0, noise(CHUNK, 5))
    await volume.flush()
    assert await volume.read(0, CHUNK) == noise(CHUNK, 5)
    assert await two_arrays.content(other) == before


# -- requests and volumes --------------------------------------------------------------------------


@breaks(Law.GATE)
async def change_the_shape_while_requests_may_come(rig: SpyRig, _patch: Patch) -> None:
    with pytest.raises(LawError):
        rig.array.context.end_growth()


@breaks(Law.PUBLISHED)
async def acknowledge_before_the_superblocks_have_it(rig: SpyRig, patch: Patch) -> None:
    array, member_set = rig.array, rig.array.member_set
    requests: list[Callable[[], Awaitable[None]]] = [
        lambda: array.write(0, bytes(rig.model[:512])),
        lambda: array.discard(20 * CHUNK, CHUNK),
        array.flush,
    ]
    for request in requests:
        patch.setattr(member_set, "published", nothing)
        patch.setattr(member_set, "unpublished", True)
        member_set.laws.said.clear()
        await refused(Law.PUBLISHED, request())
        patch.undo()
    rig.model[20 * CHUNK : 21 * CHUNK] = bytes(CHUNK)


@breaks(Law.DISCARD)
async def discard_what_the_volume_has_lost(rig: SpyRig, _patch: Patch) -> None:
    volumes = ArrayVolumes(rig.array)
    (volume,) = volumes.volumes
    await volumes.resize(volume, 16 * CHUNK, lose_data=True)
    record = volumes.table().find(volume.uuid)
    assert record is not None
    less = replace(record, size_bytes=8 * CHUNK, extents=(Extent(0, 8 * CHUNK),))
    await volumes.change(lambda table: with_record(table, less))
    await refused(Law.DISCARD, volume.discard(8 * CHUNK, CHUNK))


@breaks(Law.RANGES)
async def give_a_place_to_two_volumes(rig: SpyRig, patch: Patch) -> None:
    volumes = ArrayVolumes(rig.array)
    (volume,) = volumes.volumes
    await volumes.resize(volume, len(rig.model) // CHUNK // 2 * CHUNK, lose_data=True)
    patch.setattr(array_volumes, "allocate", lambda *_: (Extent(0, CHUNK),))
    await refused(Law.RANGES, volumes.create("other", CHUNK))
    assert [one.name for one in volumes.volumes] == [volume.name]


@pytest.mark.parametrize("law", [Law.WINDOW, Law.WATERMARK])
async def test_a_move_that_would_break_a_law_is_refused(law: Law) -> None:
    pool = await two_arrays.mounted(await two_arrays.created())
    volume = await two_arrays.make(pool)
    before = await two_arrays.content(volume)
    await slow_move(pool)
    source, _ = pool.find("mail")
    job = move_of(source)
    transfer = pool.transfers[volume.uuid]
    for _ in range(100):
        await trio.sleep(0.1)
        if transfer.position > transfer.saved:
            break
    job.pause()
    await trio.sleep(1)
    if law is Law.WINDOW:
        with pytest.raises(LawError) as caught:
            transfer.store(transfer.size - CHUNK, bytes(CHUNK))
        assert caught.value.law is law
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transfer, "limit", transfer.saved)
            await refused(law, transfer.save())
    assert len(transfer.target.array.member_set.laws.said) == 1
    job.resume()
    await two_arrays.ended(pool)
    assert await two_arrays.content(volume) == before


# -- members ---------------------------------------------------------------------------------------


@breaks(Law.SIZE)
async def write_beyond_the_end_of_a_member(rig: SpyRig, _patch: Patch) -> None:
    member_set = rig.array.member_set
    end = rig.members[1].size_bytes
    for request in (
        member_set.write([(Role(1), end - 512, [bytes(1024)], 1024)]),
        member_set.punch(Role(1), end - 512, 1024),
    ):
        await refused(Law.SIZE, request)
    assert not any(state for state in (rig.members[1].inner.view(end - 512, 512) or b""))


@breaks(Law.WHOLE)
async def write_a_part_of_a_page_with_checksums(rig: SpyRig, _patch: Patch) -> None:
    member_set = rig.array.member_set
    regions = member_set.config.regions
    at = regions.data.offset
    before = await member_set.read_home(Role(1), at, PAGE_BYTES)
    stored = reassigned(StoredSums(algorithm=1, copies=1, seed=1), [None] * member_set.config.width)
    sums = Sums(member_set, replace(regions, sums=regions.log), stored)
    sums.tables.begin_empty()
    request = (Role(1), at + 512, [bytes(512)], 512)
    await refused(Law.WHOLE, sums.write([request], background=False))
    assert await member_set.read_home(Role(1), at, PAGE_BYTES) == before


@breaks(Law.LOADED)
async def ask_for_a_checksum_that_is_not_in_memory(rig: SpyRig, _patch: Patch) -> None:
    memory = SumMemory(rig.array.member_set.laws)
    memory.take([None], 3)
    role, pages = Role(0), np.arange(ENTRIES - 1, ENTRIES + 1)
    memory.bring(role, 0, np.ones(ENTRIES, np.uint32))
    assert memory.known_one(role, 0) == 1
    for ask in (
        partial(memory.known, role, ENTRIES - 1, ENTRIES + 1),
        partial(memory.known_at, role, pages),
        partial(memory.known_one, role, ENTRIES),
        partial(memory.put_one, role, ENTRIES, 1),
        partial(memory.put, role, 0, 1, 3 * ENTRIES),
        partial(memory.put_at, role, pages, np.ones(2, np.uint32)),
        partial(memory.begin_past, role, pages),
        partial(memory.have_sums, role, np.arange(2)),
    ):
        with pytest.raises(LawError, match=Law.LOADED.value):
            ask()
    assert memory.changes == [[]]


@breaks(Law.READ_ONLY)
async def write_to_an_array_that_is_read_only(rig: SpyRig, patch: Patch) -> None:
    await rig.array.set("journal", "none")
    patch.setattr(rig.array.member_set, "read_only", True)
    await refused(Law.READ_ONLY, rig.array.write(100, bytes(2 * CHUNK)))
    patch.undo()


class Twice(Operation):
    """It ends, and its queue ends it once more."""

    async def perform(self, now_s: float) -> None:
        await super().perform(now_s)
        self.end(None)


@breaks(Law.ONCE)
async def end_an_operation_twice(rig: SpyRig, _patch: Patch) -> None:
    queue = rig.array.member_set.queues[0]
    assert queue is not None
    latch = CountdownLatch(1)
    queue.submit(Twice(queue, FLUSH, 0, (), 0), latch)
    await latch.wait()
    await trio.lowlevel.checkpoint()


@breaks(Law.REACHED)
async def write_a_superblock_to_a_member_that_is_excluded(rig: SpyRig, _patch: Patch) -> None:
    member_set = rig.array.member_set
    before = member_set.config

    def excluded(config: ArrayConfig) -> ArrayConfig:
        return config.with_record(replace(config.record(Role(1)), state="failed"))

    with pytest.raises(ArrayFailedError):
        await member_set.update(excluded)
    member_set.change(lambda _config: before)
    member_set.publish_soon()


@breaks(Law.EVENTS)
async def go_back_to_an_older_configuration(rig: SpyRig, _patch: Patch) -> None:
    member_set = rig.array.member_set
    for _ in range(5):
        await member_set.update(lambda config: config)
    events = member_set.config.events
    with pytest.raises(ArrayFailedError):
        await member_set.update(lambda config: replace(config, events=events - 3))
    member_set.change(lambda config: replace(config, events=events))
    member_set.publish_soon()


# -- stripes ---------------------------------------------------------------------------------------


@breaks(Law.NOTED)
async def place_what_is_not_noted(rig: SpyRig, patch: Patch) -> None:
    await rig.array.context.dirty_bitmap.clean_quiet(all_regions=True)
    await rig.array.fail_disk(1)
    patch.setattr(ChangedRegions, "note", lambda _self, _stripes: None)
    await rig.put(3 * CHUNK, noise(5 * CHUNK, 3))
    await refused(Law.NOTED, rig.array.context.journal.place())
    patch.undo()
    context = rig.array.context
    context.changes.note(list(context.journal.ring.stripes))


@breaks(Law.LOCKED)
async def change_a_stripe_without_its_lock(rig: SpyRig, _patch: Patch) -> None:
    journal = rig.array.context.journal
    await rig.put(0, noise(512, 3))
    with locked(rig.array.context, 1):
        for request in (
            journal.commit([Stripe(1), Stripe(2)], [], []),
            journal.commit_data([(Stripe(2), [], [])]),
            journal.settle([Stripe(2)]),
        ):
            await refused(Law.LOCKED, request)
        with pytest.raises(LawError):
            async with rig.array.context.cells.marked([Stripe(2)]):
                pass


@breaks(Law.ORDER)
async def take_locks_in_falling_order(rig: SpyRig, _patch: Patch) -> None:
    locks = rig.array.context.locks
    await refused(Law.ORDER, locks.acquire_all([Stripe(5), Stripe(3)]))
    assert not locks.held


@breaks(Law.MARKED)
async def clear_a_mark_under_a_write(rig: SpyRig, patch: Patch) -> None:
    dirty, member_set = rig.array.context.dirty_bitmap, rig.array.member_set
    flush = member_set.flush
    await dirty.enter([Stripe(0)])
    dirty.leave([Stripe(0)])

    async def write_meanwhile() -> None:
        await flush()
        patch.setitem(vars(dirty)["_inflight"], 0, 1)

    patch.setattr(dirty, "_flush", write_meanwhile)
    await refused(Law.MARKED, dirty.clean_quiet(all_regions=True))
    assert list(dirty.stripes_on_disk())


@breaks(Law.UNMARKED)
async def reshape_a_dirty_bitmap_with_marks(rig: SpyRig, _patch: Patch) -> None:
    dirty = rig.array.context.dirty_bitmap
    await dirty.enter([Stripe(0)])
    with pytest.raises(LawError):
        dirty.require_idle()
    dirty.leave([Stripe(0)])


# -- the log ---------------------------------------------------------------------------------------


@breaks(Law.BYPASS)
async def pass_by_a_record_that_may_be_redone(rig: SpyRig, patch: Patch) -> None:
    await rig.put(100, noise(512, 3))
    patch.setattr("raidx_fuse.engine.write.write.route", lambda *_: Route.IN_PLACE)
    await refused(Law.BYPASS, rig.array.write(100, bytes(CHUNK)))


@breaks(Law.SETTLED)
async def log_parity_before_that_of_older_data(rig: SpyRig, _patch: Patch) -> None:
    journal = rig.array.context.journal
    await rig.put(100, noise(512, 3))
    assert Stripe(0) in journal.unsettled
    with locked(rig.array.context, 0):
        await refused(Law.SETTLED, journal.commit([Stripe(0)], [], []))


@breaks(Law.ROLES)
async def take_a_role_under_a_record(rig: SpyRig, patch: Patch) -> None:
    member_set, journal = rig.array.member_set, rig.array.context.journal
    write, write_now = member_set.write, journal.write_now

    def put_off(offset: int, record: bytes) -> list[MemberIO]:
        assert not write_now(offset, record)
        return [(role, offset, [record], len(record)) for role in journal.log_members.at(offset)]

    async def take_meanwhile(requests: Sequence[MemberIO], **options: Any) -> None:
        await write(requests, **options)
        member_set.note_role_taken()

    patch.setattr(journal, "write_now", put_off)
    patch.setattr(member_set, "write", take_meanwhile)
    role, place = rig.array.context.position(Stripe(0), 0)
    with locked(rig.array.context, 0):
        record = journal.commit([Stripe(0)], [(role, place, [bytes(CHUNK)], CHUNK)], [])
        await refused(Law.ROLES, record)
    assert journal.torn
    patch.undo()


@breaks(Law.ROOM, "raid1", 2)
async def fill_the_log_beyond_its_end(rig: SpyRig, patch: Patch) -> None:
    patch.setattr(Ring, "has_room", lambda *_: True)
    patch.setattr(rig.array.context.journal, "place", nothing)

    async def fill() -> None:
        for number in range(rig.array.context.journal.capacity // 2048 + 1):
            await rig.put(number % 8 * CHUNK + 512, noise(2048, number))

    await refused(Law.ROOM, fill())


@breaks(Law.TAIL)
async def move_the_tail_behind_the_end(rig: SpyRig, _patch: Patch) -> None:
    ring = rig.array.context.journal.ring
    await rig.put(100, noise(512, 3))
    sequence, position, mark = ring.placed_tail
    for tail in ((sequence + 2, ring.position, mark), (sequence - 1, position, mark)):
        await refused(Law.TAIL, ring.move_tail(tail))
    assert ring.open


@breaks(Law.FROZEN)
async def begin_two_checkpoints(rig: SpyRig, _patch: Patch) -> None:
    journal = rig.array.context.journal
    await rig.put(100, noise(512, 3))
    journal.overlay.freeze()
    await rig.put(200, noise(512, 4))
    await refused(Law.FROZEN, journal.place())
    later = journal.overlay.current
    journal.overlay.current, journal.overlay.frozen = journal.overlay.frozen, {}
    assert later
    await rig.put(0, bytes(rig.model[:CHUNK]))


@breaks(Law.PARITY)
async def place_before_the_parity_is_logged(rig: SpyRig, patch: Patch) -> None:
    journal = rig.array.context.journal
    await rig.put(100, noise(512, 3))

    async def forgotten() -> list[int]:
        return []

    patch.setattr(journal.unsettled, "settle_frozen", forgotten)
    await refused(Law.PARITY, journal.place())
    patch.undo()


@breaks(Law.KEPT)
async def give_more_space_back_than_was_kept(rig: SpyRig, _patch: Patch) -> None:
    journal = rig.array.context.journal
    await rig.put(100, noise(512, 3))
    journal.unsettled.forget(1 << 30)
    await refused(Law.KEPT, journal.place())
    journal.unsettled.expect(1 << 30)


@breaks(Law.EMPTY)
async def choose_log_members_while_there_are_records(rig: SpyRig, _patch: Patch) -> None:
    await rig.put(100, noise(512, 3))
    await refused(Law.EMPTY, rig.array.context.journal.move())


# -- jobs ------------------------------------------------------------------------------------------


@breaks(Law.REBUILT)
async def rebuild_past_a_first_write(rig: SpyRig, patch: Patch) -> None:
    array = rig.array
    await rig.put(len(rig.model) - CHUNK, noise(CHUNK, 3))
    (between,) = (Stripe(array.context.layout.stripes - 3),)
    assert array.context.is_unwritten(between)
    await array.fail_disk(1)
    patch.setattr(Rebuild, "_held", lambda *_: [])
    with locked(array.context, between):
        await array.replace_disk(1, rig.new_member())
        await jobs_ended(array)
    assert "a rebuild passes no stripe" in str(array.jobs.list()[-1]["error"])


@breaks(Law.SAVED, "raid4")
async def make_an_old_copy_stale(rig: SpyRig, patch: Patch) -> None:
    context = rig.array.context
    patch.setattr(GrowthPosition, "save", nothing)
    job = await grow(rig, 2)
    job.limit(None, 100 * CHUNK)
    await trio.sleep(0.5)
    job.pause()
    await trio.sleep(1)
    layout, growth = context.layout, context.growth
    assert growth is not None
    places = ((chunk, *layout.locate(chunk)) for chunk in range(layout.chunks))
    chunk = next(c for c, stripe, cell in places if growth.threatens(stripe, 1 << cell))
    await refused(Law.SAVED, rig.array.write(chunk * CHUNK + 100, bytes(512)))
    patch.undo()
    job.limit(None, 0)
    job.resume()
    await job.finished.wait()
    rig.model.extend(bytes(rig.array.size_bytes - len(rig.model)))


@breaks(Law.PLACE, "raidx-copy")
async def move_a_chunk_over_another_one(rig: SpyRig, patch: Patch) -> None:
    layout = rig.array.context.layout
    assert isinstance(layout, BundleLayout)
    mover = ChunkMover(rig.array.context, layout)
    both = (mover.exchange(0, cell) for cell in range(1, layout.cells))
    moves = next(moves for moves in both if mover.problem(moves) is None)
    patch.setattr(mover, "problem", lambda _moves: None)
    await refused(Law.PLACE, mover.move(moves[:1]))
