"""Busy polling: whose requests are seen, and when nobody polls."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from raidx_fuse.loop import busy_poll
from raidx_fuse.loop.busy_poll import BusyPoll, CpuLatencyRequest, Sources

Pipe = tuple[int, int]


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pipe, Pipe]]:
    """Two pipes, on a machine of two processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    made = os.pipe(), os.pipe()
    yield made
    for pipe in made:
        for fd in pipe:
            os.close(fd)


class Verdicts(CpuLatencyRequest):
    """A CPU latency request that only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def hit(self) -> None:
        self.told.append("hit")

    def miss(self) -> None:
        self.told.append("miss")


def test_polling_that_does_not_pay_backs_off(pipes: tuple[Pipe, Pipe]) -> None:
    (reads, writes), _ = pipes
    sources = Sources()
    sources.add(reads)
    look, looks = sources.look, [0]

    def counting(*arguments: Any) -> Any:
        looks[0] += 1
        return look(*arguments)

    sources.look = counting  # type: ignore[assignment]
    poll = BusyPoll(sources, Verdicts())
    looked = []
    for _ in range(40):
        looks[0] = 0
        assert not poll.sees(reads)
        looked.append(looks[0])
    tries = [index for index, count in enumerate(looked) if count]
    assert tries == [0, 2, 6, 14, 30]  # pauses of 1, 3, 7, 15
    assert set(looked) == {0, busy_poll.LOOKS}
    os.write(writes, b"a request")
    assert [poll.sees(reads) for _ in range(30)][-1]  # the last pause is over


def test_a_request_for_another_front_end_ends_the_poll(pipes: tuple[Pipe, Pipe]) -> None:
    (mine, _), (other, writes) = pipes
    sources = Sources()
    sources.add(mine)
    sources.add(other)
    verdicts = Verdicts()
    poll = BusyPoll(sources, verdicts)
    os.write(writes, b"a request")
    assert not poll.sees(mine)
    assert poll.sees(other)
    assert verdicts.told == ["hit"]  # neither for the poll that another request has ended


def test_one_processor_is_not_kept_busy(
    pipes: tuple[Pipe, Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    (reads, writes), _ = pipes
    sources = Sources()
    sources.add(reads)
    os.write(writes, b"a request")
    assert not BusyPoll(sources, Verdicts()).sees(reads)
