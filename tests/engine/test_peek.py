"""`peek`: every byte it shows against the members' own bytes, and its verdict on the chains."""

from __future__ import annotations

import random
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine import peek as peek_module
from raidx_fuse.engine.peek import Peek
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import Rig, ram_array
from tests.support.load import opened

CHUNK = PAGE = 4096


async def half_written(layout: str = "raid5", width: int = 4) -> tuple[Rig, Array]:
    rig = await opened(Rig(layout, width))
    await rig.array.write(0, random.Random(7).randbytes(rig.array.size_bytes // 2))
    await rig.array.context.journal.place()
    return rig, rig.array


def on_member(rig: Rig, cell: dict[str, Any], begin: int, length: int) -> str:
    """Return what the member has of a cell, read past the array."""
    start = cell["member_offset"] + begin
    view = rig.members[cell["role"]].view(start, length)
    assert view is not None
    return bytes(view).hex()


@pytest.mark.parametrize(
    ("layout", "width"),
    [("raid5", 4), ("rdp", 6), ("evenodd", 5), ("upc", 6), ("raid1", 3), ("raid0", 3)],
)
async def test_the_cells_are_the_bytes_of_the_members_and_the_image(
    layout: str, width: int
) -> None:
    rig, array = await half_written(layout, width)
    for stripe in range(3):
        told = await Peek(array.context).peek(stripe, begin=100, length=64)
        assert len(told["cells"]) == len(array.context.code.cells)
        for cell in told["cells"]:
            assert cell["newest"] == "home"
            assert cell["content"] == cell["home"] == on_member(rig, cell, 100, 64)
            if cell["image_offset"] is not None:
                image = await array.read(cell["image_offset"] + 100, 64)
                assert cell["content"] == bytes(image).hex()
        assert len(told["chains"]) == array.context.code.parity_count
        assert all(c["newest"] == c["home"] == "holds" for c in told["chains"])


async def test_newer_bytes_in_the_log_are_told_from_those_at_home() -> None:
    rig, array = await half_written()
    await array.write(10, b"newer")
    told = await Peek(array.context).peek(0, begin=8, length=8)
    data = told["cells"][0]
    assert (data["newest"], data["logged_bytes"]) == ("log", 5)
    assert bytes.fromhex(data["content"])[2:7] == b"newer"
    assert data["home"] == on_member(rig, data, 8, 8) != data["content"]
    assert [cell["newest"] for cell in told["cells"]] == ["log", "home", "home", "home"]
    (chain,) = told["chains"]
    follows = "the parity follows at the checkpoint"
    assert (chain["newest"], chain["home"]) == (follows, "holds"), "no broken chain"
    assert "parity deferred" in told["state"]
    await array.context.journal.place()
    told = await Peek(array.context).peek(0, begin=8, length=8)
    assert {cell["newest"] for cell in told["cells"]} == {"home"}


@pytest.mark.parametrize("step_bytes", [64 << 10, 512])
async def test_a_broken_chain_says_where(step_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek_module, "STEP_BYTES", step_bytes)
    rig, array = await half_written()
    role, position = array.context.position(*array.context.layout.locate(0))
    await rig.members[role].rot(position + 3000)
    await rig.members[role].rot(position + 4000)
    told = await Peek(array.context).peek(0)
    (chain,) = told["chains"]
    assert (chain["newest"], chain["newest_differs_at"]) == ("broken", 3000)
    assert (chain["home"], chain["home_differs_at"]) == ("broken", 3000)


async def test_a_lost_cell_is_what_the_chains_give_back() -> None:
    _, array = await half_written()
    before = await Peek(array.context).peek(0)
    await array.fail_disk(0)
    told = await Peek(array.context).peek(0)
    (lost,) = [cell for cell in told["cells"] if cell["lost"]]
    assert (lost["newest"], lost["home"]) == ("chains", None)
    assert [c["content"] for c in told["cells"]] == [c["content"] for c in before["cells"]]
    assert told["chains"][0]["newest"].startswith("not checked")


async def test_unwritten_cells_are_marked_and_count_as_zero() -> None:
    _, array = await half_written()
    last = array.context.layout.stripes - 1
    told = await Peek(array.context).peek(last)
    assert {cell["newest"] for cell in told["cells"]} == {"unwritten"}
    assert told["chains"][0]["newest"] == "holds: nothing is written"
    offset = told["cells"][1]["image_offset"]
    await array.write(offset, b"first")
    await array.context.journal.place()
    told = await Peek(array.context).peek(last)
    kinds = [cell["newest"] for cell in told["cells"]]
    assert kinds == ["unwritten", "home", "unwritten", "home"]
    assert told["chains"][0]["newest"] == "holds"


def shown(told: dict[str, Any], name: str) -> tuple[Any, ...]:
    (cell,) = [cell for cell in told["cells"] if cell["cell"] == name]
    return tuple(cell[key] for key in ("newest", "sum", "misfit_at_bytes"))


@pytest.mark.parametrize(
    ("layout", "width"),
    [
        *(("raid5", 4), ("raid1", 2), ("rdp", 6), ("raid0", 3)),
        ("raidx-parity", 4),
        ("raidx-copy", 3),
    ],
)
async def test_a_rotten_page_is_seen_beside_what_a_read_gives_and_left_alone(
    layout: str, width: int
) -> None:
    members: list[Member] = [
        *await ram_array(layout, width, 4 << 20, chunk_bytes=4 * PAGE, sums=True)
    ]
    async with open_array(members) as array:
        sums = array.member_set.sums
        assert sums is not None
        content = random.Random(7).randbytes(1 << 20)
        await array.write(0, content)
        await array.context.journal.place()
        role, position = array.context.position(Stripe(0), CellIndex(0))
        member = members[role]
        assert isinstance(member, RamMember)
        member.memory[position + PAGE + 3] ^= 1
        right = content[PAGE - 2 :][:8].hex()
        for _ in range(2):  # looking heals nothing
            told: dict[str, Any] = {**await Peek(array.context).peek(0, PAGE - 2, 8)}
            data = told["cells"][0]
            assert bytes.fromhex(data["home"])[5] ^ 1 == content[PAGE + 3]
            assert (sums.misfits, sums.suspects) == (0, set())
            assert shown(told, "P0" if array.context.code.is_copies else "D1") == (
                "home",
                "fits",
                [],
            )
            if layout == "raid0":
                assert shown(told, "D0") == ("nowhere", "misfits", [PAGE])
                assert data["content"] is None
                continue
            assert shown(told, "D0") == ("chains", "misfits", [PAGE])
            assert data["content"] == right
            chain = told["chains"][0]
            assert (chain["newest"], chain["home_differs_at"]) == ("holds", PAGE + 3)
        told = {**await Peek(array.context).peek(0, 0, 8)}  # the page beside it
        assert shown(told, "D0") == ("home", "fits", [PAGE])
        last = {**await Peek(array.context).peek(array.context.layout.stripes - 1)}
        assert last["cells"][0]["sum"] is None, "never written"
        if layout == "raid0":
            with pytest.raises(RaidxError):
                await array.read(PAGE, PAGE)
            told = {**await Peek(array.context).peek(0, PAGE, 8)}
            assert shown(told, "D0") == ("nowhere", "misfits", [PAGE]), "known by now"
            assert told["cells"][0]["lost"] is False
            return
        assert await array.read(PAGE, PAGE) == content[PAGE:][:PAGE]
        await wait_all_tasks_blocked()
        assert (sums.misfits, sums.healed) == (1, 1)
        told = {**await Peek(array.context).peek(0, PAGE - 2, 8)}
        assert shown(told, "D0")[1:] == ("fits", [])
        assert told["cells"][0]["content"] == right


async def test_rot_under_newer_bytes_of_the_log_and_rot_that_nothing_gives_back() -> None:
    members: list[Member] = [*await ram_array("raid5", 3, 4 << 20, chunk_bytes=4 * PAGE, sums=True)]
    async with open_array(members) as array:
        await array.write(0, random.Random(7).randbytes(1 << 20))
        await array.context.journal.place()
        for cell in (0, 1):
            role, position = array.context.position(Stripe(0), CellIndex(cell))
            member = members[role]
            assert isinstance(member, RamMember)
            member.memory[position + 3] ^= 1
        told: dict[str, Any] = {**await Peek(array.context).peek(0)}
        assert shown(told, "D0") == shown(told, "D1") == ("nowhere", "misfits", [0])
        await array.write(0, bytes(PAGE))
        told = {**await Peek(array.context).peek(0)}
        assert shown(told, "D0") == ("log", "misfits", [])
        assert told["cells"][0]["content"] == bytes(16).hex()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-1,), "stripe -1 does not exist"),
        ((1 << 40,), "does not exist: the last one is"),
        ((0, 0, 0), "length 0 is out of range"),
        ((0, 0, 5000), "length 5000 is out of range"),
        ((0, 4090, 16), "bytes 4090 to 4106 are outside a chunk of 4096 bytes"),
        ((0, -1, 16), "outside a chunk"),
    ],
)
async def test_what_is_not_there_is_one_line(arguments: tuple[int, ...], words: str) -> None:
    _, array = await half_written()
    with pytest.raises(UsageError, match=words):
        await Peek(array.context).peek(*arguments)
    assert not array.context.locks.held
