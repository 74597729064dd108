"""The published schemas: valid, with a unit for every number; `raidx schema` prints them.

tests/mount/test_schemas.py holds the documents of all commands against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from raidx_fuse.cli.commands.schema import schema_names, schema_of
from tests.support.command import USAGE, checked, raidx

NAMED = {  # unit -> what a name with it ends with, or contains
    "bytes": ("_bytes", "bytes_", "bytes"),
    "seconds": ("_s", "seconds"),
    "milliseconds": ("_ms",),
    "per second": ("_per_second",),
    "ratio": ("_ratio",),
    "MB per second": ("mb_s",),
}
WITHOUT = ("count", "number")
# Names that version 1 has without their unit. A new key gets its unit into its name.
OLD = {
    "as the key unit says": ["done", "total"],
    "bytes": [
        *("at", "begin", "byte_in_chunk", "chunk_size", "discarded", "extents", "free", "from"),
        *("given_back", "home_differs_at", "image_offset", "image_offsets", "image_size"),
        *("length", "loses", "lost_image_offsets", "mean_read", "mean_write", "member_offset"),
        *("member_size", "metadata", "newest_differs_at", "offset", "shift", "size"),
        *("size_after", "size_before", "to", "used", "volume_offset", "wasted", "watermark"),
        *("wiping", "written"),
    ],
    "bytes per second": ["rate", "speed_max", "speed_min"],
    "milliseconds": ["max", "mean", "p50", "p90", "p95", "p99", "p999"],
    "ratio": [
        *("above", "busy", "efficiency", "estimated", "expected", "imbalance", "measured"),
        *("now", "of_time", "speedup", "tau", "utilisation"),
    ],
    "requests per second": ["rate"],
    "units per second": ["rate"],
}


def numbers(
    schema: Any, names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield (the names on the way, schema) of every number in a schema."""
    kinds = schema.get("type", ())
    if {"integer", "number"} & {*([kinds] if isinstance(kinds, str) else kinds)}:
        yield names, schema
    for name, each in schema.get("properties", {}).items():
        yield from numbers(each, (*names, name))
    for name, each in schema.get("$defs", {}).items():
        yield from numbers(each, (name,))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from numbers(schema[keyword], names)
    for each in schema.get("anyOf", ()):
        yield from numbers(each, names)


@pytest.mark.parametrize("name", schema_names())
def test_every_number_has_a_unit_and_new_names_say_it(name: str) -> None:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    for names, number in numbers(schema, ()):
        where, unit = ".".join(names), number.get("unit")
        assert unit, f"{where} has no unit"
        if unit not in WITHOUT and names[-1] not in OLD.get(unit, ()):
            said = any(word in each for each in names for word in NAMED[unit])
            assert said, f"{where}: its name should say {unit}"


def test_the_command_prints_a_schema_that_stands_alone(tmp_path: Path) -> None:
    assert "volume list" in checked(tmp_path, "schema").splitlines()
    printed = json.loads(checked(tmp_path, "schema status"))
    assert json.loads(checked(tmp_path, "schema status --json"))["schema"] == printed
    assert set(printed["$defs"]) >= {"status", "array", "member", "job"}
    refused = raidx(tmp_path, "schema volumes list")
    assert (refused.status, refused.stdout) == (USAGE, "")
    assert "did you mean volume list?" in refused.stderr
