"""`raidx simulate` and its TOML files: examples run, mistakes are named, a seed gives one JSON."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments import results
from raidx_fuse.lab.experiments.results import section_steps
from raidx_fuse.lab.experiments.spec import parse_experiment
from tests.support.command import invoke, run_json

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "experiments").glob("*.toml"))

SMALL = """
name = "small"
[array]
layout = "raid5"
disks = 5
model = "ssd"
disk_size = "64MiB"
[load]
source = "zipf"
requests = 400
rate = 200
[report]
section = 0.5
[[events]]
at = 0.3
do = "fail"
disk = 1
[[events]]
at = 0.5
do = "fail"
disk = 2
[[events]]
at = 0.6
do = "spare"
[[events]]
at = 0.7
do = "set"
key = "parity.policy"
value = "rcw"
[[events]]
at = 1.2
do = "scrub"
"""


def simulated(*words: str | Path) -> list[dict[str, Any]]:
    experiments: list[dict[str, Any]] = run_json("simulate", *words)["experiments"]
    return experiments


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_two_runs_with_one_seed_print_the_same_bytes(small: Path) -> None:
    first, again = (invoke("simulate", small, "--json").stdout_bytes for _ in range(2))
    assert first == again
    other = invoke("simulate", small, "--json", "--seed", "9").stdout_bytes
    assert first != other


def test_events_happen_and_say_what_became_of_them(small: Path) -> None:
    (result,) = simulated(small)
    fail, second, spare, policy, scrub = result["events"]
    assert fail == {"at_s": 0.3, "do": "fail", "disk": 1}
    assert "cannot be spared" in second["refused"]
    assert (spare["job"], spare["job_state"]) == ("rebuild", "done")
    assert policy["set"] == "parity.policy=rcw"
    assert (scrub["job"], scrub["job_state"]) == ("scrub", "done")
    assert spare["job_ended_s"] > 0.6
    assert result["state"] == "clean"
    assert result["failed"] == 0
    assert result["array"]["rmw"] > 0
    assert result["array"]["rcw"] > 0
    assert [section["from_s"] for section in result["sections"]] == [0, 0.5, 1, 1.5]
    assert all(len(section["member_queues"]) == 5 for section in result["sections"])


def test_text_csv_and_picture(small: Path, tmp_path: Path) -> None:
    table, picture = tmp_path / "out.csv", tmp_path / "out.svg"
    words: list[str | Path] = ["simulate", small, small, "--csv", table]
    drawn = True
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        drawn = False
    if drawn:
        words += ["--plot", picture]
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    assert "against the first" in done.stdout
    assert "at 0.3 s: fail disk 1" in done.stdout
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["from_s"] for row in rows] == ["", "0.0", "0.5", "1.0", "1.5"] * 2
    assert sum(int(row["requests"]) for row in rows[1:5]) == int(rows[0]["requests"]) == 400
    if drawn:
        assert picture.read_text().startswith("<?xml")


def test_a_section_is_drawn_over_its_whole_time() -> None:
    times, values = section_steps([0, 0.5, 1, 1.25], [3, 9, 4])
    assert list(zip(times, values, strict=True)) == [
        *[(0, 3), (0.5, 3), (0.5, 9), (1, 9), (1, 4), (1.25, 4)],
    ]


def test_the_picture_has_every_section_in_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is an extra")
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    section = {"response_ms": {"mean": 1.0, "p99": 2.0}, "member_queues": [1, 3]}
    result = {
        **{"name": "x", "seconds": 1.5, "events": [{"at_s": 1.0, "do": "fail", "disk": 1}]},
        "sections": [{"from_s": 0, **section}, {"from_s": 1, "response_ms": {"mean": 9, "p99": 9}}],
        "members": [{"role": 0, "reads": 1, "writes": 1}],
        "distribution": {
            "edges_ms": [0.501, 0.631, 0.794, 1.0, 1.26],
            "reads": [1, 0, 0, 3],
            "writes": [0, 0, 0, 0],
        },
    }
    results.draw_results([result], str(tmp_path / "x.svg"))
    response, queues, within, boxes, _ = drawn[0].axes
    assert within.lines[0].get_xydata() == pytest.approx(
        np.array([[0.501, 0], [0.631, 25], [0.794, 25], [1.0, 25], [1.26, 100]]), rel=0.01
    )
    assert boxes.get_xscale() == "log"
    points = response.lines[0].get_xydata().tolist()
    assert points == [[0, 1], [1, 1], [1, 9], [1.5, 9]], "the peak begins at the event"
    assert queues.lines[0].get_xydata().tolist()[:2] == [[0, 3], [1, 3]]


def test_a_picture_of_a_sweep_has_the_sweep_on_its_axis_and_in_its_labels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is an extra")
    to_rgba = pytest.importorskip("matplotlib.colors").to_rgba
    drawn: list[Any] = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    spec = tmp_path / "small.toml"
    spec.write_text(SMALL[: SMALL.index("[report]")].replace("= 400", "= 40"))
    words = ["--sweep", "load.rate=50,100,400", "--sweep", "array.layout=raid5,rdp"]
    picture = tmp_path / "sweep.svg"
    found = simulated(spec, *words, "--repeat", "2", "--plot", picture)
    assert picture.exists()
    over, within, boxes, load = drawn[0].axes
    assert over.get_xlabel() == "rate"
    labels = [text.get_text() for text in over.get_legend().get_texts()]
    assert labels == [
        "layout=raid5: mean",
        "layout=raid5: p99",
        "layout=rdp: mean",
        "layout=rdp: p99",
    ]
    line, *_ = over.containers[0]
    means = [
        sum(run["response_ms"]["mean"] for run in found if run["sweep"] == swept) / 2
        for swept in ({"load.rate": rate, "array.layout": "raid5"} for rate in (50, 100, 400))
    ]
    assert line.get_xydata() == pytest.approx(np.array([[50, 100, 400], means]).T)
    points = {
        f"rate={rate}, layout={layout}" for rate in (50, 100, 400) for layout in ("raid5", "rdp")
    }
    assert {text.get_text() for text in load.get_legend().get_texts()} == points
    assert {text.get_text() for text in boxes.get_yticklabels()} == points
    assert all(
        label.split(":")[0] in points
        for label in (text.get_text() for text in within.get_legend().get_texts())
    )
    assert line.get_color() == to_rgba(results.COLORS[0])


def test_loads_can_be_verified_and_come_from_traces(tmp_path: Path) -> None:
    trace = tmp_path / "load.csv"
    lines = (
        f"{n * 10**5},h,0,{'Read' if n % 3 else 'Write'},{n % 40 * 4096},8192,1" for n in range(300)
    )
    trace.write_text("\n".join(lines))
    text = SMALL[: SMALL.index("[load]")]
    spec = tmp_path / "traced.toml"
    spec.write_text(text + '[load]\nsource = "load.csv"\nverify = true\nspeed = 2\n')
    (result,) = simulated(spec)
    assert result["requests"] == 300
    assert result["seconds"] == pytest.approx(299e-2 / 2, rel=0.01)
    assert result["verified_bytes"] > 0
    assert result["wrong"] == []
    spec.write_text(text + '[load]\nsource = "load.csv"\nrate = 1000\ndepth = 4\n')
    assert simulated(spec)[0]["requests"] == 300


@pytest.mark.parametrize("way", ["live", "piggyback", "surrogate"])
def test_an_array_grows_under_a_verified_load(tmp_path: Path, way: str) -> None:
    spec = tmp_path / "grow.toml"
    text = SMALL[: SMALL.index("[[events]]")].replace('"raid5"', '"raid4"')
    text = text.replace("rate = 200", "rate = 200\nverify = true")
    spec.write_text(
        text + f'[[events]]\nat = 0.5\ndo = "add"\ncount = 2\nmodel = "nvme"\nvalue = "{way}"\n'
    )
    (result,) = simulated(spec)
    (event,) = result["events"]
    assert (event["job"], event["job_state"]) == ("grow", "done")
    assert len(result["members"]) == 7
    assert result["array"]["chunks_moved"] > 0
    assert result["verified_bytes"] > 0
    assert result["wrong"] == []


def test_hot_chunks_move_when_an_event_says_tune(tmp_path: Path) -> None:
    spec = tmp_path / "tune.toml"
    text = SMALL[: SMALL.index("[[events]]")].replace('"raid5"', '"raidx-zero"')
    text = text.replace('disks = 5\nmodel = "ssd"', 'members = ["hdd", "ssd", "ssd"]')
    text = text.replace('"zipf"', '"hotspot"').replace("rate = 200", "rate = 200\nverify = true")
    spec.write_text(text + '[[events]]\nat = 1\ndo = "tune"\n')
    (result,) = simulated(spec)
    (event,) = result["events"]
    assert (event["job"], event["job_state"]) == ("tuning", "done")
    assert result["array"]["chunks_moved"] > 0
    assert result["wrong"] == []
    spec.write_text(SMALL[: SMALL.index("[[events]]")] + '[[events]]\nat = 1\ndo = "tune"\n')
    assert "nothing to tune" in simulated(spec)[0]["events"][0]["refused"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_and_say_how(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert "raidx simulate examples/" in text
    (result,) = simulated(path)
    assert result["failed"] == 0
    assert result["state"] == "clean"
    assert all("refused" not in event for event in result["events"])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("disks = 5", "disk = 5", "unknown key 'disk'; did you mean disks"),
        ("disks = 5", "", "give either disks"),
        ("disks = 5", 'disks = 5\nmembers = ["ssd"]', "give either disks"),
        ("disks = 5", "disks = 0.5", "disks is a whole number"),
        ("disks = 5", "disks = -3", "disks must be 1 to 255, not -3"),
        ("disks = 5", "disks = 2", "raid5"),
        ('layout = "raid5"', "", "layout is missing"),
        ('layout = "raid5"', 'layout = "raid55"', "raid55"),
        ('model = "ssd"', 'model = "floppy"', "no disk model"),
        ('disk_size = "64MiB"', 'disk_size = "big"', "not a size"),
        ('disk_size = "64MiB"', 'disk_size = "64KiB"', "too small"),
        ('source = "zipf"', 'source = "hm_9"', "neither a file nor a generated load"),
        ('source = "zipf"', "source = 7", "source is text"),
        ("requests = 400", "requests = -1", "not negative"),
        ("rate = 200", "rate = 200\nnumbers = { reads = 1 }", "no number 'reads'"),
        ("rate = 200", 'rate = 200\nfit = "squeeze"', "no way to fit"),
        ("rate = 200", "speed = 0.0", "above 0"),
        ('do = "scrub"', 'do = "explode"', "no event 'explode'"),
        ('do = "fail"\ndisk = 1', 'do = "fail"', "needs a disk"),
        ("at = 0.3", "at = -1", "cannot be at"),
        ("at = 0.3", "at = 0.3\ncount = 0", "cannot bring 0 disks"),
        ('key = "parity.policy"\n', "", "needs a key"),
        ("[report]", "[[report]]", "report"),
        ('name = "small"', "name = small", "not TOML"),
    ],
)
def test_mistakes_are_named_in_one_line(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    assert before in SMALL
    path = tmp_path / "spec.toml"
    path.write_text(SMALL.replace(before, after, 1))
    done = invoke("simulate", path)
    assert done.exit_code in (1, 2)
    (line,) = done.stderr.splitlines()
    assert words in line
    assert done.stdout == ""


def test_a_bad_line_in_the_middle_of_a_trace_is_named(tmp_path: Path) -> None:
    good = "0,8,512,r,0.0\n" * 20_000
    (tmp_path / "load.spc").write_text(good + "0,8,512,x,0.0\n")
    spec = tmp_path / "spec.toml"
    spec.write_text(SMALL[: SMALL.index("[load]")] + '[load]\nsource = "load.spc"\n')
    done = invoke("simulate", spec)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "load.spc, line 20001: opcode 'x'" in line


def test_settings_of_the_array_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SMALL.replace("disks = 5", 'disks = 5\nsettings = { "parity.polic" = "x" }'))
    assert "did you mean parity.policy" in invoke("simulate", path).stderr
    for missing in (tmp_path / "nowhere.toml", tmp_path):
        assert "cannot be read" in invoke("simulate", missing).stderr
    assert invoke("simulate").exit_code == 2


def test_the_seed_of_the_text_is_used_unless_another_is_given() -> None:
    text = "seed = 5\n" + SMALL
    assert parse_experiment(text).seed == 5
    assert parse_experiment(text, seed=6).seed == 6
    with pytest.raises(UsageError, match="seed is a whole number"):
        parse_experiment("seed = true\n" + SMALL)
