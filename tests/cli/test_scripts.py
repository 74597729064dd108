"""What scripts rely on: errors as JSON, `raidx wait`, `raidx wipe`, and metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raidx_fuse.cli.commands.show import STUCK_LOOKS
from raidx_fuse.errors import BusyError, Reason
from tests.cli.conftest import Daemon
from tests.support.command import USAGE, checked, raidx
from tests.support.documents import job, member, status

REPORT: dict[str, Any] = {
    "interval_seconds": 10.0,
    "members": [
        {
            **{"role": role, "path": f"/disks/d{role}.img", "reads": 5 + role, "writes": 2},
            **{"flushes": 1, "read_bytes": 4096, "write_bytes": 8192, "errors": 0},
            "utilisation": 0.25,
        }
        for role in range(2)
    ],
    "volumes": [
        {"name": "disk", "reads": 7, "writes": 3, "read_bytes": 28672, "write_bytes": 12288}
    ],
}


def test_an_error_is_a_document_under_json_and_a_line_as_well(daemon: Daemon) -> None:
    daemon.answers["status"] = BusyError("it is busy", action="wait for it")
    result = daemon.run("status", "ARRAY", "--json")
    error = {"kind": "busy", "reason": "busy", "message": "it is busy", "action": "wait for it"}
    error |= {"exit_status": 1}
    assert json.loads(result.stdout) == {"output_version": 1, "error": error}
    assert result.stderr == "raidx: it is busy; wait for it\n"
    assert result.exit_code == 1
    assert daemon.run("status", "ARRAY").stdout == ""


@pytest.mark.parametrize(
    ("line", "kind", "reason", "exit_status"),
    [
        ("status nowhere --json", "member", Reason.FILE, 1),
        ("stats nowhere --json", "control", Reason.NOT_MOUNTED, 1),
        ("blub --json", "usage", Reason.UNKNOWN_COMMAND, USAGE),
        ("status --blub --json", "usage", Reason.UNKNOWN_OPTION, USAGE),
        ("stats --json", "usage", Reason.MISSING_ARGUMENT, USAGE),
        ("stats nowhere soon --json", "usage", Reason.ARGUMENT, USAGE),
        ("layout show raid9 --disks 3 --json", "usage", Reason.IMPOSSIBLE_LAYOUT, USAGE),
        ("schema blub --json", "usage", Reason.UNKNOWN_COMMAND, USAGE),
    ],
)
def test_each_kind_and_reason_of_an_error_is_named(
    tmp_path: Path, line: str, kind: str, reason: Reason, exit_status: int
) -> None:
    done = raidx(tmp_path, line)
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["reason"]) == (kind, reason)
    assert error["exit_status"] == done.status == exit_status
    assert error["message"] in done.stderr
    assert "\n" not in done.stderr.rstrip("\n")


def test_wait_returns_when_the_state_is_there(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(["degraded", "rebuilding", "clean"])
    daemon.answers["status"] = lambda _: status(state=next(states))
    naps: list[float] = []
    monkeypatch.setattr("raidx_fuse.cli.progress.time.sleep", naps.append)
    assert daemon.run("wait", "ARRAY").stdout == "disk: clean\n"
    assert len(naps) == 2
    daemon.answers["status"] = status(state="growing")
    assert daemon.run("wait", "ARRAY", "--state", "clean", "--state", "growing").exit_code == 0


def test_wait_says_what_is_there_instead_when_time_is_up(daemon: Daemon) -> None:
    daemon.answers["status"] = status(state="degraded", action="replace it")
    result = daemon.run("wait", "ARRAY", "--timeout", "0", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "timed_out"
    assert error["message"] == "disk is degraded, not healthy, after 0 s, and stays so: no job runs"
    assert error["action"] == "replace it"


def test_wait_ends_or_says_once_that_nothing_leads_there(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raidx_fuse.cli.progress.time.sleep", lambda _: None)
    stuck = status(state="degraded", action="replace member 2")
    rebuilt = status(state="rebuilding", jobs=[job()])

    def wait(*states: str, until: str = "clean") -> tuple[str, str]:
        found = iter([rebuilt if word == "rebuilding" else stuck for word in states])
        daemon.answers["status"] = lambda _: next(found, status())
        result = daemon.run("wait", "ARRAY", "--state", until, "--timeout", "60")
        assert result.exit_code == 0
        return result.stdout, result.stderr

    said = "raidx: disk is degraded and no job runs, so it stays as it is; replace member 2\n"
    assert wait("rebuilding", "stuck", "stuck", "stuck") == ("disk: clean\n", said)
    assert wait("rebuilding", "rebuilding", until="healthy") == ("disk: clean\n", "")
    assert wait("stuck", until="degraded") == ("disk: degraded\n", "")
    for at_last, code in ((stuck, 1), (status(), 0)):  # without a limit, and nobody comes
        looks = iter([stuck] * (STUCK_LOOKS - 1) + [at_last])
        daemon.answers["status"] = partial(lambda seen, _: next(seen), looks)
        result = daemon.run("wait", "ARRAY")
        assert (result.exit_code, result.stderr) == (code, said * code)
    restores = {"restore": {"begins_in_seconds": 40.0}}
    found = iter([{**stuck, **restores}] * 3 * STUCK_LOOKS)
    daemon.answers["status"] = lambda _: next(found, status())
    assert daemon.run("wait", "ARRAY").exit_code == 0, "a raidx array restores its chunks"
    assert daemon.run("wait", "ARRAY", "--state", "spare").exit_code == 2, "of a member"


PERFORMANCE = r"'[^'=]+'=\d+(B|c)?(;[\d:]*){0,4}"


def test_check_is_a_line_for_nagios_with_performance_data(daemon: Daemon) -> None:
    members = [member(0), member(1, "failed"), member(2), member(-1, "spare")]
    told = "replace member 1: raidx replace-disk /mnt 1 NEW | or wait"
    daemon.answers["status"] = status(state="degraded", members=members, action=told)
    result = daemon.run("status", "ARRAY", "--check")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    words, _, data = line.partition(" | ")
    assert words == f"WARNING: disk degraded; {told.replace('|', '/')}"
    assert re.fullmatch(rf"{PERFORMANCE}( {PERFORMANCE})*", data)
    assert "'disk members_active'=2;3:;;0;3" in data
    assert f"'disk written'={1 << 30}B;;;0;{3 << 30}" in data
    daemon.answers["status"] = status()
    said = daemon.run("status", "ARRAY", "--check").stdout
    assert said.startswith("OK: disk clean, 1 more loss tolerated | ")
    two = [status(name="west"), status(name="east", state="failed", action="attach them")]
    daemon.answers["status"] = {"mountpoint": "/mnt", "arrays": two}
    result = daemon.run("status", "ARRAY", "--check")
    assert result.exit_code == 2
    assert result.stdout.startswith("CRITICAL: east failed; attach them; west clean, ")
    rest = {key: value for key, value in status().items() if key != "written"}
    daemon.answers["status"] = rest
    assert "written" not in daemon.run("status", "ARRAY", "--check").stdout
    result = daemon.run("status", "/nowhere", "--check")
    assert result.exit_code == 4
    assert result.stdout.startswith("UNKNOWN: ")
    error = json.loads(daemon.run("status", "/nowhere", "--check", "--json").stdout)["error"]
    assert error["exit_status"] == 4


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def test_metrics_are_read_by_the_parser_of_prometheus(daemon: Daemon, tmp_path: Path) -> None:
    jobs = [job(done=25, total=100)]
    members = [member(0), member(1, "failed"), member(-1, "spare")]
    sums = {"state": "on", "misfits": 7, "healed": 6, "wrong_sums": 1, "unverified": 3}
    found = status(state="degraded", jobs=jobs, members=members, sums=sums)
    daemon.answers["status"] = found
    daemon.answers["stats"] = REPORT
    text = daemon.run("stats", "ARRAY", "--prometheus").stdout
    mount = status()["mountpoint"]

    def value(name: str, **labels: str) -> float:
        (found,) = [v for n, has, v in samples(text) if n == name and labels.items() <= has.items()]
        return found

    assert value("raidx_array_health", mount=mount, array="disk") == 1
    assert value("raidx_array_state", array="disk", state="degraded") == 1
    assert value("raidx_member_reads_total", role="1", path="/disks/d1.img") == 6
    assert value("raidx_member_busy_seconds_total", role="0") == 2.5
    assert value("raidx_volume_written_bytes_total", volume="disk") == 12288
    assert value("raidx_job_done_ratio", job="rebuild") == 0.25
    kinds = ("misfits", "healed", "wrong", "unverified")
    assert [value(f"raidx_sum_{kind}_total", array="disk") for kind in kinds] == [7, 6, 1, 3]
    active = [v for name, *_, v in samples(text) if name == "raidx_member_active"]
    assert active == [1, 0]
    file = tmp_path / "raidx.prom"
    assert daemon.run("stats", "ARRAY", "--prometheus", "--output", str(file)).stdout == ""
    assert file.read_text() == text
    assert list(tmp_path.glob("raidx.prom*")) == [file]
    nowhere = str(tmp_path / "no" / "raidx.prom")
    result = daemon.run("stats", "ARRAY", "--prometheus", "--output", nowhere)
    assert f"{nowhere} cannot be written" in result.stderr
    assert daemon.run("stats", "ARRAY", "--output", str(file)).exit_code == USAGE


def test_metrics_name_a_mount_point_that_is_not_utf8(daemon: Daemon) -> None:
    daemon.answers["status"] = status(mountpoint="/mnt/\udcff")
    daemon.answers["stats"] = REPORT
    result = daemon.run("stats", "ARRAY", "--prometheus")
    assert result.exit_code == 0, result.stderr
    assert {labels["mount"] for _, labels, _ in samples(result.stdout)} == {"/mnt/\\xff"}


def test_a_wiped_member_is_free_and_one_with_a_role_wants_the_option(tmp_path: Path) -> None:
    checked(tmp_path, "create --layout raid5 --size 4MiB --name first a b c")
    refused = raidx(tmp_path, "wipe a b")
    assert refused.status == USAGE
    assert f"{tmp_path}/a has role 0 of array first" in refused.stderr
    assert "add --lose-data" in refused.stderr
    assert "first" in checked(tmp_path, "scan .")
    text = checked(tmp_path, "wipe a b --lose-data")
    assert text.splitlines()[0] == f"{tmp_path}/a: its superblock of first is gone"
    (found,) = json.loads(checked(tmp_path, "wipe a --json"))["members"]
    assert found["wiped"] is False
    assert "it had no superblock" in checked(tmp_path, "wipe a")
    assert json.loads(checked(tmp_path, "scan . --json"))["arrays"][0]["state"] == "failed"
    checked(tmp_path, "create --layout raid1 --name second a b")  # without --overwrite-signature


def test_damaged_superblocks_are_wiped_with_the_option_only(tmp_path: Path) -> None:
    checked(tmp_path, "create --layout raid1 --size 4MiB a b")
    with (tmp_path / "a").open("r+b") as file:
        for at in (100, (64 << 10) + 100):
            file.seek(at)
            file.write(b"\xff" * 600)
    assert "damaged or of another version" in raidx(tmp_path, "wipe a").stderr
    checked(tmp_path, "wipe a --lose-data")
    (tmp_path / "text").write_text("no member " * 1000)
    before = (tmp_path / "text").read_bytes()
    raidx(tmp_path, "wipe text")
    assert (tmp_path / "text").read_bytes() == before


def test_the_alert_rules_name_metrics_that_there_are(daemon: Daemon, tmp_path: Path) -> None:
    rules = Path(__file__).parents[2] / "examples" / "alerts.yml"
    text = rules.read_text()
    daemon.answers["stats"] = REPORT
    daemon.answers["status"] = status(jobs=[job()])
    metrics = list(samples(daemon.run("stats", "ARRAY", "--prometheus").stdout))
    found = {name for name, *_ in metrics}
    expressions = re.findall(r"(?m)^        expr: (.*)$", text)
    assert len(expressions) == text.count("- alert: ") == text.count("summary: ")
    named = set(re.findall(r"\braidx_\w+", " ".join(expressions)))
    assert named
    assert named <= found
    labels = {label for _, has, _ in metrics for label in has}
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels | {"file"}
    promtool = shutil.which("promtool")
    if promtool is not None:
        done = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said = daemon.run("stats", "ARRAY", "--prometheus").stdout
        check = [promtool, "check", "metrics"]
        done = subprocess.run(check, input=said, capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
