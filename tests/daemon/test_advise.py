"""`raidx advise`: the gain that it promises is the gain that a raidx array of the members has."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.commands.advise import ACCESSES_MIN, Advice
from raidx_fuse.errors import BusyError, Reason, UsageError
from raidx_fuse.format.create import create_array
from raidx_fuse.jobs.tuner.speeds import MemberLoad
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.reasons import because

MIB = 1 << 20
CHUNK = 65536
UNLIKE = ("hdd", "ssd")


def test_what_memory_answers_is_not_worth_a_new_array() -> None:
    """One member's first reads took longer than the other's, by microseconds."""

    class Loads(Advice):
        async def _measure(self) -> list[MemberLoad]:
            loads = await super()._measure()
            for load, taken_s in zip(loads, (45e-6, 10e-6), strict=True):
                load.read.latency_s.value = load.read.busy_s.value = taken_s
                load.read.at_once_s.value = taken_s
            return loads

    async def scene() -> dict[str, Any]:
        members = [RamMember(8 * MIB, name=str(n)) for n in range(2)]
        await create_array(members, "raid0", chunk_bytes=CHUNK, name="fast", now_s=0)
        async with open_array(members) as array:
            for at in range(0, 4 * MIB, CHUNK):
                await array.write(at, bytes(CHUNK))
            for at in range(2 * ACCESSES_MIN):
                await array.read(at % 64 * CHUNK, 512)
            return dict(await Loads(array, lambda: None).advise())

    advice = run(scene)
    assert advice["options"][0]["speedup"] > 1.2
    assert advice["does"].startswith("nothing: ")
    assert advice["next"] == []


async def load(array: Array, requests: int, seed: int = 1, clients: int = 4) -> float:
    """Send nine of ten small reads to a tenth of the content; return seconds per request."""
    chunks = min(array.size_bytes, 24 * MIB) // CHUNK
    hot = random.Random(7).sample(range(chunks), chunks // 10)
    rng, left, began_s = random.Random(seed), iter(range(requests)), trio.current_time()

    async def client() -> None:
        for _ in left:
            chunk = rng.choice(hot) if rng.random() < 0.9 else rng.randrange(chunks)
            await array.read(chunk * CHUNK + rng.randrange(16) * 4096, 4096)

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(client)
    return (trio.current_time() - began_s) / requests


async def with_advice(
    layout: str, kinds: tuple[str, ...], requests: int = 1500
) -> tuple[Any, float, float]:
    """Return the advice, and seconds per request before and after what the tuner does."""
    members = [
        model_member(RamMember(32 * MIB, name=f"{kind} {n}"), kind, seed=n)
        for n, kind in enumerate(kinds)
    ]
    await create_array(members, layout, chunk_bytes=CHUNK, name="it", now_s=0)
    async with open_array(members) as array:
        if array.tuner is not None:
            array.tuner.enabled = False
        for at in range(0, min(array.size_bytes, 24 * MIB), MIB):
            await array.write(at, bytes(MIB))
        await array.flush()
        before_s = await load(array, requests)
        advice = await Advice(array, lambda: "/mnt/a b").advise()
        if array.tuner is not None:
            await array.jobs.wait(array.start_tuning())
        return advice, before_s, await load(array, requests, 2)


def test_the_gain_promised_for_a_fixed_layout_is_what_a_tuned_raidx_array_has() -> None:
    advice, striped_s, _ = run(with_advice, "raid0", UNLIKE)
    _, _, tuned_s = run(with_advice, "raidx-zero", UNLIKE)
    measured = striped_s / tuned_s
    print(advice["speedup"], measured)
    assert measured > 5
    assert 0.5 * measured < advice["speedup"] < 1.5 * measured
    create, umount, mount, evacuate = advice["next"]
    assert create.startswith("raidx create NEW_MEMBER1 NEW_MEMBER2 --layout raidx-zero ")
    assert umount == "raidx umount '/mnt/a b'"
    assert mount == "raidx mount 'hdd 0' 'ssd 1' NEW_MEMBER1 NEW_MEMBER2 '/mnt/a b'"
    assert evacuate == "raidx array evacuate '/mnt/a b' it --wait"


@pytest.mark.parametrize(
    ("layout", "kinds", "why"),
    [
        ("raid0", ("ssd", "ssd", "ssd"), "cannot be cut"),
        ("raid5", ("ssd", "hdd", "hdd"), "cannot be cut"),
        ("raid1", UNLIKE, "cannot be cut"),
        ("raid1", ("hdd", "hdd", "hdd"), "cannot be cut"),
        ("rdp", ("hdd", "ssd", "hdd", "hdd"), "no raidx layout on these members"),
    ],
)
def test_where_nothing_is_gained_it_says_nothing(
    layout: str, kinds: tuple[str, ...], why: str
) -> None:
    advice, _, _ = run(with_advice, layout, kinds)
    assert advice["does"].startswith("nothing: ")
    assert why in advice["does"]
    assert advice["next"] == []


def test_the_worth_of_choosing_copies_is_told() -> None:
    advice, _, _ = run(with_advice, "raid1", UNLIKE)
    assert advice["in_turn_ms"] > 2 * advice["present_ms"]


def test_a_raidx_array_is_told_what_tuning_gains() -> None:
    advice, before_s, after_s = run(with_advice, "raidx-zero", UNLIKE)
    assert advice["next"] == [
        "raidx tune '/mnt/a b' --now --wait",
        "raidx set '/mnt/a b' tuner.enabled=on",
    ]
    assert advice["speedup"] > 5
    assert before_s > 5 * after_s


async def test_a_few_requests_are_no_load_and_a_lost_member_is_in_the_way() -> None:
    members = [model_member(RamMember(8 * MIB, name=str(n)), "ssd", seed=n) for n in range(3)]
    await create_array(members, "raid5", chunk_bytes=CHUNK, name="few", now_s=0)
    async with open_array(members) as array:
        commands = Advice(array, lambda: None)
        await array.write(0, bytes(CHUNK))
        assert (await commands.advise())["does"].startswith("nothing yet: ")
        for _ in range(ACCESSES_MIN):
            await array.read(0, 512)
        answers: list[Any] = []

        async def ask() -> None:
            try:
                answers.append((await commands.advise())["does"])
            except BusyError as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert sum(isinstance(answer, BusyError) for answer in answers) == 1
        await array.fail_disk(1)
        with pytest.raises(UsageError, check=because(Reason.DEGRADED)):
            await commands.advise()
