"""Sweeps: every combination, with seeds and errors; over processes and over a Dask scheduler."""

from __future__ import annotations

import csv
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.experiments.spec import SweepRun, parse_axis, points, runs_of
from raidx_fuse.lab.workers import compute, executor
from raidx_fuse.version import VERSION
from tests.support.command import invoke, run
from tests.support.dying import always_die, compute_or_die
from tests.support.waiting import await_that

SPEC = """
name = "small"
seed = 5
[array]
layout = "raid5"
disks = 5
disk_size = "16MiB"
[load]
source = "uniform"
requests = 40
rate = 50
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return str(path)


def test_a_sweep_runs_every_combination_and_says_where_figures_come_from(
    spec: str, tmp_path: Path
) -> None:
    sheet = tmp_path / "all.csv"
    words = ["--sweep", "array.layout=raid5,rdp", "--sweep", 'array.settings."journal"=none,full']
    answer = json.loads(
        run("simulate", spec, *words, "--repeat", "2", "--csv", str(sheet), "--json")
    )
    assert [point["sweep"] for point in answer["points"]] == [
        {"array.layout": layout, 'array.settings."journal"': journal}
        for layout in ("raid5", "rdp")
        for journal in ("none", "full")
    ]
    first = answer["points"][0]["measures"]["response mean, ms"]
    means = [run["response_ms"]["mean"] for run in answer["experiments"][:2]]
    assert first["mean"] == pytest.approx(sum(means) / 2)
    assert first["se"] == pytest.approx(abs(means[0] - means[1]) / 2)  # stdev / sqrt(2)
    rows = list(csv.DictReader(sheet.read_text().splitlines()))
    assert len(rows) == 8
    assert [row["seed"] for row in rows] == ["5", "6"] * 4
    assert {row["array.layout"] for row in rows} == {"raid5", "rdp"}
    assert rows[0]["version"] == VERSION
    assert len(rows[0]["spec_sha256"]) == 64
    assert "s.e." in run("simulate", spec, "--repeat", "2")


def test_results_do_not_depend_on_the_number_of_workers(spec: str) -> None:
    words = ["simulate", spec, "--sweep", "load.rate=50,80", "--json"]
    assert run(*words) == run(*words, "--workers", "2")


def test_one_run_has_no_error_and_two_have_one() -> None:
    (run,) = runs_of([SweepRun(SPEC, "s", "")], [], 1, None)
    measure = {"mean": 1.0, "p50": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0}
    result = {
        **{"spec": run.name, "name": "s", "sweep": {}, "requests": 1, "rate": 1.0, "failed": 0},
        **{"response_ms": measure, "read_ms": measure, "write_ms": measure, "held_back": 0},
        "members": [{"role": 0, "reads": 1, "writes": 1, "utilisation": 0.5, "queue_mean": 0.1}],
        "array": dict.fromkeys(("pre_reads", "rmw", "rcw", "full_stripe", "degraded_reads"), 0),
    }
    assert points([result])[0]["measures"]["p95"] == {"mean": 1.0, "se": None}
    assert points([result, result])[0]["measures"]["p95"] == {"mean": 1.0, "se": 0.0}


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ("load", "not KEY=a,b,c"),
        ("load.rate=1,,2", "not KEY=a,b,c"),
        ("load rate=1", "is no key"),
        ("load.rate.x=1", "rate is not a table"),
        ("array.layuot=raid5", "unknown key 'layuot'"),
        ("load.rate=fast", "rate is a number"),
    ],
)
def test_a_wrong_key_is_said_before_anything_runs(axis: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        runs_of([SweepRun(SPEC, "s", "")], [parse_axis(axis)], 1, None)
    with pytest.raises(UsageError, match="at most 100000 runs"):
        runs_of([SweepRun(SPEC, "s", "")], [], 100_001, None)


def test_parts_of_a_lost_process_are_computed_again(tmp_path: Path) -> None:
    parts = [(str(tmp_path), number, None) for number in range(6)]
    found = list(compute(compute_or_die, parts, workers=2))
    assert found == [(number, "") for number in range(6)]
    assert (tmp_path / "died").exists()


def test_workers_that_are_lost_again_and_again_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raidx_fuse.lab.workers.LOST_MAX", 0)
    with pytest.raises(RaidxError, match="ended 1 times, at part 0"):
        list(compute(always_die, range(2), workers=2))


def test_workers_end_when_the_program_is_killed() -> None:
    """They hold each other's pipes open, and would wait for their next part for good."""
    words = [sys.executable, "-m", "raidx_fuse.lab.crash", "--states", "100000", "--workers", "2"]
    program = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    deadline_s = time.monotonic() + 60
    workers: list[Path] = []
    try:
        while len(workers) < 3 and time.monotonic() < deadline_s:  # with the tracker of resources
            workers = [Path("/proc", child) for child in children.read_text().split()]
            time.sleep(0.1)
    finally:
        program.kill()
        program.wait()
    assert len(workers) == 3
    await_that(lambda: not any(worker.exists() for worker in workers), "they end")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """Start a Dask scheduler and three workers as processes; yield the scheduler's address."""
    file = tmp_path / "scheduler.json"

    def start(program: str, *words: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *words]
        away = subprocess.DEVNULL
        return subprocess.Popen(
            [*line, "--scheduler-file", str(file)], stdout=away, stderr=away, cwd=ROOT
        )

    started = [start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")]
    try:
        started += [start("dask_worker", "--no-nanny", "--nthreads", "1") for _ in range(3)]
        for _ in range(600):
            if file.exists() and file.stat().st_size:
                break
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_sweep_over_three_workers_of_which_one_is_killed(
    scheduler: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler gives the runs of the lost one to the others; results are the same."""
    distributed = pytest.importorskip("distributed")
    with distributed.Client(scheduler, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)
        runs = runs_of([SweepRun(SPEC, "s", "")], [parse_axis("load.rate=50,80,90")], 2, None)
        parts = [(str(tmp_path), number, run) for number, run in enumerate(runs)]
        found = list(compute(compute_or_die, parts, scheduler=scheduler))
        assert (tmp_path / "died").exists()
        assert len(client.scheduler_info()["workers"]) == 2
    assert found == [compute_or_die(part) for part in parts]
    words = ["simulate", spec, "--sweep", "load.rate=50,80", "--json"]
    assert run(*words) == run(*words, "--scheduler", scheduler)
    tasks = campaign.tasks_of([Cell("raid5", "partial")], 60, 1)
    assert list(compute(campaign.run_task, tasks, scheduler=scheduler)) == [
        campaign.run_task(task) for task in tasks
    ], "the campaign of power cuts"
    # A program of the report: its folder is on no worker.
    monkeypatch.syspath_prepend(ROOT / "bench" / "figures")
    program = importlib.import_module("raidx_runs")
    load = program.Load("websearch1", 64 << 20, 100)
    order = program.Run("raidx-copy", (program.SSD, program.DISK), (load,))
    with executor(program.measure, 1, scheduler) as submit:
        assert submit(order).result(timeout=60) == program.measure(order)
        broken = submit(order._replace(layout="raid9"))
        with pytest.raises(UsageError, match="raid9"):
            broken.result(timeout=60)


def test_a_scheduler_that_is_not_there_is_said_in_one_line(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raidx_fuse.lab.workers.CONNECT_S", 0.1)
    result = invoke("simulate", spec, "--scheduler", "tcp://127.0.0.1:1")
    assert result.exit_code == 2
    assert "no scheduler answers at tcp://127.0.0.1:1" in result.output
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = invoke("simulate", spec, "--scheduler", "tcp://127.0.0.1:1")
    assert "raidx-fuse[cluster]" in result.output
