"""The volume table in the configuration: what is read as written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from raidx_fuse.errors import FormatError
from raidx_fuse.format.configuration.config import (
    ACTIVE,
    ArrayConfig,
    MemberRecord,
    config_to_dict,
    decode_config,
    encode_config,
)
from raidx_fuse.format.configuration.volumes import (
    SOURCE,
    TARGET,
    VOLUMES_MAX,
    Arrived,
    Extent,
    MoveRecord,
    VolumeRecord,
    VolumeTable,
)
from raidx_fuse.format.regions import plan_regions
from tests.format.fuzz_changes import WEIRD

UUID = "00000000-0000-4000-8000-{:012d}"
A_CONFIG = ArrayConfig(
    array_uuid=UUID.format(7),
    name="disk",
    layout="raid0",
    chunk_bytes=4096,
    width=2,
    members=tuple(MemberRecord(n, UUID.format(8 + n), ACTIVE, 1 << 20) for n in range(2)),
    regions=plan_regions(1 << 20, 4096, 2),
)
TABLE = VolumeTable(
    (
        VolumeRecord(UUID.format(1), "mail", 8192, (Extent(4096, 8192),)),
        VolumeRecord(UUID.format(2), "www", 4096, (Extent(16384, 4096), Extent(0, 4096))),
    ),
    (Extent(32768, 4096),),
)


def read_with(values: Any) -> ArrayConfig:
    """Return A_CONFIG with *values* as its table, read from its text."""
    return decode_config(json.dumps({**config_to_dict(A_CONFIG), "volumes": values}).encode())


def stored(table: VolumeTable) -> Any:
    """Return *table* as JSON values, after it was read again as it is."""
    config = replace(A_CONFIG, volumes=table)
    assert decode_config(encode_config(config)) == config
    return json.loads(encode_config(config))["volumes"]


def test_a_table_is_read_as_it_was_written() -> None:
    assert stored(TABLE) == {
        "table": [
            {
                "uuid": UUID.format(1),
                "name": "mail",
                "size": 8192,
                "extents": [[4096, 8192]],
            },
            {
                "uuid": UUID.format(2),
                "name": "www",
                "size": 4096,
                "extents": [[16384, 4096], [0, 4096]],
            },
        ],
        "wiping": [[32768, 4096]],
    }
    assert TABLE.taken() == [(0, 4096), (4096, 8192), (16384, 4096), (32768, 4096)]
    assert TABLE.end() == 36864


def test_an_array_without_a_table_has_the_bytes_of_before() -> None:
    assert b"volumes" not in encode_config(A_CONFIG)
    assert decode_config(encode_config(A_CONFIG)).volumes is None


def test_the_whole_image_has_no_size() -> None:
    whole = VolumeTable((VolumeRecord(UUID.format(1), "disk", None),))
    assert whole.is_whole
    assert stored(whole)["table"][0]["size"] is None


def test_moves_are_read_as_they_were_written() -> None:
    leaving = MoveRecord(UUID.format(3), SOURCE, UUID.format(4), "other")
    coming = MoveRecord(UUID.format(5), TARGET, UUID.format(4), "other", 4096, back=True)
    first, second = TABLE.volumes
    table = replace(
        TABLE,
        volumes=(replace(first, move=leaving), replace(second, move=coming)),
        arrived=(Arrived(UUID.format(6), UUID.format(4)),),
    )
    values = stored(table)
    ids = {"uuid": UUID.format(3), "array": UUID.format(4), "name": "other"}
    assert values["table"][0]["move"] == ids | {"role": "source"}  # the target says how far it is
    ids["uuid"] = UUID.format(5)
    assert values["table"][1]["move"] == ids | {"role": "target", "watermark": 4096, "back": True}
    assert values["arrived"] == [[UUID.format(6), UUID.format(4)]]


def mark(**changes: Any) -> dict[str, Any]:
    ids = {"uuid": UUID.format(3), "array": UUID.format(4)}
    return {**ids, "role": "target", "name": "other", "watermark": 0, "back": False, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "source"},  # with a watermark
        {"role": "both"},
        {"role": None},
        {"uuid": "x"},
        {"array": 7},
        {"name": "a/b"},
        {"name": "a\nb"},
        {"watermark": 100},
        {"watermark": 8192},  # beyond the volume
        {"watermark": -4096},
        {"watermark": 4096.0},
        {"back": 1},
        {"more": 1},
    ],
)
def test_impossible_moves_are_refused(changes: dict[str, Any]) -> None:
    read_with({"table": [volume(move=mark())], "wiping": []})
    with pytest.raises(FormatError, match="the move of a is not possible"):
        read_with({"table": [volume(move=mark(**changes))], "wiping": []})


def test_moves_in_pieces_are_read_as_they_were_written() -> None:
    ids = UUID.format(4), "other"
    leaving = MoveRecord(UUID.format(3), SOURCE, *ids, first=8192)
    coming = MoveRecord(UUID.format(5), TARGET, *ids, 4096)
    records = (
        VolumeRecord(UUID.format(1), "a", 16384, (Extent(0, 8192),), leaving),
        VolumeRecord(UUID.format(2), "b", 16384, (Extent(8192, 4096),), coming),
    )
    table = VolumeTable(records)
    assert stored(table)["table"][0]["move"]["first"] == 8192
    assert table.exchanges
    assert VolumeTable(records[:1]).exchanges
    assert VolumeTable(records[1:]).exchanges
    whole = replace(records[1], size_bytes=4096)  # a move of which all has a place
    assert not VolumeTable((whole,)).exchanges


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first": -4096}, "the move of a is not possible"),
        ({"first": 100}, "the move of a is not possible"),
        ({"first": 20480}, "the move of a is not possible"),  # beyond the volume
        ({"first": None}, "the move of a is not possible"),
        ({"first": True}, "the move of a is not possible"),
        ({"role": "target", "watermark": 0, "back": False}, "the move of a is not possible"),
        ({"first": 8192}, "a cannot have 8192 bytes in 4096 bytes of extents"),
    ],
)
def test_impossible_pieces_are_refused(changes: dict[str, Any], words: str) -> None:
    source = {"uuid": UUID.format(3), "array": UUID.format(4), "role": "source", "name": "other"}
    for more in ({"first": 12288}, changes):
        one = volume(size=16384, move=source | {"first": 12288} | more)
        values = {"table": [one], "wiping": []}
        if more is changes:
            with pytest.raises(FormatError, match=words):
                read_with(values)
        else:
            read_with(values)


@pytest.mark.parametrize("arrived", [{}, [[UUID.format(1)]], [[UUID.format(1), 2]], ["ab"], [7]])
def test_impossible_arrivals_are_refused(arrived: Any) -> None:
    with pytest.raises(FormatError, match="the moves that have ended here are not possible"):
        read_with({"table": [], "wiping": [], "arrived": arrived})


def volume(**changes: Any) -> dict[str, Any]:
    return {"uuid": UUID.format(1), "name": "a", "size": 4096, "extents": [[0, 4096]], **changes}


def other() -> dict[str, Any]:
    return volume(uuid=UUID.format(2), name="b", extents=[[4096, 4096]])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"table": []},
        {"table": [], "wiping": [], "more": 1},
        {"table": {}, "wiping": []},
        {"table": [7], "wiping": []},
        {"table": [volume(more=1)], "wiping": []},
        {"table": [volume(uuid="x")], "wiping": []},
        {"table": [volume(name="")], "wiping": []},
        {"table": [volume(name="a/b")], "wiping": []},
        {"table": [volume(name="..")], "wiping": []},
        {"table": [volume(name="a\x1bb")], "wiping": []},
        {"table": [volume(name="a" * 256)], "wiping": []},
        {"table": [volume(name=7)], "wiping": []},
        {"table": [volume(size=0)], "wiping": []},
        {"table": [volume(size=-4096)], "wiping": []},
        {"table": [volume(size=512)], "wiping": []},
        {"table": [volume(size=8192)], "wiping": []},
        {"table": [volume(size=True)], "wiping": []},
        {"table": [volume(size=4096.0)], "wiping": []},
        {"table": [volume(extents=[])], "wiping": []},
        {"table": [volume(extents=[[0, 0]])], "wiping": []},
        {"table": [volume(extents=[[512, 4096]])], "wiping": []},
        {"table": [volume(extents=[[-4096, 4096]])], "wiping": []},
        {"table": [volume(extents=[[0, 4096, 1]])], "wiping": []},
        {"table": [volume(extents=[[1 << 62, 4096]])], "wiping": []},
        {"table": [volume(extents=7)], "wiping": []},
        {"table": [volume(size=None)], "wiping": []},
        {"table": [volume(size=None, extents=[]), other()], "wiping": []},
        {"table": [volume(size=None, extents=[])], "wiping": [[0, 4096]]},
        {"table": [volume(), other() | {"name": "a"}], "wiping": []},
        {"table": [volume(), other() | {"uuid": UUID.format(1)}], "wiping": []},
        {"table": [volume(), other() | {"extents": [[0, 4096]]}], "wiping": []},
        {"table": [volume()], "wiping": [[0, 4096]]},
        {"table": [volume()], "wiping": 7},
        {"table": [volume()] * (VOLUMES_MAX + 1), "wiping": []},
    ],
)
def test_what_is_no_table_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        read_with(values)


def test_names_that_are_unclean_are_refused_and_others_taken() -> None:
    for name in ("ä 漢", "a b", "-rf"):
        read_with({"table": [volume(name=name)], "wiping": []})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside *value*, itself included."""
    yield path
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(one, (*path, key))


def test_any_value_at_any_place_is_refused_or_read_as_written() -> None:
    whole = stored(TABLE)
    taken = 0
    for path in places(whole):
        for odd in WEIRD:
            values: Any = deepcopy(whole)
            if not path:
                values = odd
            else:
                inner = values
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = odd
            if not isinstance(values, dict):
                continue
            try:
                config = read_with(values)
            except FormatError:
                continue
            taken += 1
            assert config.volumes is not None
            assert stored(config.volumes) == values
    assert taken  # other names are possible
