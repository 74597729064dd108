"""`ArrayConfig`: lossless canonical JSON, and what it refuses."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import FormatError, OtherVersionError
from raidx_fuse.format.configuration.config import (
    ACTIVE,
    FAILED,
    MISSING,
    NO_ROLE,
    REBUILDING,
    SPARE,
    ArrayConfig,
    MemberRecord,
    config_to_dict,
    decode_config,
    encode_config,
)
from raidx_fuse.format.configuration.names import is_clean, is_uuid, name_problem
from raidx_fuse.format.regions import COUNTER_MAX, plan_regions
from tests.support.scenario import with_state

uuids = st.uuids().map(str)
clean_text = st.text().filter(is_clean)
names = st.text(min_size=1, max_size=60).filter(lambda text: name_problem(text) is None)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-COUNTER_MAX, COUNTER_MAX)
    | st.floats(-COUNTER_MAX, COUNTER_MAX)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
json_dicts = st.dictionaries(st.text(), json_values, max_size=3)


@st.composite
def configs(draw: st.DrawFn) -> ArrayConfig:
    width = draw(st.integers(1, 8))
    spares = draw(st.integers(0, 2))
    their = draw(st.lists(uuids, unique=True, min_size=width + spares, max_size=width + spares))
    members = [
        MemberRecord(
            role if role < width else NO_ROLE,
            their[role],
            draw(
                st.sampled_from([ACTIVE, FAILED, MISSING, REBUILDING])
                if role < width
                else st.sampled_from([SPARE, MISSING, FAILED])
            ),
            draw(st.integers(0, 1 << 50)),
            draw(clean_text),
            draw(st.booleans()),
        )
        for role in range(width + spares)
    ]
    chunk_bytes = draw(st.sampled_from([4096, 65536, 1 << 20]))
    return ArrayConfig(
        array_uuid=draw(uuids),
        name=draw(names),
        layout=draw(st.text()),
        chunk_bytes=chunk_bytes,
        width=width,
        members=tuple(members),
        regions=plan_regions(
            draw(st.integers(64 << 20, 1 << 45)),
            chunk_bytes,
            width,
            sums_copies=draw(st.integers(0, 3)),
            has_sums=draw(st.booleans()),
        ),
        needs=draw(st.sampled_from([(), ("sums",)])),
        events=draw(st.integers(1, COUNTER_MAX)),
        clean=draw(st.booleans()),
        params=draw(json_dicts),
        jobs=draw(json_dicts),
        settings=draw(json_dicts),
        starts=draw(st.integers(0, 1 << 40)),
        lineage=tuple(draw(st.lists(st.text(), max_size=3))),
        size_bytes=draw(st.none() | st.integers(1, 1 << 60)),
        created_s=draw(st.integers(0, 1 << 37)),
    )


def example(width: int = 3, spares: int = 0) -> ArrayConfig:
    names = iter(str(uuid.UUID(int=1000 + number)) for number in range(99))
    members = [
        MemberRecord(role if role < width else NO_ROLE, next(names), state, 1 << 20)
        for role, state in enumerate([ACTIVE] * width + [SPARE] * spares)
    ]
    return ArrayConfig(
        array_uuid=str(uuid.UUID(int=1)),
        name="disk",
        layout="raid5",
        chunk_bytes=4096,
        width=width,
        members=tuple(members),
        regions=plan_regions(1 << 20, 4096, width),
    )


@settings(deadline=None)
@given(configs())
def test_json_is_lossless_and_canonical(config: ArrayConfig) -> None:
    text = encode_config(config)
    assert text.isascii()
    assert decode_config(text) == config
    values = json.loads(text)
    shuffled = dict(random.Random(7).sample(sorted(values.items()), len(values)))
    again = decode_config(json.dumps(shuffled, indent=2).encode("ascii"))
    assert encode_config(again) == text, "one value has one text"


def test_arrays_without_checksums_say_nothing_of_them() -> None:
    assert b"sums" not in encode_config(example())


@pytest.mark.parametrize("where", [(), ("members", 0), ("regions",)])
def test_a_field_that_is_not_known_is_refused_by_name(where: tuple[str | int, ...]) -> None:
    values: Any = config_to_dict(example())
    inner = values
    for key in where:
        inner = inner[key]
    inner["later"] = [0, 4096]
    with pytest.raises(OtherVersionError, match=r"'later', unknown to this raidx; use the raidx"):
        decode_config(json.dumps(values).encode())


def _changed(**changes: Any) -> bytes:
    return json.dumps({**config_to_dict(example()), **changes}).encode()


WRONG = [
    ("chunk_bytes", 5000, "power of two"),
    ("chunk_bytes", 2048, "power of two"),
    ("chunk_bytes", 2 << 20, "power of two"),
    ("chunk_bytes", "4096", "chunk_bytes is '4096'"),
    ("width", 2, "roles are not 0 to 1"),
    ("width", True, "width is True"),
    ("events", 0, "must be 1 to"),
    ("events", 1.0, r"events is 1\.0"),
    ("array_uuid", "1", "not a UUID"),
    ("array_uuid", str(uuid.UUID(int=0xABC)).upper(), "not a UUID"),
    ("size_bytes", 0, "image size 0"),
    ("clean", 1, "clean is 1"),
    ("lineage", [3], "entry is 3"),
    ("starts", -1, "starts 0 to"),
    ("members", [config_to_dict(example())["members"][0]] * 2, "same UUID"),
    ("members", [], "roles"),
    ("members", [3], "not readable"),
    ("regions", {}, "not readable"),
    ("regions", {**config_to_dict(example())["regions"], "log": [0, 4096]}, "overlaps"),
    ("regions", {**config_to_dict(example())["regions"], "sums": [278528, 4096]}, "data overlaps"),
    ("regions", {**config_to_dict(example())["regions"], "sums": [278528, 0]}, "sums is empty"),
    ("regions", {**config_to_dict(example())["regions"], "sums": None}, "a region is None"),
    ("regions", {**config_to_dict(example())["regions"], "data": [278529, 4096]}, "whole pages"),
    ("regions", {**config_to_dict(example())["regions"], "table": "x"}, "a region is 'x'"),
    ("regions", {**config_to_dict(example())["regions"], "superblock": [0, 4096]}, "128 KiB"),
    (
        "regions",
        {**config_to_dict(example())["regions"], "data": [278528, 0]},
        "no room for a chunk",
    ),
    ("regions", {**config_to_dict(example())["regions"], "data": [278528, 1 << 63]}, "reach to"),
    ("regions", {**config_to_dict(example())["regions"], "log": [147456, 8192]}, "first page"),
    ("regions", {**config_to_dict(example())["regions"], "data": [True, 4096]}, r"\[True, 4096\]"),
    ("width", 60_000_000, "60000000 is no number of members"),
    ("events", (1 << 64) - 1, "must be 1 to"),
    ("starts", (1 << 64) - 1, "starts 0 to"),
    ("size_bytes", 1 << 80, "image size"),
    ("created_s", 1 << 60, "after 1970"),
    ("created_s", -1, "after 1970"),
    ("params", {"length": 1 << 70}, "params has the number"),
    ("params", {"chunk_counts": 5}, "one for each role"),
    ("params", {"chunk_counts": [1 << 60] * 3}, "cannot have"),
    ("params", {"chunk_counts": ["many", 3, 3]}, "cannot have many chunks"),
    ("jobs", {"rebuild:1": {"next_stripe": 1e300}}, "jobs has the number"),
    ("jobs", json.loads("[" * 200 + "]" * 200), "too deep"),
    ("settings", {"x": json.loads("[" * 20 + "]" * 20)}, "too deep"),
    ("name", "", "cannot be an array's name"),
    ("name", "a/b", "cannot be an array's name"),
    ("name", "x" * 300, "cannot be an array's name"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_an_impossible_configuration_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        decode_config(_changed(**{name: value}))


def test_the_history_that_nothing_used_is_written_and_not_required() -> None:
    config = example()
    values = json.loads(encode_config(config))
    assert values["history"] == []  # 79fb2b4 cannot do without
    del values["history"]
    assert decode_config(json.dumps(values).encode()) == config
    with pytest.raises(OtherVersionError, match="has a history, unknown to this raidx"):
        decode_config(json.dumps({**values, "history": [3]}).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b"{}"])
def test_what_is_no_json_document_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match="not readable"):
        decode_config(text)


def test_a_state_must_fit_its_role() -> None:
    config = example(spares=1)
    spare = config.members[-1]
    for record in (replace(spare, state=ACTIVE), replace(spare, state=REBUILDING)):
        assert "cannot be" in (config.with_record(record).problem() or "")
    active = replace(config.record(0), state=SPARE)
    assert "cannot be" in (config.with_record(active).problem() or "")


def test_values_that_json_would_change_are_not_encoded() -> None:
    changed: list[dict[Any, Any]] = [{"pair": (1, 2)}, {1: "key"}]
    for params in changed:
        with pytest.raises(FormatError, match="as it is written"):
            encode_config(replace(example(), params=params))
    for kept in ({"x": float("nan")}, {"x": 10**5000}, {"x": {1}}):
        with pytest.raises(FormatError, match="cannot be written"):
            encode_config(replace(example(), settings=kept))
    with pytest.raises(FormatError, match="as it is written"):  # a path that is no UTF-8
        encode_config(
            replace(
                example(), members=(replace(example().members[0], path_hint="a\udcff"),), width=1
            )
        )


def test_who_takes_a_role_takes_it_from_another() -> None:
    config = example(spares=1)
    spare = config.members[-1]
    first = config.record(0).member_uuid
    failed = with_state(config, 0, FAILED)
    assert failed.excludes(first)
    seated = failed.with_record(replace(spare, role=0, state=REBUILDING))
    assert seated.problem() is None
    assert seated.find(first) is None
    assert seated.excludes(first)
    assert len(seated.members) == 3
    assert seated.roles_in(REBUILDING) == {0}


def test_the_lineage_parts_where_someone_is_left_out() -> None:
    config = example(spares=1)
    assert config.reached() == {record.member_uuid for record in config.members}
    assert config.bumped().parting_from(config) == config.bumped(), "nobody is left out"
    one = with_state(config, 0, FAILED).bumped().parting_from(config)
    other = with_state(config, 1, FAILED).bumped().parting_from(config)
    assert len(one.lineage) == len(other.lineage) == 1
    for parted in (one, other):
        assert parted.extends(config)
        assert not config.extends(parted)
    assert not one.extends(other)
    assert not other.extends(one)
    later = with_state(one, 1, FAILED).bumped().parting_from(one)
    assert later.lineage[:1] == one.lineage
    assert len(later.lineage) == 2
    assert later.extends(one)
    assert not later.extends(other), "who left out the same later went another way still"


def test_a_start_leaves_the_absent_out_and_counts() -> None:
    config = example(spares=1)
    everyone = config.reached()
    started = config.started_with(everyone)
    assert (started.starts, started.lineage, started.clean) == (1, (), False)
    assert started.members == config.members
    absent = config.record(2).member_uuid
    started = config.started_with(everyone - {absent})
    assert started.record(2).state == MISSING
    assert len(started.lineage) == 1
    again = started.started_with(everyone - {absent})
    assert (again.starts, again.lineage) == (2, started.lineage)


def test_a_spare_may_be_away_and_come_back() -> None:
    config = example(spares=1)
    spare = config.members[-1].member_uuid
    away = config.started_with(config.reached() - {spare})
    assert away.members[-1].state == MISSING
    assert len(away.lineage) == 1
    back = away.started_with(config.reached())
    assert back.members[-1].state == SPARE
    assert len(back.lineage) == 1


@settings(deadline=None)
@given(st.text())
def test_only_canonical_uuids_are_uuids(text: str) -> None:
    canonical = False
    try:
        canonical = str(uuid.UUID(text)) == text
    except ValueError:
        canonical = False
    assert is_uuid(text) == canonical


@settings(deadline=None)
@given(st.uuids())
def test_every_uuid_is_one_in_its_canonical_form_only(value: uuid.UUID) -> None:
    assert is_uuid(str(value))
    assert not is_uuid(value.hex)
    assert not is_uuid("{" + str(value) + "}")
    assert not is_uuid(value)


def test_a_number_that_is_none_is_refused() -> None:
    text = _changed(settings={"speed_max": float("nan")})
    with pytest.raises(FormatError, match="NaN is no number"):
        decode_config(text)


def test_names_that_steer_a_terminal_are_read_with_question_marks() -> None:
    record = {**config_to_dict(example())["members"][0], "path_hint": "/disks/\x1b]0;a\udc80\u202e"}
    others = config_to_dict(example())["members"][1:]
    config = decode_config(_changed(name="\x1b[2Jdisk\ud800", members=[record, *others]))
    assert config.name == "?[2Jdisk?"
    assert config.record(0).path_hint == "/disks/?]0;a??"
    assert decode_config(encode_config(config)) == config
