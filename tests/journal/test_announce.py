"""The announcement of a feature that earlier programs cannot read: durable, carried on, taken back.

tests/format/test_given_back.py shows it to an earlier program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import FormatError, OtherVersionError, RaidxError
from raidx_fuse.format.configuration.config import config_to_dict, decode_config, encode_config
from raidx_fuse.format.configuration.features import FEATURES
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS
from raidx_fuse.format.superblock import read_slots
from raidx_fuse.journal.announce import announce, retract
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import ram_array
from tests.support.superblocks import config

MIB = 1 << 20
TRIED = "a feature to be tried"


@pytest.fixture(autouse=True)
def tried() -> Iterator[None]:
    FEATURES[TRIED] = "nothing"
    yield
    del FEATURES[TRIED]


async def needs(members: Sequence[RamMember]) -> set[tuple[str, ...]]:
    """Return what the newest superblock of each of *members* says of features, where it has one."""
    found = set()
    for member in members:
        held = [slot.superblock for slot in await read_slots(member) if slot.superblock]
        if held:
            found.add(max(held, key=lambda one: one.sequence).config.needs)
    return found


async def ended(array: Array) -> None:
    while running := array.jobs.running():
        await running[0].finished.wait()


def test_it_stands_among_the_parameters_in_both_shapes_of_a_restripe() -> None:
    sides = {
        side: {"layout": layout, "width": 2, "params": {}}
        for side, layout in (("from", "raid1"), ("to", "raid0"))
    }
    for params in ({}, {"restripe": sides}):
        one = config(params=params, needs=(TRIED,))
        text = encode_config(one)
        assert decode_config(text) == one
        stored: Any = json.loads(text)["params"]
        shapes = [stored["restripe"][side]["params"] for side in sides] if params else [stored]
        assert all(shape["needs"] == [TRIED] for shape in shapes)
        assert decode_config(encode_config(replace(one, needs=()))) == config(params=params)


@pytest.mark.parametrize("wrong", [[], "x", [1], [TRIED, TRIED], {TRIED: 1}])
def test_what_is_no_list_of_features_is_refused(wrong: Any) -> None:
    values = config_to_dict(config()) | {"params": {"needs": wrong}}
    with pytest.raises(FormatError, match="the features that it needs are"):
        decode_config(json.dumps(values).encode())


def test_a_feature_that_is_not_known_is_refused_by_name() -> None:
    values = config_to_dict(config()) | {"params": {"needs": ["more", TRIED]}}
    with pytest.raises(OtherVersionError, match="the array needs 'more', unknown to this raidx"):
        decode_config(json.dumps(values).encode())


@pytest.mark.parametrize("layout", ["raid5", "raidx-parity"])
async def test_it_is_durable_when_it_returns_and_outlives_every_change_of_the_layout(
    layout: str,
) -> None:
    members = await ram_array(layout, 4, 2 * MIB, log_bytes=512 << 10)
    async with open_array(members) as array:
        await array.write(0, b"x" * 50_000)
        await announce(array.member_set, TRIED)
        assert await needs(members) == {(TRIED,)}
        await announce(array.member_set, TRIED)
        members.append(RamMember(2 * MIB, name="more"))
        await array.grow(members[-1:])
        assert await needs(members) == {(TRIED,)}
        await ended(array)
    async with open_array(members) as array:
        assert array.member_set.config.needs == (TRIED,)
        if layout == "raid5":
            members.append(RamMember(2 * MIB, name="last"))
            await array.restripe(members[-1:], "rdp", {})
            assert await needs(members) == {(TRIED,)}
            await ended(array)
            assert array.member_set.config.layout == "rdp"
        members.append(RamMember(2 * MIB, name="other"))
        await array.replace_disk(1, members[-1])
        await ended(array)
        assert await needs(members) == {(TRIED,)}
        await retract(array.context.journal, array.member_set, TRIED)
        assert await needs(members) == {()}
        assert bytes(await array.read(0, 50_000)) == b"x" * 50_000


class Watched(FaultMember):
    """Calls *on_superblock* before each write of a superblock."""

    on_superblock: Callable[[], None] = staticmethod(lambda: None)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        if offset_bytes < SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS:
            Watched.on_superblock()
        await super().writev(offset_bytes, buffers)


async def test_without_its_superblocks_it_is_not_announced_and_it_goes_with_an_empty_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rams = await ram_array("raid0", 2, 2 * MIB, log_bytes=512 << 10)
    members = [Watched(ram) for ram in rams]
    async with open_array(members) as array:
        members[1].error(("write",))
        with pytest.raises(RaidxError, match="superblock"):
            await announce(array.member_set, TRIED)
        with pytest.raises(RaidxError, match="superblock"):
            await announce(array.member_set, TRIED)
        members[1].clear()
        await announce(array.member_set, TRIED)
        assert await needs(rams) == {(TRIED,)}
        await array.write(0, b"y" * 700)
        ring = array.context.journal.ring
        empty: list[bool] = []

        def look() -> None:
            empty.append(not ring.open and ring.durable_tail[0] == ring.next_sequence)

        look()
        monkeypatch.setattr(Watched, "on_superblock", staticmethod(look))
        await retract(array.context.journal, array.member_set, TRIED)
        assert empty[0] is False
        assert len(empty) == 3
        assert all(empty[1:])
        assert await needs(rams) == {()}
