"""Bounds of commands: impossible values are refused early, and nothing long stops the loop."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio

from raidx_fuse.daemon.commands.arguments import check_newcomers
from raidx_fuse.engine import explain
from raidx_fuse.errors import UsageError
from raidx_fuse.jobs import rebuild
from raidx_fuse.units import parse_size
from tests.daemon.conftest import Desk

REFUSED_S = 3.0  # 20,000 names took 26 s


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("add-disk", {"members": [f"d{n}" for n in range(20_000)]}, "20000 members are too many"),
        ("reshape", {"members": [f"d{n}" for n in range(20_000)]}, "20000 members are too many"),
        (
            "add-disk",
            {"members": [f"d{n}" for n in range(252)]},
            "252 members in addition to 4 are too",
        ),
        (
            "add-disk",
            {"members": [f"d{n}" for n in range(252)], "role": "spare"},
            "252 members in addition to 4 are too",
        ),
        (
            "reshape",
            {"members": [f"d{n}" for n in range(252)]},
            "252 members in addition to 4 are too",
        ),
        ("add-disk", {"members": ["a", "b", "a,model=hdd"], "role": "spare"}, "a is named twice"),
        ("replace-disk", {"old": "0", "new": "x" * 9000}, "new is longer than 8192"),
        ("add-disk", {"members": ["a\0b"], "role": "spare"}, "UTF-8 without NUL"),
        ("add-disk", {"members": ["a\udcff"], "role": "spare"}, "UTF-8 without NUL"),
        ("set", {"key": "x" * 9000, "value": "1"}, "key is longer"),
        ("set", {"key": "speed_max", "value": "9" * 5000}, "is not a size"),
        ("set", {"key": "speed_max", "value": "9999999999TiB"}, "more bytes than a file"),
        ("explain", {"offset": 1 << 70}, "offset is too large"),
        ("explain", {"offset": 0, "length": 1 << 40}, "take 1 to"),
        ("stats", {"interval_s": 10**400}, "interval_s is too large"),
        ("stats", {"interval_s": float("nan")}, "interval_s is too large"),
        ("job-limit", {"job": 1, "minimum": 10**30}, "minimum is too large"),
        ("set", {"key": "speed_max", "value": ["y" * 2000] * 200}, "cannot be"),
        ("x" * 100_000, {}, "no command"),
        ("status", {"x" * 100_000: 1}, "no argument"),
    ],
)
async def test_what_nobody_can_mean_is_refused_at_once_in_a_line(
    command: str, arguments: dict[str, Any], said: str, desk: Desk
) -> None:
    begin_s = time.perf_counter()
    with pytest.raises(UsageError, match=said) as refused:
        await desk.ask(command, **arguments)
    assert time.perf_counter() - begin_s < REFUSED_S
    assert len(str(refused.value)) < 1000 or "UTF-8" in said
    assert desk.shelf.opened == {}


def test_as_many_as_an_array_can_have_are_not_too_many() -> None:
    check_newcomers([f"d,{n}" for n in range(250)], range(5))
    with pytest.raises(UsageError, match="at most 255"):
        check_newcomers([f"d,{n}" for n in range(251)], range(5))


async def test_the_longest_request_to_be_explained_is_one_of_so_many_chunks(
    monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    monkeypatch.setattr(explain, "CHUNKS_MAX", 4)
    longest = 4 * desk.array.member_set.config.chunk_bytes
    assert (await desk.ask("explain", offset=0, length=longest))["length"] == longest
    with pytest.raises(UsageError, match=f"take 1 to {longest} bytes"):
        await desk.ask("explain", offset=0, length=longest + 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8EiB", "more bytes than a file"),
        ("9999999999TiB", "more bytes than a file"),
        ("1" + "0" * 4000, "is not a size"),  # too long to be looked at
    ],
)
def test_a_size_beyond_the_kernels_offsets_is_none(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        parse_size(text)
    assert len(str(refused.value)) < 120


async def test_a_dry_run_lets_others_run(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
    monkeypatch.setattr(rebuild, "SCAN_STRIPES", 4)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await desk.ask("replace-disk", old="0", new="n", dry_run=True)
        nursery.cancel_scope.cancel()
    assert turns >= desk.array.context.layout.stripes // 5 > 1
