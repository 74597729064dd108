"""The CPU latency request: made when it pays, and withdrawn immediately."""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.loop import busy_poll
from raidx_fuse.loop.busy_poll import CpuLatencyRequest
from raidx_fuse.members.simulated.virtual_time import run


def promised_us(path: Path) -> list[int]:
    """Return what was written to the stand-in of the device, in order."""
    content = path.read_bytes()
    return [value for (value,) in struct.iter_unpack("=i", content)]


def use(path: Path, script: Callable[[CpuLatencyRequest], Awaitable[None]]) -> None:
    """Run *script* with an `CpuLatencyRequest` on a file in virtual time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            def start(task: Callable[[], Awaitable[Any]]) -> None:
                nursery.start_soon(task)

            guard = CpuLatencyRequest(start, str(path))
            try:
                await script(guard)
            finally:
                guard.close()

    run(main)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    path = tmp_path / "latency"
    path.touch()
    return path


def test_it_is_asked_for_while_requests_come_one_after_the_other(device: Path) -> None:
    async def script(guard: CpuLatencyRequest) -> None:
        for _ in range(busy_poll.HITS_MIN):
            assert not guard.held
            guard.hit()
        assert guard.held
        for _ in range(20):  # a slow caller, but steady
            for _ in range(2 * busy_poll.HITS_KEPT):
                guard.hit()
                guard.miss()
            await trio.sleep(busy_poll.LOOK_S / 4)
        assert guard.held
        await trio.sleep(3 * busy_poll.LOOK_S)
        assert not guard.held

    use(device, script)
    assert promised_us(device) == [0, 2_000_000_000]


def test_misses_in_between_put_it_off(device: Path) -> None:
    async def script(guard: CpuLatencyRequest) -> None:
        for _ in range(10):
            for _ in range(busy_poll.HITS_MIN - 1):
                guard.hit()
            guard.miss()
        assert not guard.held

    use(device, script)
    assert promised_us(device) == []


async def test_the_end_of_the_mount_gives_it_back(device: Path) -> None:
    guard = CpuLatencyRequest(lambda _: None, str(device))
    for _ in range(busy_poll.HITS_MIN):
        guard.hit()
    guard.close()
    assert promised_us(device) == [0, 2_000_000_000]


def test_a_system_without_it_works_without(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(guard: CpuLatencyRequest) -> None:
        assert guard.reason == f"this system has no {device}"
        for _ in range(2 * busy_poll.HITS_MIN):
            guard.hit()
        assert not guard.held

    device.unlink()
    use(device, script)

    async def large(guard: CpuLatencyRequest) -> None:
        assert guard.reason is not None
        assert "processors" in guard.reason

    device.touch()
    monkeypatch.setattr(os, "cpu_count", lambda: busy_poll.PROCESSORS_MAX + 1)
    use(device, large)
