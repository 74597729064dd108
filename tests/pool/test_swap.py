"""Volumes that change places: through free space of either array, or of a third one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio

from raidx_fuse.errors import BusyError, JobRunningError, NoSpaceError, Reason, UsageError
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.pool import transfer as transfers_of
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.move import Leg, MoveVolumes, cost, plan_swap, start, start_move, start_swap
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.transfer import Transfer, with_record
from raidx_fuse.pool.volume import Volume
from tests.support.load import eventually
from tests.support.reasons import because
from tests.support.two_arrays import (
    PAGE,
    PAGES,
    SLOW_BYTES,
    Arrays,
    Spec,
    content,
    created,
    ended,
    is_tidy,
    make,
    mounted,
    move_of,
    noise,
)


async def test_two_volumes_change_places_through_free_space() -> None:
    pool = await mounted(await created())
    mail, big = await make(pool), await make(pool, "slow", "big", 60)
    before = await content(mail), await content(big)
    assert [leg.volume for leg in plan_swap(pool, "mail", "big").legs] == [mail, big]
    await start_swap(pool, "mail", "big")
    await ended(pool)
    assert pool.find("mail")[0] is pool.array("slow")
    assert pool.find("big")[0] is pool.array("fast")
    assert (await content(mail), await content(big)) == before
    await is_tidy(pool)


async def test_volumes_change_places_by_way_of_a_third_array() -> None:
    specs = (Spec("a", "raid0", 2), Spec("b", "raid0", 2), Spec("c", "raid0", 2))
    arrays = Arrays(specs)
    await arrays.create()
    async with arrays.mounted() as pool:
        room = pool.array("a").free_bytes() // PAGE
        one, two = (
            await make(pool, "a", "one", room - 5),
            await make(pool, "b", "two", room - 6),
        )
        before = await content(one), await content(two)
        planned = plan_swap(pool, "one", "two")
        assert [(leg.volume.name, leg.target.array.name) for leg in planned.legs] == [
            *(("two", "c"), ("one", "b"), ("two", "a"))
        ]
        price = cost(planned)
        assert price["volume_bytes"] == (2 * room - 11) * PAGE  # Eq. 3
        written = [(room - 5) // 2 * PAGE, (room - 6) // 2 * PAGE]
        assert price["bytes_moved"] == written[0] + 2 * written[1]
        await start_swap(pool, "one", "two")
        with pytest.raises(JobRunningError):
            await start_move(pool, "one", "c")  # its leg is still to come
        await ended(pool)
        assert pool.find("one")[0] is pool.array("b")
        assert pool.find("two")[0] is pool.array("a")
        assert (await content(one), await content(two)) == before
        await pool.array("c").wiper.wiped()
        await is_tidy(pool)


async def test_a_volume_that_is_deleted_before_its_leg_ends_the_swap() -> None:
    pool = await mounted(await created())
    await make(pool)
    big = await make(pool, "slow", "big", 60)
    await start_swap(pool, "mail", "big")
    job = move_of(pool.array("fast"))
    job.limit(0, SLOW_BYTES)
    await pool.array("slow").delete(big, lose_data=True)
    await ended(pool)
    assert job.status()["state"] == "cancelled"
    assert pool.find("mail")[0] is pool.array("slow")
    await is_tidy(pool)


async def test_a_cancelled_swap_ends_where_it_is() -> None:
    pool = await mounted(await created())
    await make(pool)
    await make(pool, "slow", "big", 60)
    await start_swap(pool, "mail", "big")
    job = move_of(pool.array("fast"))
    job.limit(0, SLOW_BYTES)
    job.window = 1
    await eventually(lambda: job.detail()["legs_left"] != 2, 3600, 0.1)
    await trio.sleep(0.5)
    assert job.detail()["volume"] == "big"
    job.cancel()
    await ended(pool)
    assert job.status()["state"] == "cancelled"
    assert pool.find("mail")[0] is pool.find("big")[0] is pool.array("slow")
    await is_tidy(pool)


async def full(pool: Pool, left: tuple[int, int] = (1, 2)) -> tuple[Volume, Volume]:
    """Fill both arrays with a volume each, but for so many pages."""
    fast, slow = pool.array("fast"), pool.array("slow")
    stripe = 6  # pages of a stripe of slow, at which volumes begin
    await slow.create("rest", (slow.free_bytes() // PAGE - PAGES) // stripe * stripe * PAGE)
    two = await make(pool, "slow", "two", slow.free_bytes() // PAGE - left[1])
    pages = two.size_bytes // PAGE + left[1] // 3  # not the same size, if there is room for that
    await fast.create("more", fast.free_bytes() - (pages + left[0]) * PAGE)
    one = await make(pool, "fast", "one", pages)
    await one.write(one.size_bytes - 5 * PAGE, noise(3 * PAGE, 7))
    await two.write(two.size_bytes - PAGE, noise(PAGE, 8))
    return one, two


async def rounds(pool: Pool, count: int) -> MoveVolumes:
    """Start to swap one and two, and let each take and leave places *count* times."""
    await start_swap(pool, "one", "two")
    job = move_of(pool.find("one")[0])
    job.limit(0, 4 * PAGE)
    transfers = list(pool.transfers.values())
    await eventually(
        lambda: not (min(transfer.first for transfer in transfers) < count * 3 * PAGE), 3600, 0.1
    )
    return job


@pytest.mark.parametrize("left", [(1, 0), (0, 1), (3, 7)])
async def test_volumes_change_places_in_pieces_where_no_array_has_room(
    left: tuple[int, int],
) -> None:
    pool = await mounted(await created())
    one, two = await full(pool, left)
    before = await content(one), await content(two)
    planned = plan_swap(pool, "one", "two")
    assert "in pieces" not in planned.does
    assert f"rounds through {sum(left) * 4} KiB" in planned.does
    price = cost(planned)
    assert price["volume_bytes"] == one.size_bytes + two.size_bytes  # Eq. 3
    written = [pool.find(v.name)[0].written_bytes(v) for v in (one, two)]
    assert price["bytes_moved"] == sum(written), "every byte is copied once"
    await start_swap(pool, "one", "two")
    job = move_of(pool.array("fast"))
    with pytest.raises(JobRunningError):
        await pool.array("slow").create("new", PAGE)
    await ended(pool)
    assert abs(sum(written) - job.done_bytes) <= 2 * PAGE  # parts of chunks of slow
    assert pool.find("one")[0] is pool.array("slow")
    assert pool.find("two")[0] is pool.array("fast")
    assert (await content(one), await content(two)) == before
    await is_tidy(pool)
    with pytest.raises(NoSpaceError, check=because(Reason.ARRAY_FULL)):
        plan_swap(pool, "one", "more")  # which is far larger


async def test_nothing_at_all_is_free() -> None:
    pool = await mounted(await created())
    await full(pool, (0, 0))
    with pytest.raises(NoSpaceError, check=because(Reason.ARRAY_FULL)):
        await start_swap(pool, "one", "two")


async def test_users_read_and_write_volumes_that_change_places() -> None:
    pool = await mounted(await created())
    volumes = await full(pool)
    contents = [bytearray(await content(volume)) for volume in volumes]
    job = await rounds(pool, 1)
    rng = random.Random(4)
    while not job.finished.is_set():
        number = rng.randrange(2)
        volume, expected = volumes[number], contents[number]
        at = rng.randrange(volume.size_bytes // PAGE - 2) * PAGE
        data = noise(2 * PAGE, rng.randrange(1000))
        await volume.write(at, data)
        expected[at : at + len(data)] = data
        assert await content(volume) == expected
        await trio.sleep(0.3)
    assert job.state == "done"
    assert [await content(volume) for volume in volumes] == contents
    await is_tidy(pool)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_exchange_goes_on_or_back_after_a_remount(cancelled: bool) -> None:
    arrays = await created()
    before = []
    async with arrays.mounted() as pool:
        before = [await content(volume) for volume in await full(pool)]
        await rounds(pool, 2)
    async with arrays.mounted("fast") as pool:
        shown = [volume.name for volume in pool.array("fast").volumes]
        assert shown == ["more"], "neither is shown without the other array"
    async with arrays.mounted(read_only=True) as pool:
        assert [await content(pool.find(name)[1]) for name in ("one", "two")] == before
    async with arrays.mounted() as pool:
        assert [await content(pool.find(name)[1]) for name in ("one", "two")] == before
        (job,) = (job for v in pool.arrays for job in v.array.jobs.running())
        assert job.kind == "swap"
        if cancelled:
            job.cancel()
        await ended(pool)
        assert job.state == ("cancelled" if cancelled else "done")
        where = "fast" if cancelled else "slow"
        assert pool.find("one")[0] is pool.array(where)
        assert [await content(pool.find(name)[1]) for name in ("one", "two")] == before
        await is_tidy(pool)


async def test_an_exchange_of_which_only_one_move_began_goes_back() -> None:
    arrays = await created()
    async with arrays.mounted() as pool:
        one, _ = await full(pool)
        fast, slow = pool.array("fast"), pool.array("slow")
        await Leg(one, fast, slow, in_pieces=True).begin()
    async with arrays.mounted() as pool:
        await ended(pool)
        assert pool.find("one")[0] is pool.array("fast")
        await is_tidy(pool)


@pytest.mark.parametrize("back", [False, True])
async def test_no_piece_is_given_up_under_a_read_from_before(back: bool) -> None:
    pool = await mounted(await created())
    await full(pool)
    job = await rounds(pool, 2)
    transfer = next(iter(pool.transfers.values()))
    if back:
        job.cancel()
    left = transfer.target if back else transfer.source
    reading = transfer.volume.gate.enter_now()
    job.limit(0, 0)
    before = left.table().find(transfer.volume_uuid)
    await trio.sleep(30)
    after = left.table().find(transfer.volume_uuid)
    reading.leave()
    assert before is not None
    assert after is not None
    assert after.extents == before.extents
    await ended(pool)
    assert job.state == ("cancelled" if back else "done")
    await is_tidy(pool)


async def test_an_exchange_of_another_time_is_shown_from_neither_array() -> None:
    arrays = await created()
    async with arrays.mounted() as pool:
        await full(pool)
        await rounds(pool, 2)
        source = pool.find("one")[0]

        def outdated(table: VolumeTable) -> VolumeTable:
            record = next(one for one in table.volumes if one.name == "one")
            assert record.move is not None
            assert record.move.watermark > 0
            return with_record(table, replace(record, move=replace(record.move, watermark=0)))

        for job in source.array.jobs.running():
            job.stop()
            await job.finished.wait()
        await pool.array("slow").change(outdated)
    async with arrays.mounted() as pool:
        with pytest.raises(UsageError, match="are members of one of them outdated"):
            pool.find("one")


async def test_an_exchange_of_which_one_volume_is_there_is_finished_even_if_it_is_cancelled() -> (
    None
):
    arrays = await created()
    before = []
    async with arrays.mounted() as pool:
        before = [await content(volume) for volume in await full(pool)]
        job = await rounds(pool, 2)
        first, second = pool.transfers.values()
        hand_over = second.hand_over

        async def refused() -> None:
            raise NoSpaceError("the host is full")

        second.hand_over = refused  # type: ignore[method-assign]
        job.limit(0, 0)
        await eventually(lambda: first.arrived, 3600, 0.1)
        job.cancel()
        await trio.sleep(10)
        second.hand_over = hand_over  # type: ignore[method-assign]
        await ended(pool)
        assert job.state == "done"
        assert [await content(pool.find(name)[1]) for name in ("one", "two")] == before
        assert pool.find("two")[0] is pool.array("fast")
        await is_tidy(pool)


async def test_an_exchange_begins_with_all_its_moves_or_with_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = await mounted(await created())
    one, two = await full(pool)
    before = await content(one), await content(two)
    planned = plan_swap(pool, "one", "two")
    begin = Leg.begin

    async def only_the_first(self: Leg) -> Transfer:
        if self is planned.legs[1]:
            raise NoSpaceError("the superblock is full")
        return await begin(self)

    monkeypatch.setattr(Leg, "begin", only_the_first)
    with pytest.raises(NoSpaceError, match="the superblock is full"):
        await start(pool, planned)
    monkeypatch.undo()
    assert not pool.transfers
    assert pool.find("one")[0] is pool.array("fast")
    await is_tidy(pool)
    await start_swap(pool, "one", "two")
    await ended(pool)
    assert (await content(one), await content(two)) == before


async def test_a_cancel_while_a_volume_is_handed_over_lets_no_other_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = await mounted(await created())
    await make(pool)
    await make(pool, "slow", "big", 60)
    await start_swap(pool, "mail", "big")
    job, forget_arrival = move_of(pool.array("fast")), transfers_of.forget_arrival

    async def cancelled(volumes: ArrayVolumes, uuid: str) -> None:
        job.cancel()
        await forget_arrival(volumes, uuid)

    monkeypatch.setattr(transfers_of, "forget_arrival", cancelled)
    await ended(pool)
    assert job.state == "cancelled"
    assert pool.find("mail")[0] is pool.array("slow")  # it had arrived
    assert pool.find("big")[0] is pool.array("slow")
    await is_tidy(pool)


async def test_a_cancel_that_comes_as_all_pieces_are_settled_turns_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One volume was there for good; the other turned round, and had no place to go back to."""
    pool = await mounted(await created())
    await full(pool, (1, 2))
    await start_swap(pool, "one", "two")
    job = move_of(pool.find("one")[0])
    transfers = list(pool.transfers.values())
    save, hand_over = Transfer.save, Transfer.hand_over
    refused = False

    async def cancelled(self: Transfer) -> None:
        if all(one.rest[0] == one.rest[1] for one in transfers) and not job.was_cancelled:
            job.cancel()
        await save(self)

    async def busy_once(self: Transfer) -> None:
        nonlocal refused
        if self is transfers[-1] and not refused:
            refused = True
            raise BusyError("requests did not end in time")
        await hand_over(self)

    monkeypatch.setattr(Transfer, "save", cancelled)
    monkeypatch.setattr(Transfer, "hand_over", busy_once)
    await ended(pool)
    assert refused
    assert job.was_cancelled
    assert job.state == "done"
    await is_tidy(pool)
