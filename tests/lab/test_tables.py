"""`raidx simulate --out` and `--requests`: CSV and Parquet say the same, and whence it comes."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raidx_fuse.cli.main import main
from raidx_fuse.lab.loads.drive import Recorder
from raidx_fuse.version import VERSION

SPEC = """
name = "small"
seed = 5
[array]
layout = "raid5"
disks = 3
disk_size = "8MiB"
[load]
source = "uniform"
requests = 40
rate = 50
[report]
section = 0.5
"""
SWEEP = ("--sweep", "array.layout=raid5,raid0", "--json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SPEC)
    return tmp_path


def raidx(*words: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, result.output
    return result.output


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(path: Path) -> tuple[list[dict[str, Any]], Any]:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    table = parquet.read_table(path)
    return table.to_pylist(), json.loads(table.schema.metadata[b"raidx"])


def text(value: Any) -> str:
    return "" if value is None else str(value)


def test_both_kinds_of_files_say_the_same_and_where_it_comes_from(folder: Path) -> None:
    files = [folder / name for name in ("rows.csv", "all.csv", "rows.parquet", "all.parquet")]
    words = ["simulate", folder / "small.toml", *SWEEP]
    answer = json.loads(raidx(*words, "--out", files[0], "--requests", files[1]))
    raidx(*words, "--out", files[2], "--requests", files[3], "--workers", "2")
    for sheet, table in ((files[0], files[2]), (files[1], files[3])):
        rows, (typed, origin) = read_csv(sheet), read_parquet(table)
        assert [{k: text(v) for k, v in row.items()} for row in typed] == rows
        assert [run["array.layout"] for run in origin] == ["raid5", "raid0"]
        assert {(run["version"], run["seed"]) for run in origin} == {(VERSION, 5)}
        assert all(len(row["spec_sha256"]) == 64 and row["array.layout"] for row in rows)
    every = read_csv(files[1])
    assert len(every) == 80
    assert "records" not in answer["experiments"][0]
    first = [float(row["response_s"]) for row in every if row["array.layout"] == "raid5"]
    assert answer["experiments"][0]["response_ms"]["mean"] == pytest.approx(1e3 * sum(first) / 40)
    counts = answer["experiments"][0]["distribution"]
    assert sum(counts["reads"]) + sum(counts["writes"]) == 40
    assert Counter(row["is_write"] for row in every[:40])["True"] == sum(counts["writes"])


def test_classes_hold_what_they_say() -> None:
    recorder = Recorder()
    for response_s, is_write in ((0.0, False), (0.00105, False), (0.0109, True), (0.0011, True)):
        recorder.add(0.0, response_s, is_write, 512)
    found = recorder.distribution()
    edges = found["edges_ms"]
    assert (sum(found["reads"]), sum(found["writes"])) == (2, 2)
    assert len(edges) == len(found["reads"]) + 1 == len(found["writes"]) + 1
    for kind, values in (("reads", (1e-3, 1.05)), ("writes", (1.1, 10.9))):
        for value in values:
            (at,) = [n for n in range(len(edges) - 1) if edges[n] <= value < edges[n + 1]]
            assert found[kind][at] == 1
    assert Recorder().distribution() == {"edges_ms": [], "reads": [], "writes": []}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere/x.csv", "there is no such folder"),
        (".", "it is a folder"),
        ("x.parquet", "raidx-fuse[parquet]"),
    ],
)
def test_a_file_that_cannot_be_written_is_said_before_anything_runs(
    folder: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("raidx_fuse.cli.commands.experiments.runs_of", None)
    for option in ("--out", "--requests"):
        out = raidx("simulate", folder / "small.toml", option, folder / name, status=2)
        assert says in out
        assert len(out.splitlines()) <= 2
