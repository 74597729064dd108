"""A running pool in virtual time: monitored, its hotspot found, planned for and dissolved."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from raidx_fuse.errors import JobRunningError, RaidxError, Reason, UsageError
from raidx_fuse.pool.hotspots.balancer import Balancer, JobMover, watched
from raidx_fuse.pool.monitor import Monitor
from raidx_fuse.pool.pool import Pool
from tests.support.closing import entered
from tests.support.load import eventually
from tests.support.pool_rig import CHUNK, MIB, PoolRig, read_for_ever
from tests.support.reasons import because

QUICK = {"hot.interval": "1s", "hot.window": "4", "hot.tau": "0.5", "hot.share": "0.7"}
TWO = {"fast": {"mail": MIB, "www": 2 * MIB, "logs": 2 * MIB}, "slow": {"old": 2 * MIB}}


class Notes(JobMover):
    """A mover that notes what it is asked for and takes a second each time; *fails* instead."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fails = fails

    async def move(self, volume: str, array: str) -> None:
        """Note a move."""
        await trio.sleep(1)
        if self.fails:
            raise RaidxError("the move of volume mail (job 1) cancelled")
        self.asked.append((volume, array))

    async def exchange(self, moves: Sequence[tuple[str, str]]) -> None:
        """Note moves that belong together."""
        for volume, array in moves:
            await self.move(volume, array)


@asynccontextmanager
async def watching(
    rig: PoolRig, mover: JobMover, settings: dict[str, str] | None = None
) -> AsyncIterator[tuple[Pool, Balancer]]:
    async with rig.mounted() as pool, watched(pool.arrays, mover) as balancer:
        for key, value in {**QUICK, **(settings or {})}.items():
            await balancer.settings.set(key, value)
        yield pool, balancer


async def balanced(
    mover: JobMover | None = None,
    settings: dict[str, str] | None = None,
    arrays: dict[str, dict[str, int]] | None = None,
) -> tuple[Pool, Balancer]:
    rig = PoolRig(arrays or TWO)
    await rig.create()
    return await entered(watching(rig, mover or Notes(), settings))


@asynccontextmanager
async def loaded(pool: Pool, **clients: int) -> AsyncIterator[None]:
    """Read each volume named by so many clients that think 20 ms."""
    async with trio.open_nursery() as nursery:
        for number, (name, count) in enumerate(clients.items()):
            _, volume = pool.find(name)
            nursery.start_soon(read_for_ever, volume, count, 0.02, number)
        yield
        nursery.cancel_scope.cancel()


async def test_the_estimate_by_eq_5_agrees_with_the_busy_time() -> None:
    pool, balancer = await balanced()
    async with loaded(pool, mail=8, www=4, old=2):
        await trio.sleep(8.5)
    fast, slow = (balancer.monitor.arrays[part.array.uuid].newest(4) for part in pool.arrays)
    for rows in (fast, slow):
        assert rows[:, 1].mean() == pytest.approx(rows[:, 2].mean(), rel=0.1)
    assert fast[:, 1].mean() > 4 * slow[:, 1].mean() > 0.3
    assert (fast[:, 3] > slow[:, 3]).all()  # requests wait for each other there
    mail = balancer.monitor.mean_load(pool.find("mail")[1].uuid, 4)
    assert mail.reads_s == pytest.approx(8 / 0.029, rel=0.2)
    assert (mail.read_bytes, mail.writes_s) == (16384, 0)


async def test_reads_that_were_noted_are_counted_every_second() -> None:
    pool, _ = await balanced()
    _, mail = pool.find("mail")
    mail.noted.extend([4096, 512])  # as FUSE does
    assert (mail.reads, mail.read_bytes) == (2, 4608)
    await trio.sleep(1.1)
    assert (mail.reads, mail.read_bytes, mail.noted) == (2, 4608, [])


async def test_a_hotspot_is_found_planned_for_and_carried_out_by_itself() -> None:
    mover = Notes()
    pool, balancer = await balanced(mover, {"balance.auto": "on"})
    async with loaded(pool, mail=8, www=6, old=1):
        await trio.sleep(3.5)
        assert balancer.planning.hotspots() == []  # the window is not full
        await trio.sleep(1)
        assert balancer.running
        await trio.sleep(1)
    assert mover.asked == [("mail", "slow")]
    status = balancer.status()
    assert (status["state"], status["steps_done"]) == ("done", 1)
    assert status["steps"] == ["move mail from fast to slow"]
    assert balancer.planning.hotspots() == []  # what was seen before the move counts no more


async def test_the_moves_of_a_running_pool_dissolve_a_hotspot_and_keep_every_byte() -> None:
    rig = PoolRig(TWO)
    await rig.create()
    async with rig.mounted() as pool, watched(pool.arrays, JobMover(pool)) as balancer:
        for key, value in {**QUICK, "balance.auto": "on"}.items():
            await balancer.settings.set(key, value)
        mail = pool.find("mail")[1]
        content = random.Random(1).randbytes(MIB)
        await mail.write(0, content)
        async with loaded(pool, mail=8, www=6, old=1):
            await trio.sleep(12)
            assert balancer.status()["steps"] == ["move mail from fast to slow"]
            assert balancer.status()["state"] == "done"
            assert balancer.planning.hotspots() == []
        slow, moved = pool.find("mail")
        assert slow.array.name == "slow"
        assert bytes(await moved.read(0, MIB)) == content
        assert max(one["utilisation"] for one in balancer.sampler.arrays()) < 0.5
    async with rig.mounted() as pool:
        assert bytes(await pool.find("mail")[1].read(0, MIB)) == content


async def test_full_arrays_dissolve_a_hotspot_by_volumes_that_change_places_in_pieces() -> None:
    rig = PoolRig(TWO)
    await rig.create()
    async with rig.mounted() as pool, watched(pool.arrays, JobMover(pool)) as balancer:
        for key, value in {**QUICK, "balance.auto": "on"}.items():
            await balancer.settings.set(key, value)
        for part in pool.arrays:
            await part.create(f"rest {part.array.name}", part.free_bytes() - 4 * CHUNK)
        count = sum(len(part.volumes) for part in pool.arrays)
        content = random.Random(1).randbytes(MIB)
        await pool.find("www")[1].write(MIB, content)
        async with loaded(pool, mail=8, www=6, old=1):
            await trio.sleep(4.5)
            assert balancer.running
        assert balancer.status()["steps"] == [
            "move www from fast to slow, in pieces",
            "move old from slow to fast, in pieces",
        ]
        await balancer.finished.wait()
        assert balancer.status()["state"] == "done"
        slow, moved = pool.find("www")
        assert slow.array.name == "slow"
        assert bytes(await moved.read(MIB, MIB)) == content
        assert count == sum(len(part.volumes) for part in pool.arrays)


async def test_a_plan_ends_with_a_move_that_the_user_cancels() -> None:
    rig = PoolRig(TWO)
    await rig.create()
    async with rig.mounted() as pool, watched(pool.arrays, JobMover(pool)) as balancer:
        balancer.start(await balancer.planning.evacuation("slow"), solved=False)
        array = pool.array("slow").array
        await eventually(lambda: array.jobs.running(), 3600, 0.001)
        with pytest.raises(JobRunningError):
            await balancer.planning.evacuation("slow")
        array.jobs.cancel(array.jobs.running()[0].job_id)
        await balancer.finished.wait()
        assert balancer.status()["state"] == "failed"
        assert "the move of volume old (job 1) cancelled" in str(balancer.status()["error"])
        assert pool.find("old")[0].array is array


async def test_nothing_moves_by_itself_unless_it_is_switched_on() -> None:
    mover = Notes()
    pool, balancer = await balanced(mover, {"hot.tau": "0.55"})
    async with loaded(pool, mail=8, www=6, old=1):
        await trio.sleep(6)
    assert balancer.planning.hotspots() == ["fast"]
    proposal = await balancer.planning.balance()
    assert proposal.plan.solved
    assert proposal.lines() == ["move mail from fast to slow"]
    document = proposal.as_dict()
    assert document["bytes_moved"] == document["bytes_read"] == MIB
    assert document["hotspots"] == ["fast"]
    before, after = document["utilisation"]
    assert before["now"] > 0.5 > before["expected"]
    assert after["now"] < after["expected"] < 0.9
    assert any("mail: fast -> slow, displace" in line for line in document["explanation"])
    assert not mover.asked


async def test_an_action_that_fails_ends_the_plan_and_is_reported() -> None:
    pool, balancer = await balanced(Notes(fails=True))
    async with loaded(pool, mail=8, www=6, old=1):
        await trio.sleep(4.5)
        balancer.start(await balancer.planning.balance())
        with pytest.raises(JobRunningError):
            balancer.start(await balancer.planning.balance())
        await balancer.finished.wait()
    assert balancer.status()["state"] == "failed"
    assert "cancelled" in str(balancer.status()["error"])


async def test_pins_and_rules_are_kept() -> None:
    pool, balancer = await balanced()
    uuid = pool.find("mail")[1].uuid
    async with loaded(pool, mail=9, www=6, old=1):
        await trio.sleep(4.5)
    assert [m.volume for m in (await balancer.planning.balance()).plan.moves] == [0]
    await balancer.settings.set("balance.stay", uuid)
    moved = (await balancer.planning.balance()).lines()
    assert moved
    assert not any("mail" in line for line in moved)
    await balancer.settings.set("balance.stay", "none")
    other = pool.find("old")[1].uuid
    await balancer.settings.set("balance.apart", f"{uuid}+{other}")
    assert not any(
        line.startswith("move mail") for line in (await balancer.planning.balance()).lines()
    )
    await balancer.settings.set("balance.apart", "none")
    await balancer.settings.set("balance.repaid_within", "1ms")
    assert not (await balancer.planning.balance()).plan.solved
    with pytest.raises(UsageError, match="found no plan that removes the hotspot"):
        balancer.start(await balancer.planning.balance())


async def test_an_array_is_evacuated_or_the_reason_is_named() -> None:
    mover = Notes()
    pool, balancer = await balanced(mover)
    proposal = await balancer.planning.evacuation("slow")
    assert proposal.lines() == ["move old from slow to fast"]
    balancer.start(proposal, solved=False)
    await balancer.finished.wait()
    assert mover.asked == [("old", "fast")]
    await balancer.settings.set("balance.stay", pool.find("logs")[1].uuid)
    with pytest.raises(UsageError, check=because(Reason.ARRAY_FULL)):
        await balancer.planning.evacuation("fast")


async def test_refusals_name_what_is_in_the_way() -> None:
    pool, balancer = await balanced()
    with pytest.raises(UsageError, match="nothing was observed yet; wait 2 s"):
        await balancer.planning.balance()
    await trio.sleep(2.5)
    with pytest.raises(UsageError, match="no planner best; there are: dswap"):
        await balancer.planning.balance("best")
    array = pool.arrays[0].array
    await array.fail_disk(1)
    await array.replace_disk(1, PoolRig({"new": {}}).members["new"][0])
    with pytest.raises(JobRunningError):
        await balancer.planning.balance()
    _, balancer = await balanced(arrays={"one": {"disk": MIB}})
    await trio.sleep(2.5)
    with pytest.raises(UsageError, match="this mount has one array"):
        await balancer.planning.balance()


async def test_a_degraded_array_takes_no_volume() -> None:
    pool, balancer = await balanced()
    async with loaded(pool, mail=8, www=6, old=1):
        await trio.sleep(4.5)
        await pool.arrays[1].array.fail_disk(0)
        assert not (await balancer.planning.balance()).plan.solved


async def test_no_volume_moves_to_less_redundancy_unless_that_is_allowed() -> None:
    rig = PoolRig(TWO, layouts={"slow": "raid0"})
    await rig.create()
    async with watching(rig, Notes()) as (pool, balancer):
        async with loaded(pool, mail=8, www=6, old=1):
            await trio.sleep(4.5)
        assert not (await balancer.planning.balance()).plan.solved
        with pytest.raises(UsageError, match="array fast cannot be emptied: mail, www, logs"):
            await balancer.planning.evacuation("fast")
        assert (await balancer.planning.evacuation("slow")).lines() == [
            "move old from slow to fast"
        ]
        await balancer.settings.set("balance.redundancy", "any")
        document = (await balancer.planning.balance()).as_dict()
        assert (document["solved"], document["redundancy_reduced"]) == (True, True)


async def test_a_hotspot_by_latency_alone_is_relieved() -> None:
    pool, balancer = await balanced(settings={"hot.tau": "1", "hot.latency": "5ms"})
    async with loaded(pool, mail=6, www=2, old=1):
        await trio.sleep(4.5)
    assert balancer.planning.hotspots() == ["fast"]
    proposal = await balancer.planning.balance()
    assert proposal.plan.solved
    assert proposal.plan.moves


async def test_a_monitor_goes_on_with_the_histories_it_is_given() -> None:
    rig = PoolRig(TWO)
    await rig.create()
    async with watching(rig, Notes()) as (pool, balancer):
        async with loaded(pool, mail=8, www=6, old=1):
            await trio.sleep(6)
        kept = balancer.monitor.to_bytes()
    async with rig.mounted() as pool:
        monitor = Monitor.from_bytes(kept)
        monitor.resume_at(trio.current_time())
        async with watched(pool.arrays, Notes(), monitor) as balancer:
            assert balancer.settings.value("hot.tau") == 0.5  # kept in the superblocks
            assert balancer.planning.hotspots() == ["fast"]
            assert (await balancer.planning.balance()).plan.solved
