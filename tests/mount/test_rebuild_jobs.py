"""Rebuilds on a running array: steered, and going on over a remount where they were."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]

CONTENT = os.urandom(48 << 20)
WAIT_S = 60.0


@pytest.fixture
def rebuilding(array: RealArray) -> RealArray:
    """Return a RAID-5 array of four that slowly rebuilds role 1 (16 MiB at 2 MiB/s)."""
    array.create("raid5", 4, "32MiB").mount()
    with array.image.open("r+b") as image:
        image.write(CONTENT)
    array.raidx("set", "ARRAY", "speed_max=2MiB")
    array.raidx("fail-disk", "ARRAY", "1")  # a member that is in use would be copied
    array.replace(1)
    return array


def rebuild_of(array: RealArray) -> dict[str, Any]:
    """Return the newest rebuild job."""
    return [job for job in array.jobs() if job["kind"] == "rebuild"][-1]


def await_job(array: RealArray, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the rebuild when it has *reached* something."""
    deadline_s = time.monotonic() + WAIT_S
    while not reached(job := rebuild_of(array)):
        assert time.monotonic() < deadline_s, job
        time.sleep(0.05)
    return job


def finish(array: RealArray) -> None:
    """Let the rebuild run to its end at full speed; check everything."""
    array.raidx("set", "ARRAY", "speed_max=0")
    array.wait_jobs()
    assert rebuild_of(array)["state"] == "done"
    assert array.status()["state"] == "clean"
    assert array.read(len(CONTENT)) == CONTENT
    array.scrub()


def test_progress_eta_and_state(rebuilding: RealArray) -> None:
    job = await_job(rebuilding, lambda job: job["done"] >= 2 << 20)
    assert job["total"] == len(CONTENT) // 3
    assert 0.5 < job["rate"] / (2 << 20) < 1.5
    assert job["eta_seconds"] > 0
    status = rebuilding.ask("status", "ARRAY", "--check", status=1)
    assert status["state"] == "rebuilding"
    assert status["members"][1]["state"] == "rebuilding"
    assert "recovery" in rebuilding.raidx("status", "ARRAY", "--brief").stdout
    finish(rebuilding)


def test_rebuild_goes_on_after_a_remount(rebuilding: RealArray) -> None:
    job = await_job(rebuilding, lambda job: job["done"] >= job["total"] * 0.4)
    rebuilding.unmount()
    warned = rebuilding.mount().stderr
    assert "rebuilding" in warned
    resumed = rebuild_of(rebuilding)
    assert job["done"] <= resumed["done"] < resumed["total"]
    read = rebuilding.ask("stats", "ARRAY")["members"][0]["read_bytes"]
    finish(rebuilding)
    read = rebuilding.ask("stats", "ARRAY")["members"][0]["read_bytes"] - read
    assert read > 0


def test_rebuild_goes_on_after_a_crash(rebuilding: RealArray) -> None:
    await_job(rebuilding, lambda job: job["done"] >= job["total"] * 0.4)
    rebuilding.send(signal.SIGKILL)
    rebuilding.clear()
    rebuilding.mount("--start-degraded")
    assert rebuild_of(rebuilding)["state"] == "running"
    finish(rebuilding)


def test_pause_resume_limit(rebuilding: RealArray) -> None:
    await_job(rebuilding, lambda job: job["done"] > 0)
    paused = rebuilding.ask("job", "ARRAY", "pause")
    assert paused["paused"] is True
    time.sleep(1.2)  # a window of 1 MiB that had begun may end, at 2 MiB/s
    before = rebuild_of(rebuilding)["done"]
    time.sleep(1.0)
    assert rebuild_of(rebuilding)["done"] == before
    assert "is paused" in rebuilding.status()["action"]
    resumed = rebuilding.ask("job", "ARRAY", "resume")
    assert resumed["paused"] is False
    await_job(rebuilding, lambda job: job["done"] > before)
    limited = rebuilding.ask("job", "ARRAY", "limit", "--max", "64MiB")
    assert limited["speed_max"] == 64 << 20
    finish(rebuilding)


def test_cancelled_rebuild_goes_on_at_the_next_mount(rebuilding: RealArray) -> None:
    await_job(rebuilding, lambda job: job["done"] > 0)
    cancelled = rebuilding.ask("job", "ARRAY", "cancel")
    assert cancelled["state"] == "cancelled"
    status = rebuilding.ask("status", "ARRAY", "--check", status=1)
    assert status["redundancy_left"] == 0
    assert status["action"]
    assert rebuilding.read(len(CONTENT)) == CONTENT
    rebuilding.unmount()
    rebuilding.mount()
    assert rebuild_of(rebuilding)["done"] >= cancelled["done"]
    finish(rebuilding)


def test_writes_during_a_rebuild_are_kept(rebuilding: RealArray) -> None:
    await_job(rebuilding, lambda job: job["done"] > 0)
    content = bytearray(CONTENT)
    with rebuilding.image.open("r+b", buffering=0) as image:
        for number in range(200):
            at = number * 239_017 % (len(CONTENT) - 9000)
            content[at : at + 9000] = bytes([number]) * 9000
            os.pwrite(image.fileno(), content[at : at + 9000], at)
        beyond = os.urandom(5 << 20)  # what was never written when the rebuild began
        os.pwrite(image.fileno(), beyond, len(CONTENT))
        os.fsync(image.fileno())
    rebuilding.raidx("set", "ARRAY", "speed_max=0")
    rebuilding.wait_jobs()
    job = rebuild_of(rebuilding)
    assert (job["state"], job["done"]) == ("done", job["total"])
    assert rebuilding.read(len(CONTENT) + len(beyond)) == content + beyond
    rebuilding.scrub()
