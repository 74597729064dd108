"""Several disks that misbehave at once while the array runs: errors, hangs, slow answers.

The array never returns wrong bytes, goes on within its tolerance, and says EIO beyond.
"""

from __future__ import annotations

import errno
import random

import pytest
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.settings import MODES
from tests.support.spy import SpyRig, noise, spying

CHUNK = 4096
TIMEOUT_S = 2.0


async def prepare(rig: SpyRig, mode: str = "partial") -> None:
    """Set the journal, fill the image, bring all of it to its place."""
    await rig.array.set("journal", mode)
    await rig.array.set("io.timeout_s", str(TIMEOUT_S))
    await rig.put(0, noise(len(rig.model), 99))
    await rig.in_place()
    await trio.sleep(40)  # the watchdog has noticed the new time-out


def states(rig: SpyRig) -> list[str]:
    """Return the states of all roles."""
    config = rig.array.member_set.config
    return [config.record(role).state for role in range(config.width)]


async def work(rig: SpyRig, steps: int, seed: int, between_s: float = 0.0) -> None:
    """Write and read here and there, some of it at once, comparing every read with the model."""
    rng = random.Random(seed)
    for _ in range(steps):
        writes = []
        at = rng.randrange(0, len(rig.model) // 2, 512)
        for _ in range(rng.randint(1, 4)):
            length = rng.choice((512, 2048, CHUNK, 3 * CHUNK, 9 * CHUNK))
            length = min(length, len(rig.model) - at)
            writes.append((at, noise(length, rng.getrandbits(32))))
            at = min(at + length, len(rig.model) - 512)
        async with trio.open_nursery() as nursery:
            for offset, data in writes[:-1]:
                nursery.start_soon(rig.put, offset, data)
        await rig.put(*writes[-1])
        if rng.random() < 0.3:
            await rig.array.flush()
        where = rng.randrange(0, len(rig.model) - 2 * CHUNK)
        assert await rig.get(where, 2 * CHUNK) == rig.model[where : where + 2 * CHUNK]
        await trio.sleep(between_s)


@pytest.mark.timeout(60)  # in virtual time a deadlock looks like an endless run
@pytest.mark.parametrize("layout", ["rdp", "raid1"])
async def test_a_slow_a_hanging_and_a_failing_member_within_two_losses(layout: str) -> None:
    width = 4 if layout == "rdp" else 3
    async with spying(layout, width, chunk_bytes=CHUNK, slow=True) as rig:
        await prepare(rig)
        rig.members[0].slow(TIMEOUT_S / 8)
        rig.members[1].hang(("write",))
        await work(rig, 4, 10)
        rig.members[2].error(("write",))
        await work(rig, 4, 11)
        await rig.array.flush()
        assert states(rig)[:3] == ["active", "failed", "failed"]
        await rig.compare()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("layout", "width"), [("raid5", 4), ("raid4", 3), ("rdp", 4), ("raid1", 3)]
)
def test_a_storm_of_faults_within_the_tolerance_never_shows_a_wrong_byte(
    layout: str, width: int, mode: str
) -> None:
    async def main(seed: int) -> None:
        rng = random.Random(seed)
        async with spying(layout, width, chunk_bytes=CHUNK, rows=4, slow=True) as rig:
            await prepare(rig, mode)
            tolerance = rig.array.context.code.tolerance
            sick = rng.sample(range(width), tolerance)
            for role in range(width):
                if role in sick:
                    member = rig.members[role]
                    operation = rng.choice(("read", "write", "flush"))
                    member.error((operation,), probability=0.2)
                    member.slow(rng.uniform(0.01, 0.2))
                else:
                    rig.members[role].slow(0.001)
            await work(rig, 12, seed, between_s=rng.uniform(0, 2))
            await rig.array.flush()
            for member in rig.members:
                member.clear()
            await rig.compare()
            healthy = [state for role, state in enumerate(states(rig)) if role not in sick]
            assert healthy == ["active"] * (width - tolerance)

    for seed in range(3):
        run(main, seed, seed=seed)


@pytest.mark.parametrize("mode", MODES)
def test_more_faults_than_the_tolerance_are_errors_never_wrong_bytes(mode: str) -> None:
    """Writes on two of four members fail half of the time: a read is right, or it is EIO."""

    async def main(seed: int) -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, slow=True) as rig:
            await prepare(rig, mode)
            rng = random.Random(seed)
            for role in rng.sample(range(4), 2):
                rig.members[role].error(("read", "write"), probability=0.5)
            errors: list[RaidxError] = []
            sectors = [{bytes(rig.model[at : at + 512])} for at in range(0, len(rig.model), 512)]
            for number in range(20):
                at = rng.randrange(0, len(rig.model) // 512 - 16)
                data = noise(512 * rng.randint(1, 16), 100 * seed + number)
                try:
                    await rig.array.write(at * 512, data)
                    whole = True
                except RaidxError as error:
                    errors.append(error)
                    whole = False
                for sector in range(len(data) // 512):
                    content = data[sector * 512 : sector * 512 + 512]
                    if whole:
                        sectors[at + sector] = {content}
                    else:
                        sectors[at + sector].add(content)
            for member in rig.members:
                member.clear()
            readable = 0
            for sector, allowed in enumerate(sectors):
                try:
                    content = await rig.get(sector * 512, 512)
                except RaidxError as error:
                    errors.append(error)
                    continue
                assert content in allowed, f"sector {sector} holds what nobody wrote"
                readable += 1
            assert readable > len(sectors) // 2, "the rest stays readable"
            assert {error.errno for error in errors} <= {errno.EIO}

    for seed in range(2):
        run(main, seed, seed=seed)
