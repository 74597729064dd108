"""Impossible settings, jobs and counters in superblocks: reported, without a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.array.settings import parse, restored_settings
from raidx_fuse.errors import FormatError, RaidxError, UsageError
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import create_array
from raidx_fuse.format.examine import examine
from raidx_fuse.format.regions import Region, Regions
from raidx_fuse.format.superblock import encode_superblock
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from raidx_fuse.settings import KEPT_AS, OF_ARRAY, RETIRED
from tests.support.arrays import ram_array

MIB = 1 << 20


async def change(members: list[RamMember], how: Callable[[ArrayConfig], ArrayConfig]) -> None:
    """Let both superblock slots of *members* have a configuration changed as *how* says."""
    for member in members:
        superblock = await read_superblock(member)
        assert superblock is not None
        for sequence in (superblock.sequence, superblock.sequence + 1):
            new = replace(superblock, sequence=sequence, config=how(superblock.config))
            content = encode_superblock(new)
            at = (sequence % 2) << 16
            member.memory[at : at + len(content)] = content


TEXTS = {
    "parity.policy": ["bpu", "rmw"],
    "journal": ["full", "none"],
    "speed_min": ["0", "1.5GiB"],
    "speed_max": ["7M", "123456789"],
    "io.timeout_s": ["0.1", "5", "86400"],
    "errors.max": ["0", "20", "1000000"],
    "misfits.max": ["1%", "0.05", "100%"],
    "cache.size": ["0", "1MiB"],
    "restore.after": ["off", "1ms", "3600"],
    "tuner.enabled": ["off"],
    "tuner.idle_s": ["0.25"],
    "scrub_each_s": ["0", "604800"],
    "sums": ["on", "off"],
    "sums.cache": ["auto", "0", "64MiB"],
    "log.size": ["auto", "64MiB"],
    "spares.shared": ["on", "off"],
    "bpu.t_light": ["auto", "1us", "0.00001"],
    "bpu.t_heavy": ["auto", "3600"],
    "bpu.t_pre": ["auto", "0", "255"],
    "bpu.t_skew": ["2.5ms"],
    "bpu.a_read": ["auto", "100us"],
    "bpu.a_write": ["1e-7"],
}


@pytest.mark.parametrize("name", sorted(OF_ARRAY))
def test_whatever_the_parser_makes_is_restored(name: str) -> None:
    for text in TEXTS[name]:
        value = parse(name, text)
        kept = {KEPT_AS.get(name, name): value}
        assert restored_settings(kept) == (kept, [])


WRONG: list[Any] = [
    *(
        "impossible",
        "",
        -1,
        1e300,
        10**400,
        -5.5,
        [],
        {},
        True,
        [1],
        {"a": 1},
        float("inf"),
        "9" * 5000,
    )
]


@pytest.mark.parametrize("name", sorted(OF_ARRAY))
def test_no_other_value_is(name: str) -> None:
    other = "speed_max" if name == "speed_min" else "speed_min"
    for value in WRONG:
        if name == "parity.policy" and value == "impossible":
            continue  # a package may have it: tests/engine/test_own_policy.py
        kept, warnings = restored_settings({KEPT_AS.get(name, name): value, other: 5})
        assert kept == {other: 5}
        assert len(warnings) == 1
        assert len(warnings[0]) < 200


async def test_an_array_with_impossible_settings_starts_with_the_defaults() -> None:
    members = await ram_array("raid5", 4)
    wrong = {
        "speed_max": -1,
        "journal": 7,
        "tuner.scrub": "often",
        "io.timeout_s": "NaN",
        "parity.policy": {},
    }
    await change(members, lambda c: replace(c, settings=wrong))
    async with open_array(members) as array:
        assert len([w for w in array.warnings if "setting" in w]) == len(wrong)
        assert array.settings()["speed_max"] == 0
        assert array.context.journal.mode == "partial"
        await array.write(0, b"a")
    async with open_array(members) as array:
        assert not array.warnings


NEWER: list[dict[str, Any]] = [
    {"settings": {"speed_max": 7, "later.one": 5}},
    {"settings": {"balance.auto": "off", "balance.later.one": 5}},
    {"jobs": {"polish:1": {"next_stripe": 5}}},
    {"jobs": {"rebuild:1": {"next_stripe": 5, "later.one": 1}}},
    {"jobs": {"grow": {"back": False, "later.one": 1}}},
    {"jobs": {"away": {"later.one": 1}}},
    {"params": {"later.one": True}},
    {
        "jobs": {"sums": {"algorithm": 1, "copies": 2, "seed": 7, "later.one": 1}},
        "needs": ("sums",),
    },
]


@pytest.mark.parametrize("changes", NEWER)
@pytest.mark.parametrize("read_only", [False, True])
async def test_what_a_newer_raidx_keeps_is_refused_by_name_and_nothing_written(
    changes: dict[str, Any], read_only: bool
) -> None:
    members = await ram_array("raid5", 4)
    await change(members, lambda c: replace(c, **changes))
    before = [bytes(member.memory) for member in members]
    with pytest.raises(FormatError, match=r"later\.one|polish"):
        async with open_array(members, read_only=read_only):
            raise AssertionError("it starts")
    assert [bytes(member.memory) for member in members] == before


RETIRED_VALUES = {
    "journal.parity": "write",
    "bpu.auto": "off",
    "tuner.slice": 0.1,
    "hot.position": 0.005,
    "hot.transfer": 62_000_000,
}


@pytest.mark.parametrize(("name", "value"), RETIRED_VALUES.items())
async def test_a_retired_setting_is_ignored_where_it_was_saved_and_refused_in_one_line(
    name: str, value: Any
) -> None:
    assert RETIRED_VALUES.keys() == RETIRED.keys()
    members = await ram_array("raid5", 4)
    saved = {name: value, "speed_max": 7}
    await change(members, lambda c: replace(c, settings=saved))
    async with open_array(members) as array:
        assert not array.warnings
        assert array.member_set.config.settings == {"speed_max": 7}
        words = f"no setting {re.escape(name)} any more: .{{20}}"
        with pytest.raises(UsageError, match=words):
            await array.set(name, "7")
        await array.write(0, b"a")
    async with open_array(members) as array:
        assert not array.warnings


async def test_a_saved_service_time_of_each_member_is_dropped_with_a_warning() -> None:
    members = await ram_array("raid5", 4)
    await change(members, lambda c: replace(c, settings={"bpu.a_read": "0.001,0.004,auto"}))
    async with open_array(members) as array:
        (warning,) = array.warnings
        assert "not a value of bpu.a_read" in warning
        assert array.get("bpu.a_read") == "auto"
    async with open_array(members) as array:
        assert not array.warnings


JOBS = [
    {"rebuild:1": {"next_stripe": -1}},
    {"rebuild:1": {"next_stripe": 1 << 40}},
    {"rebuild:1": {"next_stripe": "5"}},
    {"rebuild:1": 7},
    {"reshape": 3},
    {"reshape": {"kind": "explode"}},
    {"reshape": {"kind": "evacuate", "role": "first"}},
    {"grow": []},
    {"grow": {"back": False}},  # of a layout that does not grow
    {"restripe": {"back": False}},
    {"restripe": {"back": 5}},
    {"tuner": {"since_scrub_s": "long"}},
    {"bad_chunks": {"steps": "?"}},
]


async def test_a_change_of_chunk_counts_is_no_job_of_a_layout_without_them() -> None:
    members = await ram_array("raid5", 4)
    await change(members, lambda c: replace(c, jobs={"reshape": {"kind": "grow"}}))
    with pytest.raises(FormatError, match="its unfinished 'reshape' is impossible"):
        async with open_array(members):
            raise AssertionError("it starts")


@pytest.mark.parametrize("jobs", JOBS)
@pytest.mark.parametrize("layout", ["raid5", "raidx-parity"])
async def test_impossible_work_is_refused_in_one_line_and_nothing_written(
    jobs: dict[str, Any], layout: str
) -> None:
    def unfinished(config: ArrayConfig) -> ArrayConfig:
        rebuilt = "rebuild:1" in jobs  # its position counts only while the member is rebuilt
        state = "rebuilding" if rebuilt else "active"
        return replace(config.with_record(replace(config.record(Role(1)), state=state)), jobs=jobs)

    members = await ram_array(layout, 4)
    await change(members, unfinished)
    before = [bytes(member.memory) for member in members]
    with pytest.raises(FormatError) as caught:
        async with open_array(members):
            pass
    assert "\n" not in str(caught.value)
    assert [bytes(member.memory) for member in members] == before


PARAMS: list[tuple[str, dict[str, Any]]] = [
    ("raid5", {"history": [5, 4]}),
    ("raidx-parity", {"history": [4]}),
    ("raid5", {"name": "x"}),
    ("raid5", {"rotate": 1}),
    ("raid4", {"history": list(range(2, 5))}),
    ("raid4", {"history": [4], "migrated": 1 << 50}),
    ("raid4", {"history": "abc"}),
    ("raid5", {"restripe": 5}),
    ("raid5", {"restripe": {"from": {"layout": "raid5", "width": 4, "params": 3}, "to": {}}}),
    ("raid5", {"restripe": {s: {"layout": [], "width": 4, "params": {}} for s in ("from", "to")}}),
    (
        "raid5",
        {
            "restripe": {
                s: {"layout": "raid4", "width": 4, "params": {"history": [3, 4]}}
                for s in ("from", "to")
            }
        },
    ),
    ("raidx-parity", {"length": 60_000_000}),
    ("raidx-parity", {"bundles": 1 << 40}),
    ("raidx-parity", {"bundles": True}),
    ("raidx-parity", {"founding": {"counts": [1 << 31] * 4, "bundles": 1 << 31, "roles": []}}),
    ("raidx-parity", {"founding": {"counts": [1 << 60] * 4, "bundles": 1, "roles": [0]}}),
    ("raidx-parity", {"founding": {"counts": [9, 9, 9, 9], "bundles": -1, "roles": [0]}}),
    ("raidx-parity", {"founding": {"counts": [9, 9, 9, 9], "bundles": 3, "roles": [200]}}),
    ("raidx-parity", {"founding": {"counts": [9], "bundles": 3, "roles": []}}),
    ("raidx-parity", {"founding": 5}),
]


@pytest.mark.parametrize(("layout", "params"), PARAMS)
async def test_impossible_parameters_of_a_layout_are_refused_in_one_line(
    layout: str, params: dict[str, Any]
) -> None:
    members = await ram_array(layout, 4)
    kept: dict[str, Any] | None = {} if "restripe" in params else None

    def changed(config: ArrayConfig) -> ArrayConfig:
        return replace(config, params={**(config.params if kept is None else kept), **params})

    await change(members, changed)
    before = [bytes(member.memory) for member in members]
    with pytest.raises(RaidxError) as caught:
        async with open_array(members):
            pass
    assert "\n" not in str(caught.value)
    assert [bytes(member.memory) for member in members] == before


async def test_a_map_too_small_for_the_array_is_refused() -> None:
    members = await ram_array("raid5", 4)

    def shrunk(config: ArrayConfig) -> ArrayConfig:
        data = config.regions.data._replace(length=1 << 41)
        return replace(config, regions=replace(config.regions, data=data))

    await change(members, shrunk)
    with pytest.raises(RaidxError, match="truncated"):
        async with open_array(members):
            pass


async def test_the_table_of_a_new_array_has_a_limit() -> None:
    """Three members of 8 TiB in chunks of 64 KiB took 22 s and 3.9 GiB to open."""
    members = [RamMember(8 << 40, name=f"d{n}") for n in range(3)]
    with pytest.raises(UsageError, match="take larger ones"):
        await create_array(members, "raidx-parity", name="disk", now_s=0)
    await create_array(
        members, "raidx-parity", name="disk", now_s=0, chunk_bytes=MIB, size_bytes=1 << 33
    )


@pytest.mark.parametrize("region", ["bitmap", "written", "log", "data"])
async def test_regions_beyond_the_member_are_not_looked_for(region: str) -> None:
    """A written map of 1 TiB on a file of 1 MiB was memory and minutes."""
    members = await ram_array("raid5", 4)

    def larger(config: ArrayConfig) -> ArrayConfig:
        shift = 0
        regions = {}
        for name, old in config.regions.named().items():
            length = 1 << 40 if name == region else old.length
            regions[name] = Region(old.offset + shift, length)
            shift += length - old.length
        return replace(config, regions=Regions(**regions))

    await change(members, larger)
    document = await examine(members[0])
    assert "truncated" in document["problem"]
    beyond = [page["kind"] for page in document["pages"] if page["problem"]]
    assert (
        beyond
        == {
            "bitmap": ["bitmap", "written", "journal"],
            "written": ["written", "journal"],
            "log": [],
            "data": [],
        }[region]
    )
    with pytest.raises(RaidxError, match="truncated"):
        async with open_array(members):
            pass
