"""`raidx simulate --out` and `--requests`: CSV and Parquet say the same, and whence it comes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
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
STARTED_CPU_S = 5.0  # the start of the program takes less, on slow machines, too
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
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


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
        assert all(row["array.layout"] for row in rows)
    assert all(len(row["spec_sha256"]) == 64 for row in read_csv(files[0]))
    begin = files[1].read_text().splitlines()[:3]
    said = f"version {VERSION}, spec {folder}/small.toml, spec_sha256 "
    assert all(line.startswith(f"# run {run}: {said}") for run, line in enumerate(begin[:2]))
    assert begin[2].startswith("run,experiment,array.layout,at_s,")
    every = read_csv(files[1])
    assert [row["run"] for row in every] == ["0"] * 40 + ["1"] * 40
    assert len(every) == 80
    assert "records" not in answer["experiments"][0]
    first = [float(row["response_s"]) for row in every if row["array.layout"] == "raid5"]
    assert answer["experiments"][0]["response_ms"]["mean"] == pytest.approx(1e3 * sum(first) / 40)
    counts = answer["experiments"][0]["distribution"]
    assert sum(counts["reads"]) + sum(counts["writes"]) == 40
    assert Counter(row["is_write"] for row in every[:40])["True"] == sum(counts["writes"])


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_what_had_ended_is_shown_and_written_at_an_interrupt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(function: Any, parts: Sequence[Any], **_options: Any) -> Iterator[Any]:
        yield function(parts[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("raidx_fuse.cli.commands.experiments.compute", interrupted)
    words = ["simulate", folder / "small.toml", *SWEEP, "--out", folder / "some.csv"]
    answer = json.loads(raidx(*words, status=130))
    assert (len(answer["experiments"]), answer["interrupted"]) == (1, True)
    assert {row["array.layout"] for row in read_csv(folder / "some.csv")} == {"raid5"}
    page = raidx(*(word for word in words if word != "--json"), status=130)
    assert page.splitlines()[-1] == "interrupted: 1 of 2 runs had ended"


def test_an_experiment_that_is_interrupted_says_what_it_had_measured(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(SPEC.replace("requests = 40", "requests = 100_000_000"))
    words = [sys.executable, "-m", "raidx_fuse.cli.main", "simulate", "long.toml"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        while processor_s(running.pid) < STARTED_CPU_S:
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert re.fullmatch(r"small, interrupted after \d+ requests: mean [\d.]+, .* ms\n", printed)


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
