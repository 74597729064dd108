"""Every command's document under --json fits its published schema, on real arrays.

One mount with two arrays, and every command on it; before and after it, the arrays at rest. A key
that a schema does not describe is an error here, so that none is published by accident.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator

from raidx_fuse.cli.commands.schema import schema_names, schema_of
from raidx_fuse.cli.main import main
from raidx_fuse.client.status_document import document
from raidx_fuse.daemon.control_client import call
from raidx_fuse.fuse import mountpoint
from tests.mount.real_array import take_down_mount
from tests.support.command import raidx
from tests.support.waiting import await_that

pytestmark = [pytest.mark.mount]
EXPERIMENTS = Path(__file__).parents[2] / "examples" / "experiments"

LINES = """
create --size 64MiB a b c d
create --layout raid5 --size 64MiB --name west -n a b c d
create --layout raid5 --size 64MiB --name west --no-volume a b c d
create --layout raid5 --name west --if-missing a b c d
create --layout raidx-parity --length 3 --size 64MiB --name east --no-volume e f g h
status a b c d
status a b c
scan .
examine a b
check a b c d
wait nowhere
mount --lab a b c d e f g h mnt
mount --if-missing a b c d e f g h mnt
status mnt
status mnt:west
status mnt --check
wait mnt --timeout 10
stats mnt
stats mnt:west --hot
stats mnt:west 0.1
stats mnt:west 0.1 2
get mnt:west
get mnt:west speed_min
set mnt:west speed_min=1M
set mnt hot.interval=0.1
volume create mnt west --size 32MiB --on west
volume create mnt one --size 4MiB --on east
get mnt hot.tau
events
events mnt --since 1h
events mnt:west --test
scan .
damage mnt:west
explain mnt:west 0
explain mnt:west 0 4KiB --write
explain mnt:west 0 4KiB --write --step
explain mnt:west --stripe 0
explain mnt:west 2MiB --member a
peek mnt:west 0
trim mnt:west 0 64KiB -n --volume west
replay zipf mnt:west --requests 20 --as-fast-as-possible --volume west --lose-data
volume list mnt
resize mnt:west max -n
resize mnt:west 40MiB
volume create mnt small --size 1MiB --on east
volume create mnt small --size 1MiB --if-missing
volume resize mnt small 2MiB -n
volume resize mnt small 2MiB
volume rename mnt small little
volume list mnt
array list mnt
array list
volume delete mnt little -n
volume delete mnt little
volume delete mnt little --if-exists
trim mnt:west 0 64KiB --volume west --lose-data
explain mnt --balance
balance mnt -n
balance mnt --status
balance mnt
volume create mnt two --size 256KiB --on east
volume move mnt two west -n
volume move mnt two west --wait
array evacuate mnt west -n
volume swap mnt one west -n
array evacuate mnt east -n
volume swap mnt one west --wait
array evacuate mnt east --wait
scrub mnt:west
job mnt:west wait
scrub mnt:west --repair --wait
job mnt:west
job mnt:west list
watch mnt:west --once
advise mnt:west
tune mnt:east
advise mnt:east
tune mnt:east --now -n
tune mnt:east --now --wait
add-disk mnt:east new4 --create -n
fail-disk mnt:west 1 -n
fail-disk mnt:west 1
status mnt:west
online mnt:west 1 -n
online mnt:west 0
online mnt:west 1 --wait
clear mnt:west
fail-disk mnt:west 1
replace-disk mnt:west 1 new1 --create -n
replace-disk mnt:west 1 new1 --create --wait
add-disk mnt:west new2 --create -n
add-disk mnt:west new2 --create --as spare
add-disk mnt:west new2 --as spare --if-missing
remove-disk mnt:west new2 -n
remove-disk mnt:west new2
remove-disk mnt:west new2 --if-exists
add-disk mnt:west new3 --create --wait
reshape mnt:west --layout raid4 -n
remove-disk mnt:west 4 -n
remove-disk mnt:west 4 --wait
set mnt:west speed_max=64KiB
reshape mnt:west --layout raid4
job mnt:west pause
job mnt:west resume
job mnt:west limit --max 1GiB
job mnt:west wait
inject mnt:west 0 slow --delay 0.001
inject mnt:west 0 return
crash mnt --seed 1
status mnt
wait mnt:east --timeout 60
umount mnt
mount e f g h mnt
status mnt
array forget mnt west
umount mnt
serve e f g h --nbd unix:door
volume list door
umount door
umount door --if-exists
rename e f g h western
save-metadata e f g h saved
wipe e --lose-data
restore-metadata saved e f g h
restore-metadata saved e f g h --yes
lab reset scratch --disks 3 --size 16MiB
lab end scratch
check e f g h
peek e f g h 0
wipe b --lose-data
wipe b
destroy e f g h -n
destroy e f g h --lose-data
destroy e f g h --lose-data --if-exists
schema
schema status
layout list
layout show raid5 --disks 4
layout chains rdp --disks 5
layout map raid5 --disks 4 --chunks 4
layout recover rdp --disks 6 --lost 0,1
layout recover rdp --disks 6 --lost 0 --step
layout bundles --length 3 --disk-chunks 7,4,5,4
layout load upc --disks 6 --writes random:10:1
quiz --count 2
quiz --count 2 --answers
quiz --check answers --count 1
completions bash
completions --install --prefix share
simulate experiment.toml
simulate pool.toml
"""


OPEN = {"additionalProperties"}
FAILS = (
    *("wait nowhere", "stats mnt", "quiz --check answers --count 1"),
    "create --size 64MiB a b c d",
)


def leaves(group: click.Group, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def undescribed(value: Any, schema: Any, defs: dict[str, Any], where: str) -> Iterator[str]:
    """Yield the keys in *value* that no part of *schema* describes."""
    parts = list(parts_of(schema, defs))
    if any(not part for part in parts):  # anything goes
        return
    if isinstance(value, list):
        items = [part["items"] for part in parts if "items" in part]
        for each in value:
            yield from undescribed(each, {"anyOf": items}, defs, f"{where}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            known = [part["properties"][key] for part in parts if key in part.get("properties", {})]
            others = [
                part["additionalProperties"] for part in parts if "additionalProperties" in part
            ]
            if known or others:
                kinds = [kind for kind in known or others if isinstance(kind, dict)]
                yield from undescribed(each, {"anyOf": kinds or [{}]}, defs, f"{where}.{key}")
            elif not any(part.get("description", "").startswith("Not covered") for part in parts):
                yield f"{where}.{key}"


def parts_of(schema: dict[str, Any], defs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield *schema* and those that it refers to or chooses from."""
    if "$ref" in schema:
        yield from parts_of(defs[schema["$ref"].rpartition("/")[2]], defs)
    for each in schema.get("anyOf", ()):
        yield from parts_of(each, defs)
    if not {"$ref", "anyOf"} & schema.keys() or "properties" in schema:
        yield schema


def called(line: str) -> str:
    """Return the name of the command of a line."""
    first, *rest = line.split()
    return f"{first} {rest[0]}" if first in ("layout", "volume", "array", "lab") else first


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, Any]]]:
    """Return (line, document) of every line above, run in a folder of its own."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "mnt").mkdir()
    (folder / "answers").write_text("1: 0\n")
    for name, source in (("experiment", "failing-disk"), ("pool", "hotspot-pool")):
        text = (EXPERIMENTS / f"{source}.toml").read_text().replace("512MiB", "32MiB")
        text = re.sub(r"(?m)^rate = \d+", "rate = 1", text)  # the shape of the document is enough
        (folder / f"{name}.toml").write_text(text)
    found = []
    try:
        for line in LINES.split("\n")[1:-1]:
            if line.startswith("explain mnt --balance"):
                await_that(lambda: is_observed(folder))
            done = raidx(folder, f"{line} --json")
            assert (done.status != 0) == (line in FAILS), f"{line}: {done.stderr}"
            found.append((line, json.loads(done.stdout)))
        yield found
    finally:
        if mountpoint.find(folder / "mnt") is not None:
            take_down_mount(str(folder / "mnt"))


def is_observed(folder: Path) -> bool:
    """Return whether the load was observed often enough for a plan."""
    loads = call(folder / "mnt", "status")["pool"]["arrays"]
    return all(load["observations"] > 2 for load in loads)


def test_documents_fit_their_schemas(documents: list[tuple[str, Any]]) -> None:
    problems = []
    for line, printed in documents:
        schema = schema_of("error" if line in FAILS[:2] else called(line))
        for error in Draft202012Validator(schema).iter_errors(printed):
            problems.append(f"{line}: {error.json_path}: {error.message[:200]}")
        problems += [
            f"{line}: {key}" for key in undescribed(printed, schema, schema.get("$defs", {}), "")
        ]
    assert not problems, "\n".join(problems)


def test_a_status_of_several_mounts_has_the_same_shape() -> None:
    one: Any = {"uuid": "u", "name": "disk"}
    several: Any = {"arrays": [one]}
    problem: Any = {"mountpoint": "/mnt", "problem": "the daemon of /mnt is gone"}
    shown = {**document([several, one], [problem]), "output_version": 1}
    assert isinstance(shown["arrays"], list)
    assert [each["name"] for each in shown["arrays"]] == ["disk", "disk"]
    assert set(shown) == {"output_version", "arrays", "problems"}
    schema = schema_of("status")
    assert set(schema["$defs"]["status"]["required"]) == set(shown)


def test_every_command_has_a_schema_and_is_tried(documents: list[tuple[str, Any]]) -> None:
    assert set(schema_names()) == {*leaves(main), "error"}
    tried = {called(line) for line, _ in documents}
    assert tried == set(leaves(main)) - {"view"}, "which runs until it is ended: tests/view"
