"""Verified loads: right answers pass whatever their order, each kind of wrong answer is found."""

from __future__ import annotations

from typing import Any

import pytest

from raidx_fuse.errors import MemberError
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.drive import Content, Recorder, drive, read_back
from raidx_fuse.lab.loads.workloads import generate, variant
from raidx_fuse.members.simulated.virtual_time import run, sleep

SIZE = 1 << 16


class Disk:
    """Bytes, of which *harm* makes something else when they are read."""

    def __init__(self, harm: str = "") -> None:
        self.bytes = bytearray(SIZE)
        self.before = bytes(SIZE)
        self.harm = harm

    async def write(self, offset: int, data: Any) -> None:
        await sleep(1e-3 * (1 + offset % 7))
        if self.harm == "eio":
            raise MemberError("disk0", "write", offset, 5)
        self.before = bytes(self.bytes)
        at = offset + 512 if self.harm == "misdirected" else offset
        data = bytes(data)[: -len(data) // 2] if self.harm == "short" else data
        if self.harm != "lost":
            self.bytes[at : at + len(data)] = data[: SIZE - at]

    async def read(self, offset: int, length: int) -> bytes:
        await sleep(1e-3)
        if self.harm == "stale":
            return self.before[offset : offset + length]
        data = bytearray(self.bytes[offset : offset + length])
        if self.harm == "rotten":
            data[300] ^= 1
        return bytes(data)


def verified(harm: str) -> Content:
    """Write a sector range twice, read it back from a disk with *harm*."""

    async def main() -> Content:
        disk, content = Disk(harm), Content(SIZE, seed=5)
        work = variant("uniform", span_bytes=SIZE, rate_s=500, read_share=0.3, length_bytes=4096)
        await drive(disk, generate(work, seed=1, requests=300), Recorder(), content=content)
        await read_back(disk, content)
        return content

    return run(main)


def test_what_is_right_is_accepted_whatever_overlaps() -> None:
    content = verified("")
    assert content.wrong == []
    assert content.checked_bytes > 80 * 4096


@pytest.mark.parametrize("harm", ["stale", "rotten", "lost", "misdirected", "short"])
def test_every_kind_of_wrong_answer_is_found(harm: str) -> None:
    content = verified(harm)
    assert content.wrong
    assert content.wrong[0].startswith("image offset ")


def test_failed_writes_make_their_sectors_unknown() -> None:
    content = verified("eio")
    assert content.wrong == []
    assert content.checked_bytes == 0
    assert content.ranges_written() == []


def test_words_for_what_was_found() -> None:
    content = Content(SIZE)
    ticket, first = content.write(0, 512)
    content.written(ticket)
    ticket, second = content.write(0, 512)
    content.written(ticket)
    for data, words in (
        (first, "expected write 2 to 2, found write 1"),
        (bytes(512), "found zeros"),
        (first[:256] + second[256:], "found a torn write 1"),
        (b"x" * 512, "found something else"),
    ):
        assert not content.judge(content.read(0, 512), data)
        assert words in content.wrong[-1]
    assert content.judge(content.read(0, 512), second)


def test_racing_writes_may_land_in_either_order() -> None:
    content = Content(SIZE)
    older, first = content.write(0, 512)
    newer, second = content.write(0, 512)
    content.written(newer)
    content.written(older)
    assert content.judge(content.read(0, 512), first)
    assert content.judge(content.read(0, 512), second)
    last, third = content.write(0, 512)
    content.written(last)
    assert not content.judge(content.read(0, 512), second)
    assert content.judge(content.read(0, 512), third)


@pytest.mark.parametrize("layout", ["raid5", "rdp"])
def test_a_simulation_with_content_verifies_what_it_reads(layout: str) -> None:
    def load(size_bytes: int) -> Any:
        work = variant("uniform", rate_s=800, read_share=0.4, span_bytes=size_bytes)
        return generate(work, seed=2, requests=1500)

    experiment = Experiment(
        layout=layout, members=("ssd",) * 6, member_bytes=8 << 20, load=load, verify=True
    )
    result = simulate(experiment)
    assert result["verified_bytes"] > 800 * 4096
    assert result["wrong"] == []
