"""Moves that are refused, that members or arrays fail in, that another change meets."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from raidx_fuse.errors import (
    ArrayFailedError,
    BusyError,
    FormatError,
    JobRunningError,
    NoSpaceError,
    Reason,
    UsageError,
)
from raidx_fuse.lab.crash.disks import SLOTS_BYTES
from raidx_fuse.members.simulated.faulty import WRITE, Fault
from raidx_fuse.pool import transfer
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.move import plan_move, start, start_move
from raidx_fuse.pool.transfer import give_up
from tests.support.reasons import because
from tests.support.two_arrays import (
    PAGE,
    PAGES,
    SPECS,
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
    slow_move,
)


async def test_refused_with_one_line() -> None:
    pool = await mounted(await created())
    await make(pool)
    await make(pool, name="news", pages=8)
    big = pool.array("fast").free_bytes() // PAGE + 1
    await make(pool, "slow", "big", big)
    tables = [volumes.table() for volumes in pool.arrays]
    for words, error, said in (
        (("none", "slow"), UsageError, "there is no volume none; there is mail, news, big"),
        (("mail", "none"), UsageError, "there is no array none here; there is fast, slow"),
        (("mail", "fast"), UsageError, "volume mail is on array fast already"),
        (("big", "fast"), NoSpaceError, "do not fit"),
    ):
        with pytest.raises(error) as caught:
            await start_move(pool, *words)
        assert said in str(caught.value)
    assert [volumes.table() for volumes in pool.arrays] == tables
    await slow_move(pool)
    for call in (
        lambda: start_move(pool, "mail", "slow"),
        lambda: pool.array("fast").rename(pool.find("mail")[1], "post"),
        lambda: pool.array("fast").resize(pool.find("mail")[1], PAGE),
        lambda: pool.array("fast").delete(pool.find("mail")[1], lose_data=True),
    ):
        with pytest.raises(JobRunningError):
            await call()
    with pytest.raises(JobRunningError):
        await start_move(pool, "news", "slow")
    await ended(pool)
    await pool.array("slow").array.fail_disk(1)
    with pytest.raises(UsageError, check=because(Reason.DEGRADED)):
        await start_move(pool, "news", "slow")
    await start_move(pool, "news", "slow", accept_degraded=True)
    await ended(pool)
    assert await content(pool.find("news")[1]) == noise(4 * PAGE) + bytes(4 * PAGE)


@pytest.mark.parametrize("name", ["fast", "slow"])
async def test_an_array_that_fails_in_the_middle_pauses_the_move(name: str) -> None:
    arrays = await created()
    async with arrays.mounted() as pool:
        volume = await make(pool)
        before = await content(volume)
        await slow_move(pool)
        await trio.sleep(0.6)
        for member in arrays.shelf[name]:
            member.vanish()
        await trio.sleep(60)
        job = move_of(pool.array("fast"))
        status = job.status()
        assert status["state"] == "paused"
        assert str(status["error"]).endswith("resume`, or cancel it"), status
        for member in arrays.shelf[name]:
            member.come_back()
        job.resume()
        await ended(pool)
        assert await content(volume) == before


async def test_a_superblock_without_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await mounted(await created())
    volume = await make(pool)
    tables = [volumes.table() for volumes in pool.arrays]

    async def full(*_: object, **__: object) -> None:
        raise FormatError("the configuration does not fit")

    monkeypatch.setattr(pool.array("fast"), "change", full)
    with pytest.raises(FormatError, match="does not fit"):
        await start_move(pool, "mail", "slow")
    monkeypatch.undo()
    assert [volumes.table() for volumes in pool.arrays] == tables
    assert pool.transfers == {}
    await start_move(pool, "mail", "slow")
    await ended(pool)
    assert await content(volume) == noise(PAGES // 2 * PAGE) + bytes(PAGES // 2 * PAGE)


async def test_a_volume_that_changes_while_its_move_begins_stays() -> None:
    pool = await mounted(await created(slow=True))
    volume = await make(pool)
    fast, size = pool.array("fast"), (PAGES - 5) * PAGE
    planned = plan_move(pool, "mail", "slow")
    async with trio.open_nursery() as nursery:
        resize = partial(fast.resize, volume, size, lose_data=True)
        nursery.start_soon(resize)
        with pytest.raises(BusyError, match="volume mail has changed meanwhile; try again"):
            await start(pool, planned)
    await ended(pool)
    assert volume.size_bytes == size
    await is_tidy(pool)


@pytest.mark.parametrize("errors", [2, None], ids=["for a moment", "for good"])
async def test_a_begin_that_a_superblock_refuses_is_undone_on_the_source_first(
    errors: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a cut would leave a source that names a move, and a target that does not know it."""
    undone = []
    arrays = Arrays((Spec("fast", "raid0", 2), SPECS[1]))
    await arrays.create()
    async with arrays.mounted() as pool:
        before = await content(await make(pool))
        deaf, other = arrays.shelf["fast"]

        async def cut_before(volumes: ArrayVolumes, volume_uuid: str) -> None:
            undone.append(volumes.array.name)
            for member in (deaf, other):  # of what is under way there, nothing is left
                member.inject(Fault("lost", WRITE))
            await give_up(volumes, volume_uuid)

        monkeypatch.setattr(transfer, "give_up", cut_before)
        deaf.error(("write",), length_bytes=SLOTS_BYTES, count=errors)
        with pytest.raises(ArrayFailedError, match="lacks the newest configuration"):
            await start_move(pool, "mail", "slow")
    assert undone == (["slow"] if errors else [])
    for member in arrays.shelf["fast"]:
        member.clear()
    async with arrays.mounted() as pool:
        assert await content(pool.find("mail")[1]) == before
        await is_tidy(pool)
