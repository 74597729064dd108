"""The command `trace` on an array of RAM members, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from raidx_fuse.daemon.commands.trace import CELLS_MAX, LEASE_S, OPERATIONS_KEPT, REQUESTS_KEPT
from raidx_fuse.errors import UsageError
from tests.daemon.conftest import Desk, desk_of

CHUNK = 4096


def laid_over(desk: Desk) -> list[str]:
    """Return the methods of queues that something stands before, and whether volumes are noted."""
    queues = [queue for queue in desk.array.member_set.queues if queue is not None]
    names = [name for queue in queues for name in vars(queue) if name in dir(type(queue))]
    return [name for name in names if callable(getattr(type(queues[0]), name))]


async def test_nothing_is_noted_before_somebody_asks(desk: Desk) -> None:
    assert laid_over(desk) == []
    assert desk.volume.read == desk.array.read
    await desk.volume.read(0, CHUNK)
    told = await desk.ask("trace")
    assert (told["next"], told["cells"], told["requests"]) == (0, [], [])
    assert "try_readv" in laid_over(desk)


async def test_a_small_write_shows_its_request_and_the_cells_that_it_writes(desk: Desk) -> None:
    await desk.array.context.journal.place()
    first = (await desk.ask("trace"))["next"]
    await desk.volume.write(CHUNK, b"x" * 512)
    await desk.array.flush()
    await desk.array.context.journal.place()
    told = await desk.ask("trace", since=first)
    (request,) = told["requests"]
    assert request["operation"] == "write"
    assert (request["offset"], request["image_offset"], request["length"]) == (
        CHUNK,
        CHUNK,
        512,
    )
    written = {(stripe, cell) for stripe, cell, writes, _ in told["cells"] if writes}
    assert written == {(0, "D1"), (0, "P0")}  # by the checkpoint
    assert told["log"], "the record"
    assert told["missed"] == 0
    again = await desk.ask("trace", since=told["next"])
    assert (again["cells"], again["requests"], again["next"]) == ([], [], told["next"])


async def test_a_degraded_read_shows_every_cell_that_it_needs(desk: Desk) -> None:
    await desk.array.context.journal.place()
    role, _ = desk.array.context.layout.place(0, 0)
    await desk.ask("fail-disk", member=str(role))
    first = (await desk.ask("trace"))["next"]
    await desk.volume.read(0, CHUNK)
    told = await desk.ask("trace", since=first)
    needed = {(0, name, False) for name in ("D1", "D2", "P0")}
    assert {(s, c, w) for s, c, w, _ in told["cells"]} == needed


async def test_the_answer_is_bounded_and_says_what_it_left_out(desk: Desk) -> None:
    await desk.ask("trace")
    for _ in range(3 * OPERATIONS_KEPT):
        await desk.volume.read(0, 512)
    told = await desk.ask("trace")
    assert len(told["requests"]) == REQUESTS_KEPT
    assert told["cells"] == [[0, "D0", False, OPERATIONS_KEPT]]
    assert told["missed"] == 6 * OPERATIONS_KEPT - OPERATIONS_KEPT - REQUESTS_KEPT
    assert len(told["cells"]) <= CELLS_MAX


async def test_it_ends_by_itself_when_nobody_asks_any_more(desk: Desk) -> None:
    await desk.ask("trace")
    await trio.sleep(LEASE_S + 1)
    await desk.volume.read(0, CHUNK)  # the first one notices
    assert laid_over(desk) == []
    assert desk.volume.read == desk.array.read
    assert (await desk.ask("trace"))["requests"] == []
    await desk.volume.read(0, CHUNK)
    assert len((await desk.ask("trace"))["requests"]) == 1, "and begins again"


async def test_new_members_and_bound_volumes_are_noted_too(desk: Desk) -> None:
    await desk.ask("trace")
    await desk.ask("replace-disk", old="0", new="new")
    await trio.sleep(60)  # virtual: the rebuild ends
    assert not desk.array.jobs.running()
    first = (await desk.ask("trace"))["next"]
    desk.volume.bind(desk.array.read, desk.array.write, desk.array.flush)
    role, _ = desk.array.context.layout.place(0, 0)
    assert role == 0
    await desk.volume.read(0, CHUNK)
    told = await desk.ask("trace", since=first)
    assert told["cells"] == [[0, "D0", False, 1]]
    assert len(told["requests"]) == 1


@pytest.mark.parametrize("since", [-1, "0", None, 1 << 80])
async def test_a_bad_question_is_refused(since: Any, desk: Desk) -> None:
    with pytest.raises(UsageError):
        await desk.ask("trace", since=since)
    assert laid_over(desk) == []


@pytest.mark.parametrize(
    ("layout", "width"), [("raid1", 2), ("rdp", 6), ("upc", 6), ("raidx-parity", 5)]
)
async def test_every_layout_finds_the_cells_of_its_places(layout: str, width: int) -> None:
    async with desk_of(layout, width) as desk:
        await desk.array.context.journal.place()
        first = (await desk.ask("trace"))["next"]
        await desk.volume.read(5 * CHUNK, CHUNK)
        told = await desk.ask("trace", since=first)
        stripe, cell = desk.array.context.layout.locate(5)
        if desk.array.context.code.is_copies:
            assert [c[0] for c in told["cells"]] == [stripe]
        else:
            assert told["cells"] == [[stripe, f"D{cell}", False, 1]]
