"""Experiments in virtual time: exact where the model is simple, repeatable to the last digit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.cli.commands.experiments import SoFar
from raidx_fuse.errors import MemberError, UsageError
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.drive import Recorder, drive
from raidx_fuse.lab.loads.request import Block, block_of, fit
from raidx_fuse.lab.loads.workloads import generate, variant
from raidx_fuse.members.simulated.virtual_time import run, sleep

FIXED = "ssd,read_access_ms=1,write_access_ms=2,read_mb_s=0,write_mb_s=0,channels=1,flush_ms=0"


def each(gap_s: float, count: int, is_write: bool, step: int, length: int = 4096) -> list[Block]:
    """Return *count* requests of *length* bytes, *gap_s* apart, *step* bytes apart."""
    return [block_of((n * gap_s, is_write, n * step, length) for n in range(count))]


class Slow:
    """A target on which everything takes *seconds*, and writes to offset 4096 fail."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = self.most = 0

    async def read(self, _offset: int, length: int) -> bytes:
        self.now += 1
        self.most = max(self.most, self.now)
        await sleep(self.seconds)
        self.now -= 1
        return bytes(length)

    async def write(self, offset: int, data: Any) -> None:
        await self.read(offset, len(data))
        if offset == 4096:
            raise MemberError("disk0", "write", offset, 5)


def driven(target: Slow, load: list[Block], **options: Any) -> Recorder:
    """Return what driving *load* recorded."""

    async def main() -> Recorder:
        recorder = Recorder()
        await drive(target, load, recorder, **options)
        return recorder

    return run(main)


def test_open_loop_does_not_wait_for_answers() -> None:
    target = Slow(1.0)
    summary = driven(target, each(0.25, 9, False, 4096)).summary()
    assert summary["response_ms"]["mean"] == pytest.approx(1000)
    assert summary["seconds"] == pytest.approx(3.0)
    assert target.most == 4


def test_at_full_speed_so_many_are_under_way() -> None:
    target = Slow(1.0)
    summary = driven(target, each(0.0, 9, False, 4096), depth=3).summary()
    assert target.most == 3
    assert summary["seconds"] == pytest.approx(3.0)
    assert summary["response_ms"]["max"] == pytest.approx(1000)


def test_what_is_held_back_is_counted_and_its_wait_belongs_to_the_response() -> None:
    target = Slow(1.0)
    recorder = driven(target, each(0.0, 4, False, 4096), outstanding_max=2)
    assert target.most == 2
    assert recorder.held_back == 1, "when the third may go, the fourth may too"
    assert recorder.summary()["response_ms"]["max"] == pytest.approx(2000)


def test_failed_requests_are_counted_not_raised() -> None:
    recorder = driven(Slow(0.1), each(1.0, 3, True, 4096))
    assert (len(recorder), recorder.failed) == (2, 1)
    assert "disk0" in recorder.errors[0]


def test_sections_cover_the_time_of_arrivals() -> None:
    recorder = driven(Slow(0.5), each(1.0, 10, False, 4096))
    sections = recorder.sections(4.0)
    assert [(s["from_s"], s["requests"]) for s in sections] == [(0, 4), (4, 4), (8, 2)]
    assert recorder.sections(0) == []
    assert Recorder().summary()["response_ms"]["mean"] == 0


@pytest.mark.parametrize(("policy", "pre_reads", "response_ms"), [("rmw", 2, 3.0), ("rcw", 6, 3.0)])
def test_a_small_write_takes_what_its_plan_takes(
    policy: str, pre_reads: int, response_ms: float
) -> None:
    """Reads side by side (1 ms), then writes side by side (2 ms), on disks that do nothing else."""
    result = simulate(
        Experiment(
            layout="raid5",
            members=(FIXED,) * 8,
            member_bytes=64 << 20,
            settings={"parity.policy": policy, "journal": "none"},
            load=lambda _size: each(60.0, 20, True, 7 << 16),
        )
    )
    assert result["array"]["pre_reads"] == 20 * pre_reads
    # The mark in the bitmap comes first, where a region was quiet.
    assert result["response_ms"]["p50"] >= response_ms
    assert min(member["write_ms_mean"] for member in result["members"]) > 1.999


def test_reads_of_a_prefilled_array_go_to_the_disks() -> None:
    plain = Experiment(
        layout="raid5",
        members=(FIXED,) * 4,
        member_bytes=64 << 20,
        load=lambda _size: each(1.0, 30, False, 1 << 16),
    )
    result = simulate(plain)
    assert result["response_ms"]["mean"] == pytest.approx(1.0)
    assert sum(member["reads"] for member in result["members"]) == 30
    fresh = simulate(replace(plain, prefilled=False))
    assert fresh["response_ms"]["mean"] == 0, "what was never written costs nothing"


def busy(seed: int, **changes: Any) -> Experiment:
    """Return an experiment with everything in it that chance could touch."""

    def load(size_bytes: int) -> Iterator[Block]:
        return fit(generate(variant("hm_0", rate_s=400), seed=seed, requests=1500), size_bytes)

    experiment = Experiment(
        layout="rdp",
        members=("hdd", "sas10k", "ssd", "ssd", "hdd", "nvme"),
        member_bytes=128 << 20,
        load=load,
        section_s=1.0,
        seed=seed,
        report=lambda array: {"size": array.size_bytes},
    )
    return replace(experiment, **changes)


def test_one_seed_gives_one_result_to_the_last_digit() -> None:
    first, again, other = (json.dumps(simulate(busy(seed))) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert json.loads(first)["extra"]["size"] == json.loads(first)["image_bytes"]


def test_forgotten_data_change_no_figure() -> None:
    """Time does not depend on content: the same with memory behind the members."""
    without, kept = simulate(busy(3)), simulate(busy(3, content=True))
    assert without == kept


def test_a_recorder_of_ones_own_tells_how_far_it_is() -> None:
    recorder = Recorder()
    assert simulate(busy(1), recorder) == simulate(busy(1))
    assert len(recorder) == 1500
    assert "busy: 1500 requests, " in str(SoFar("busy", recorder).__rich__())


def test_unknown_models_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no disk model"):
        simulate(busy(1, members=("floppy",) * 6))


def test_the_load_runs_on_the_real_clock_too() -> None:
    async def main() -> float:
        recorder = Recorder()
        await drive(Slow(0.01), each(0.02, 3, False, 4096), recorder)
        return float(recorder.summary()["response_ms"]["mean"])

    assert 9 < trio.run(main) < 1000
