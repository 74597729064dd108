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
from statistics import fmean, stdev

import pytest

from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.lab.crash import campaign
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.experiments import intervals
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
    assert first["half"] == pytest.approx(12.706 * first["se"])  # Student's t, one degree
    assert "\u00b1" in run("simulate", spec, "--repeat", "2")


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
    assert points([result])[0]["measures"]["p95"] == {"mean": 1.0, "se": None, "half": None}
    two = points([result, result])[0]["measures"]["p95"]
    assert two == {"mean": 1.0, "se": 0.0, "half": 0.0}


def test_a_baseline_is_compared_within_pairs_of_the_same_requests(spec: str) -> None:
    words = [spec, "--baseline", "array.model=sas10k", "--repeat", "4"]
    words += ["--sweep", "load.rate=20,50"]
    answer = json.loads(run("simulate", *words, "--json"))
    assert len(answer["experiments"]) == 16
    assert [point["sweep"]["load.rate"] for point in answer["differences"]] == [20, 50]
    means: dict[str, list[float]] = {"": [], "sas10k": []}  # "": the file names none
    for result in answer["experiments"]:
        if result["sweep"]["load.rate"] == 20:
            means[result["sweep"]["array.model"]].append(result["response_ms"]["mean"])
    assert len({*means[""], *means["sas10k"]}) == 8, "each seed has a load of its own"
    point = answer["differences"][0]
    assert (point["runs"], point["baseline"]) == (4, {"array.model": "sas10k"})
    measure = point["measures"]["response mean, ms"]
    assert measure["baseline"] == pytest.approx(fmean(means["sas10k"]))
    assert measure["ours"] == pytest.approx(fmean(means[""]))
    each = [ours - theirs for theirs, ours in zip(means["sas10k"], means[""], strict=True)]
    assert measure["difference"] == pytest.approx(fmean(each))
    half = 3.182 * stdev(each) / 2  # Student's t, three degrees
    assert measure["high"] - measure["low"] == pytest.approx(2 * half, rel=1e-3)
    assert measure["low"] > 0, "hdd is slower"
    mean, low, high = measure["percent"]
    assert 0 < low < mean < high
    page = run("simulate", *words)
    assert "95 % interval" in page
    assert "array.model=sas10k" in page


def test_pairs_show_what_the_spread_of_loads_hides() -> None:
    theirs, ours = [1.0, 2.0, 3.0, 4.0], [1.1, 2.1, 3.15, 4.1]
    paired = intervals.difference(theirs, ours)
    assert paired.low is not None
    assert paired.low > 0
    alone = [intervals.estimate(side) for side in (theirs, ours)]
    assert alone[0].high is not None
    assert alone[1].low is not None
    assert alone[1].low < alone[0].high


def test_what_a_sweep_has_already_is_the_baseline_without_another_run(spec: str) -> None:
    words = ["--sweep", "array.layout=raid5,rdp", "--baseline", "array.layout=raid5"]
    answer = json.loads(run("simulate", spec, *words, "--repeat", "2", "--json"))
    assert len(answer["experiments"]) == 4
    same, other = answer["differences"]
    assert same["measures"]["p95"]["difference"] == 0
    assert same["baseline"] == {}
    assert other["sweep"] == {"array.layout": "rdp"}
    assert other["measures"]["p95"]["difference"] != 0


def test_repetitions_of_a_trace_use_one_part_after_the_other(tmp_path: Path) -> None:
    lines = (f"0,{8 * n},{512 * (1 + n // 20)},r,{0.01 * n:.2f}" for n in range(60))
    (tmp_path / "load.spc").write_text("\n".join(lines))
    path = tmp_path / "traced.toml"
    path.write_text(SPEC.replace('"uniform"', '"load.spc"').replace("= 40", "= 20"))
    results = json.loads(run("simulate", path, "--repeat", "3", "--json"))["experiments"]
    assert [result["read_bytes"] for result in results] == [20 * 512, 20 * 1024, 20 * 1536]
    assert all(result["seconds"] == pytest.approx(0.38, abs=0.05) for result in results)
    alone = path.read_text().replace("requests = 20", "requests = 20\nskip = 20")
    path.write_text(alone)
    (result,) = json.loads(run("simulate", path, "--seed", "6", "--json"))["experiments"]
    assert result["response_ms"] == results[1]["response_ms"]
    done = invoke("simulate", path, "--repeat", "3")
    assert done.exit_code == 2
    assert "nothing is left behind the first 60 requests" in done.stderr


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


def test_a_wrong_baseline_is_said_before_anything_runs(spec: str) -> None:
    for text, says in (
        ("load.rate", "not KEY=VALUE"),
        ("array.layuot=raid5", "unknown key 'layuot'"),
    ):
        done = invoke("simulate", spec, "--baseline", text)
        assert done.exit_code == 2
        assert says in done.stderr


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
