"""Members behind a modelled network: exact times, a shared link, servers that come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments.modelled import Event
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.experiments.spec import parse_experiment
from raidx_fuse.lab.loads.request import block_of
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.network import HEAD_BYTES, Link, NetworkMember, NetworkModel
from raidx_fuse.members.simulated.virtual_time import run

MB = 1_000_000
SIZE = 1 << 20
EXAMPLE = Path(__file__).parents[2] / "examples" / "experiments" / "lost-server.toml"
Scene = Callable[[list[NetworkMember]], Awaitable[None]]


def taken_s(model: NetworkModel, scene: Scene, count: int = 1) -> float:
    """Return how long *scene* takes with *count* members behind one network."""

    async def main() -> float:
        link = Link(model, seed=1)
        await scene([NetworkMember(RamMember(SIZE), link) for _ in range(count)])
        return trio.current_time()

    return run(main)


def read(size: int) -> Scene:
    async def scene(members: list[NetworkMember]) -> None:
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.readv, 0, [bytearray(size)])

    return scene


def write(size: int) -> Scene:
    async def scene(members: list[NetworkMember]) -> None:
        await members[0].writev(0, [b"x" * size])

    return scene


def test_a_request_takes_its_bytes_both_ways_and_the_latency_twice() -> None:
    model = NetworkModel(mb_s=1, latency_ms=10)
    expected = (2 * HEAD_BYTES + 4096) / MB + 0.02
    assert taken_s(model, read(4096)) == pytest.approx(expected)
    assert taken_s(model, write(4096)) == pytest.approx(expected)


def test_the_link_is_shared_and_latencies_overlap() -> None:
    model = NetworkModel(mb_s=1, latency_ms=10)
    first = HEAD_BYTES / MB + 0.01
    assert taken_s(model, read(100_000), 3) == pytest.approx(first + 0.300096 + 0.01, abs=1e-3)


def test_half_duplex_has_one_link_for_both_ways() -> None:
    async def both(members: list[NetworkMember]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members[0].readv, 0, [bytearray(100_000)])
            await trio.sleep(1e-3)
            nursery.start_soon(members[1].writev, 0, [bytes(100_000)])

    assert taken_s(NetworkModel(mb_s=1), both, 2) == pytest.approx(0.1, abs=2e-3)
    assert taken_s(NetworkModel(mb_s=1, duplex=False), both, 2) == pytest.approx(0.2, abs=2e-3)


def test_jitter_is_added_and_repeatable() -> None:
    model = NetworkModel(latency_ms=1, jitter_ms=5)
    took = taken_s(model, read(1))
    assert 0.002 < took < 0.012
    assert taken_s(model, read(1)) == took


def test_a_lost_server_carries_out_later_what_it_was_sent() -> None:
    async def lost(members: list[NetworkMember]) -> None:
        members[0].lose(30)
        await members[0].writev(0, [b"late"])
        buffer = bytearray(4)
        await members[0].readv(0, [buffer])
        assert buffer == b"late"

    assert taken_s(NetworkModel(), lost) == 30


def experiment(*events: Event, timeout: str = "5s") -> Experiment:
    return Experiment(
        layout="raid5",
        members=("ssd",) * 4,
        member_bytes=16 << 20,
        load=lambda _: [block_of((n * 0.1, True, n % 100 << 16, 4096) for n in range(400))],
        settings={"io.timeout_s": timeout},
        verify=True,
        network=NetworkModel(mb_s=117, latency_ms=0.1),
        events=events,
    )


def test_a_server_that_is_given_up_is_caught_up_when_it_is_back() -> None:
    result = simulate(
        experiment(
            Event(at_s=2, do="lose", disk=1, for_s=3), Event(at_s=12, do="lose", disk=2, for_s=12)
        )
    )
    short, long = result["events"]
    assert short["given_up"] is False
    assert (long["given_up"], long["job"], long["job_state"]) == (True, "rebuild", "done")
    assert result["state"] == "clean"
    assert result["wrong"] == []
    assert not result["failed"]
    assert result["network"]["bytes"] > 400 * 4 * 4096


def test_one_link_of_60_mb_s_bounds_every_array() -> None:
    fast = replace(experiment(), depth=16, network=NetworkModel(mb_s=60, duplex=False))
    result = simulate(fast)
    network = result["network"]
    assert network["busy_s"] == pytest.approx(network["bytes"] / (60 * MB))
    assert result["seconds"] >= 0.9 * result["network"]["busy_s"] - 0.5


def test_the_example_loses_one_server_for_long() -> None:
    parsed = parse_experiment(EXAMPLE.read_text())
    assert isinstance(parsed, Experiment)
    assert parsed.network == NetworkModel(117, 0.1, 0.05)
    assert [event.for_s for event in parsed.events] == [3, 15]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[network]\nmb_s = -1", r"\[network\]: mb_s of a network cannot be -1"),
        ("[network]\nspeed = 1", "unknown key 'speed'"),
        ("[network]\n[[events]]\nat = 1\ndo = 'lose'\ndisk = 1", "needs seconds"),
        ("[[events]]\nat = 1\ndo = 'lose'\ndisk = 1\nseconds = 3", r"add a table \[network\]"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    base = "[array]\nlayout = 'raid5'\ndisks = 4\n[load]\nsource = 'uniform'\nrequests = 9\n"
    with pytest.raises(UsageError, match=message):
        parse_experiment(base + text)
