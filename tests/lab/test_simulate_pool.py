"""`raidx simulate` with several arrays: a hotspot is found and dissolved; mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import invoke

SMALL = """
name = "small pool"
seed = 3
[pool]
verify = true
settings = { "hot.interval" = "1s", "hot.window" = "3", "hot.tau" = "40%" }
[[arrays]]
name = "red"
layout = "raid1"
disks = 2
disk_size = "32MiB"
log_size = "1MiB"
[[arrays]]
name = "blue"
layout = "raid5"
members = ["hdd", "hdd", "sas10k"]
disk_size = "24MiB"
log_size = "768KiB"
settings = { "hot.tau" = "90%", journal = "none" }
[[volumes]]
name = "r"
array = "red"
size = "4MiB"
count = 3
[[volumes]]
name = "blue"
array = "blue"
size = "6MiB"
[[loads]]
volumes = "*"
source = "uniform"
rate = 5
seconds = 14
[[loads]]
volumes = "r[01]"
begin = 4
source = "uniform"
rate = 60
seconds = 10
numbers = { read_share = 0.9 }
[report]
section = 4
[[events]]
at = 1
do = "set"
key = "balance.auto"
value = "on"
[[events]]
array = "blue"
at = 2
do = "fail"
disk = 0
[[events]]
array = "blue"
at = 2.5
do = "replace"
disk = 0
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "pool.toml"
    path.write_text(SMALL)
    return path


def test_a_hotspot_appears_is_found_and_dissolved(spec: Path) -> None:
    done = invoke("simulate", spec, "--json")
    assert done.exit_code == 0, done.stderr
    (result,) = json.loads(done.stdout)["experiments"]
    red, blue = result["arrays"]
    assert (red["name"], blue["layout"]) == ("red", "raid5")
    hotspot, *_ = result["balance"]["hotspots"]
    assert hotspot["array"] == "red"
    assert 6 < hotspot["begin_s"] < 10
    (move,) = result["balance"]["moves"]
    assert (move["from"], move["to"]) == ("red", "blue")
    assert hotspot["begin_s"] <= move["begin_s"] < move["end_s"]
    volumes: dict[str, Any] = {one["name"]: one for one in result["volumes"]}
    assert volumes[move["volume"]]["array"] == "blue"
    assert move["volume"] in ("r0", "r1"), "one of those that are asked for most"
    assert sum(one["requests"] for one in volumes.values()) == result["requests"]
    assert volumes["r0"]["requests"] > 3 * volumes["r2"]["requests"]
    hot = [one["estimated"] for one in red["utilisation"] if 5 < one["at_s"] <= 7]
    gone = [one["estimated"] for one in red["utilisation"] if move["end_s"] + 1 < one["at_s"] < 14]
    assert min(hot) > 0.4 > max(gone)
    assert result["sections"][1]["utilisation"]["red"] > result["sections"][0]["utilisation"]["red"]
    assert all(len(section["member_queues"]) == 5 for section in result["sections"][:3])
    auto, fail, replace = result["events"]
    assert auto["set"] == "balance.auto=on"
    assert (fail["array"], replace["job"], replace["job_state"]) == ("blue", "rebuild", "done")
    assert result["verified_bytes"] > 0
    assert result["wrong"] == []
    assert result["failed"] == 0
    assert invoke("simulate", spec, "--json").stdout == done.stdout, "the same seed, the same bytes"


def test_a_pool_is_compared_printed_and_tabulated(spec: Path, tmp_path: Path) -> None:
    done = invoke("simulate", spec, spec, "--csv", tmp_path / "out.csv")
    assert done.exit_code == 0, done.stderr
    assert "is a hotspot" in done.stdout
    assert "from red to blue; ended at" in done.stdout
    assert "at 2 s: fail disk 0 of array blue" in done.stdout
    assert "red, %" in done.stdout
    assert "utilisation_blue" in (tmp_path / "out.csv").read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('name = "blue"\nlayout', 'name = "red"\nlayout', "each needs its own name"),
        ('array = "red"', 'array = "green"', "there is no array 'green'"),
        ('volumes = "r[01]"', 'volumes = "x*"', "no volume is called 'x*'"),
        ("begin = 4", "begin = -4", "cannot begin at -4"),
        ("begin = 4", "start = 4", "unknown key 'start'"),
        ("count = 3", "count = 300", "count is 1 to 128"),
        ("count = 3", "", "no volume is called 'r[01]'"),
        ('size = "4MiB"', "", "needs a size"),
        ('size = "4MiB"', 'size = "40MiB"', "do not fit"),
        ('array = "blue"\nat = 2\n', "at = 2\n", "there is no array ''"),
        ('"hot.tau" = "40%"', '"hot.tao" = "40%"', "hot.tau"),
        ("[pool]", "[load]\n[pool]", "unknown key 'load'"),
    ],
)
def test_mistakes_are_named_in_one_line(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    assert before in SMALL
    path = tmp_path / "spec.toml"
    path.write_text(SMALL.replace(before, after, 1))
    done = invoke("simulate", path)
    assert done.exit_code != 0
    (line,) = done.stderr.splitlines()
    assert words in line
    assert done.stdout == ""
