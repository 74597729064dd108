"""Commands for a running array against a daemon that answers from a script, without a mount."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from raidx_fuse.array.settings import RECEIVERS, parse
from raidx_fuse.array.statistics import bpu_ratios
from raidx_fuse.cli.commands.change import growing_steps
from raidx_fuse.cli.main import main
from raidx_fuse.errors import BusyError, UsageError
from raidx_fuse.fuse.mountpoint import Mount
from raidx_fuse.settings import OF_ARRAY
from tests.cli.conftest import Daemon
from tests.support.documents import job, member, stats, status

DEGRADED = status(
    state="degraded",
    redundancy_left=0,
    members=[member(0), member(1), member(2, "failed"), member(3), member(-1, "spare")],
    action="replace member 2: raidx replace-disk /mnt 2 NEW_MEMBER",
)
REBUILDING = status(
    state="rebuilding",
    redundancy_left=0,
    members=[member(0), member(1), member(2, "rebuilding"), member(3)],
    jobs=[job()],
)
FAILED = status(state="failed", redundancy_left=0, members=[member(0, "missing"), member(1)])


def test_status_page_shows_everything(daemon: Daemon) -> None:
    daemon.answers["status"] = {**DEGRADED, "jobs": [job()], "warnings": ["one is old"]}
    result = daemon.run("status", "ARRAY")
    assert result.exit_code == 0
    for words in (
        "state: degraded, no further loss tolerated",
        "action: replace member 2: raidx replace-disk /mnt 2 NEW_MEMBER",
        "warning: one is old",
        "raid5 on 4 members, chunk 64 KiB",
        "size: 3 GiB",
        "/disks/d2.img",
        "29.3 %  300 MiB of 1 GiB, 100 MiB/s, 00:00:08 to go",
        "/mnt/disk",
        "no: needs CAP_IPC_LOCK",
    ):
        assert words in result.stdout
    assert str(3 << 30) in daemon.run("status", "ARRAY", "--bytes").stdout


def test_status_tells_of_the_last_scrub_and_of_one_that_runs(daemon: Daemon) -> None:
    last = {"state": "done", "ended_s": 1_700_000_000, "seconds": 62, "mismatches": 3}
    last |= {"repaired": 2, "left": 1, "repair": True, "members": [], "places": []}
    ever = {"errors": 0, "errors_ever": 12345, "repairs_ever": 678}
    daemon.answers["status"] = status(last_scrub=last, members=[member(0) | ever, member(1)])
    text = daemon.run("status", "ARRAY").stdout
    assert "scan: scrub 3 mismatches, 2 repaired, 1 left in 00:01:02 on 2023-11-1" in text
    assert "12345" in text
    assert "678" in text
    daemon.answers["status"] = status(last_scrub=None)
    assert "scan: none requested" in daemon.run("status", "ARRAY").stdout
    runs = job(kind="scrub", mismatches=1, repaired=0, uncorrected=1)
    daemon.answers["status"] = status(last_scrub=last, jobs=[runs])
    text = daemon.run("status", "ARRAY").stdout
    assert "scan: scrub in progress, 29.3 % done, 1 mismatch, 0 repaired, 1 left" in text


def test_status_tells_what_checksums_found(daemon: Daemon) -> None:
    sums = {"state": "on", "misfits": 7, "healed": 6, "wrong_sums": 1, "unverified": 3}
    daemon.answers["status"] = status(sums=sums)
    text = daemon.run("status", "ARRAY").stdout
    assert "sums: on, 7 misfits, 6 healed, 1 wrong sum, 3 unverified" in text
    daemon.answers["status"] = status(sums={**sums, "state": "off"})
    assert "sums: off" in daemon.run("status", "ARRAY").stdout
    daemon.answers["status"] = status(sums={**sums, "state": "off", "room_bytes": 16 << 10})
    assert "sums: off, with room for 16 KiB on" in daemon.run("status", "ARRAY").stdout
    daemon.answers["status"] = status()
    assert "sums:" not in daemon.run("status", "ARRAY").stdout


def shown(document: dict[str, Any]) -> dict[str, Any]:
    """Return how `raidx status --json` prints the *document* of one array."""
    public = {key: value for key, value in document.items() if key != "bugs"}
    public["internal"] = {key: document[key] for key in document if key == "bugs"}
    return {**public, "arrays": [public], "problems": []}


def test_status_json_has_internal_values_apart(daemon: Daemon) -> None:
    daemon.answers["status"] = status(bugs=3)
    assert daemon.run_json("status", "ARRAY") == shown(status(bugs=3))
    assert daemon.calls == [("status", {})]
    two = {"mountpoint": "/mnt", "arrays": [status(), status(name="other")]}
    daemon.answers["status"] = two
    document = daemon.run_json("status", "ARRAY")
    assert [each["name"] for each in document["arrays"]] == ["disk", "other"]
    assert document["mountpoint"] == "/mnt"


@pytest.mark.parametrize(
    ("document", "code"), [(status(), 0), (DEGRADED, 1), (REBUILDING, 1), (FAILED, 2)]
)
def test_status_check_tells_the_state_by_its_exit_status(
    daemon: Daemon, document: dict[str, Any], code: int
) -> None:
    daemon.answers["status"] = document
    assert daemon.run("status", "ARRAY", "--check").exit_code == code
    assert daemon.run("status", "ARRAY").exit_code == 0
    assert daemon.run_json("status", "ARRAY", "--check", exit_code=code) == shown(document)


def test_status_check_of_what_does_not_answer_is_4(daemon: Daemon, tmp_path: Path) -> None:
    result = daemon.run("status", str(tmp_path), "--check")
    assert result.exit_code == 4
    assert result.stderr.startswith("raidx: no array is mounted on")
    assert daemon.run("status", str(tmp_path)).exit_code == 1


def test_brief_status_has_the_shape_of_mdstat(daemon: Daemon) -> None:
    daemon.answers["status"] = {**DEGRADED, "jobs": [job()]}
    lines = daemon.run("status", "ARRAY", "--brief").stdout.splitlines()
    assert lines == [
        "disk : active raid5 d0.img[0] d1.img[1] d2.img[2](F) d3.img[3] d9.img[4](S)",
        "      3145728 blocks 64k chunk [4/3] [UU_U]",
        "      [=====>...............]  recovery = 29.3% (307200/1048576) finish=0.1min "
        "speed=102400K/sec",
    ]


CACHE = {"size": 4 << 20, "used": 1 << 20, "hits": 3, "misses": 1, "pre_reads_spared": 2}
KINDS = {"pre_reads": 7, "rmw": 3, "rcw": 2, "full_stripe": 1, "degraded_reads": 0}
STATS = stats(0, **KINDS, chunks_moved=0, cache=CACHE)


def test_stats_of_the_policy_bpu(daemon: Daemon) -> None:
    counts = {
        "state": "light",
        "mean_queue_s": 0.0,
        "mean_skew_s": 1e-4,
        "thresholds": {"t_light_s": 1e-4, "t_heavy_s": 4e-3, "t_pre": 4, "t_skew_s": 5e-5},
        "seconds": {"light": 3.0, "normal": 0.75, "heavy": 0.25},
        "decisions": {"light": 80, "normal": 15, "heavy": 5},
        "rmw": 60,
        "rcw": 40,
        "queued": 50,
        "touched_longest": 20,
        "against_pre_reads": 10,
        "pre_reads_least": 200,
        "extra_pre_reads": 21,
    }
    daemon.answers["stats"] = {
        **STATS,
        "array": {**STATS["array"], "bpu": counts | bpu_ratios(counts)},
    }
    text = daemon.run("stats", "ARRAY").stdout
    for words in (
        "light 75.0%, normal 18.8%, heavy 6.2% of the time (now light)",
        "T_light 0.100 ms, T_heavy 4.000 ms, T_skew 0.050 ms, T_pre 4",
        "chose rmw 60, rcw 40, 10 against the count of pre-reads: 21 extra (10.5%)",
        "40.0% of updates touched the longest queue",
    ):
        assert words in text
    assert daemon.run_json("stats", "ARRAY")["array"]["bpu"]["against_ratio"] == 0.1


def test_stats_since_the_mount_and_by_interval(daemon: Daemon) -> None:
    daemon.answers["stats"] = STATS
    assert daemon.run_json("stats", "ARRAY") == {**STATS, "reports": [STATS]}
    assert daemon.run_json("stats", "ARRAY", "0.5") == {**STATS, "reports": [STATS]}
    assert daemon.run_json("stats", "ARRAY", "0.5", "2") == {**STATS, "reports": [STATS] * 2}
    assert [arguments for _, arguments in daemon.calls] == [{}, *[{"interval_s": 0.5}] * 3]
    text = daemon.run("stats", "ARRAY", "0.5", "2").stdout
    assert text.count("200.0 reads/s, 4000.0 writes/s; 2 MiB/s read, 10 MiB/s written") == 2
    assert "pre reads 7, rmw 3, rcw 2, full stripe 1" in text
    assert "1 MiB of 4 MiB; 3 of 4 reads hit (75.0%), 2 pre-reads spared" in text
    assert "12%" in text
    assert daemon.run("stats", "ARRAY", "0").exit_code == 2


def test_get_and_set(daemon: Daemon) -> None:
    daemon.answers["get"] = {"settings": {"parity.policy": "traditional", "speed_min": 8388608}}
    daemon.answers["set"] = {"settings": {"speed_min": 1048576}}
    assert "parity.policy" in daemon.run("get", "ARRAY").stdout
    daemon.run("get", "ARRAY", "speed_min")
    assert daemon.run_json("set", "ARRAY", "speed_min=1M") == {"settings": {"speed_min": 1048576}}
    assert daemon.calls == [
        ("get", {}),
        ("get", {"key": "speed_min"}),
        ("set", {"key": "speed_min", "value": "1M"}),
    ]
    assert daemon.run("set", "ARRAY", "speed_min").exit_code == 2


def test_settings_are_printed_as_they_are_set(daemon: Daemon) -> None:
    values = {"speed_min": 8388608, "bpu.t_skew": 5e-05, "bpu.t_pre": 3, "bpu.a_read": "auto"}
    values |= {"tuner.idle_s": 0.05, "cache.size": 0, "io.timeout_s": 30.0, "of a newer daemon": 1}
    daemon.answers["get"] = {"settings": values}
    lines = daemon.run("get", "ARRAY").stdout.splitlines()
    assert [line.split("  ", 1)[1].strip() for line in lines] == [
        *("8 MiB", "50us", "3", "auto", "50ms", "0 B", "30s", "1"),
    ]
    assert daemon.run_json("get", "ARRAY") == {"settings": values}


def test_every_default_is_printed_as_set_takes_it(daemon: Daemon) -> None:
    values = {n: OF_ARRAY[n].default for n, each in RECEIVERS.items() if each.in_force is None}
    values |= {"restore.after": None, "io.timeout_s": 0.25, "scrub_each_s": 90.5}
    daemon.answers["get"] = {"settings": values}
    for line in daemon.run("get", "ARRAY").stdout.splitlines():
        name, _, text = line.partition(" ")
        assert parse(name, text.strip()) == values[name], line
        timed = name in ("io.timeout_s", "restore.after", "tuner.idle_s", "scrub_each_s")
        assert not timed or text.strip().endswith(("s", "off")), line


def test_settings_and_members_complete(daemon: Daemon) -> None:
    daemon.answers["get"] = {"settings": {"speed_min": 1, "speed_max": 2, "journal": "none"}}
    daemon.answers["status"] = status(members=[member(0), member(1), member(-1, "spare")])

    def offered(*words: str) -> list[str]:
        line = [daemon.mountpoint if word == "ARRAY" else word for word in words]
        found = ShellComplete(main, {}, "raidx", "_X").get_completions(line[:-1], line[-1])
        return [item.value for item in found]

    assert offered("get", "ARRAY", "speed") == ["speed_min", "speed_max"]
    assert offered("set", "ARRAY", "jou") == ["journal="]
    modes = [f"journal={mode}" for mode in ("none", "partial", "full")]
    assert offered("set", "ARRAY", "journal=") == modes, "the present one first"
    assert offered("set", "ARRAY", "journal=pa") == ["journal=partial"]
    assert offered("set", "ARRAY", "speed_min=") == ["speed_min=1B", "speed_min=8MiB"]
    every = ["0", "1", "/disks/d0.img", "/disks/d1.img", "/disks/d9.img"]
    for verb in ("fail-disk", "replace-disk", "remove-disk"):
        assert offered(verb, "ARRAY", "") == every
        assert offered(verb, "ARRAY", "/disks/d1") == ["/disks/d1.img"]
    assert offered("get", "/nowhere", "speed") == []


def test_explain_draws_the_plan(daemon: Daemon) -> None:
    place = {"role": 1, "path": "/disks/d1.img", "member_offset": 4096, "length": 4096}
    band = {
        **{"from": 0, "to": 4096, "kind": "rmw", "xor": ["P0 = old P0 ^ new D1"]},
        "why": "policy traditional: read-modify-write would read 1 chunks",
        "reads": [{"cell": "P0", "cached": True, **place}],
        "writes": [{"cell": "D1", "image_offset": 65536, **place}],
    }
    stripe = {
        **{"stripe": 0, "lost": [], "never_written": ["D2"], "state": ["logged", "degraded"]},
        **{"route": "log", "dirty_mark": False, "bands": [band]},
        "log": {"roles": [0, 1], "bytes": 4608, "parity": "at the checkpoint"},
        "checkpoint": {"settles_first": True, "reads": 2, "log_bytes": 4608, "writes": 2},
    }
    answer = {
        **{"offset": 65536, "length": 4096, "operation": "write", "layout": "raid5"},
        **{"policy": "traditional", "reads": 1, "writes": 1, "stripes": [stripe]},
    }
    daemon.answers["explain"] = answer
    result = daemon.run("explain", "ARRAY", "64KiB", "--write")
    assert daemon.calls == [("explain", {"offset": 65536, "length": 4096, "write": True})]
    for words in ("route: log", "4608 bytes on members 0, 1", "2 reads"):
        assert words in result.stdout
    for words in (
        "cached",
        "rmw",
        "policy traditional",
        "P0 = old P0 ^ new D1",
        "never written: D2",
    ):
        assert words in result.stdout
    assert daemon.run_json("explain", "ARRAY", "64KiB", "--write")["stripes"][0]["stripe"] == 0
    answer |= {"offset": 9, "length": 1, "operation": "read"}
    read = {**place, "cell": "D0", "member_offset": 5, "length": 1, "cached": False}
    band |= {"from": 9, "to": 10, "kind": "read", "reads": [read], "xor": [], "writes": []}
    text = daemon.run("explain", "ARRAY", "9", "1").stdout
    for words in ("read of 1 byte at 9", "byte 9 of the chunks: read", "1 byte at 5"):
        assert words in text
    assert "1 bytes" not in text


def test_explain_shows_the_state_of_a_stripe(daemon: Daemon) -> None:
    place = {"role": 1, "path": None, "member_offset": 4096, "length": 4096}
    cells = [
        {"cell": "D0", "image_offset": 0, "written": False, "lost": True, **place},
        {"cell": "P0", "written": True, "lost": False, **place},
    ]
    daemon.answers["explain"] = {
        "stripe": 7,
        "layout": "raid5",
        "state": ["degraded", "logged"],
        "cells": cells,
    }
    result = daemon.run("explain", "ARRAY", "--stripe", "7")
    assert daemon.calls == [("explain", {"stripe": 7})]
    for words in ("stripe 7 of raid5: degraded, logged", "never written, lost", "(not here)"):
        assert words in result.stdout
    assert daemon.run("explain", "ARRAY").exit_code == 2


def test_the_daemons_refusals_keep_their_exit_status(daemon: Daemon) -> None:
    daemon.answers["fail-disk"] = UsageError("there is no role 9", action="see `raidx status`")
    result = daemon.run("fail-disk", "ARRAY", "9")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "raidx: there is no role 9; see `raidx status`\n"
    daemon.answers["scrub"] = BusyError("a scrub is running already")
    result = daemon.run("scrub", "ARRAY")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "raidx: a scrub is running already\n"


def test_a_bug_in_the_daemon_is_one_line_here(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.answers["get"] = KeyError("broken")
    result = daemon.run("get", "ARRAY")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "bug" in caplog.text


def test_status_says_what_a_restriping_array_becomes(daemon: Daemon) -> None:
    shape = {"layout": "raid0", "width": 3, "params": {}}
    sides = {"from": shape, "to": {"layout": "raid5", "width": 4, "params": {}}}
    daemon.answers["status"] = status() | {
        "state": "restriping",
        "layout_parameters": {"restripe": sides},
    }
    text = daemon.run("status", "ARRAY").stdout
    assert "raid0 on 3 members, becoming raid5 on 4, chunk" in text


def test_space_that_the_array_has_no_room_for_is_named(daemon: Daemon) -> None:
    """Members replaced by much larger ones; "max" is not taken for an answer without a word."""
    own = {"name": "disk", "layout": "raid5", "free": 0, "volumes": ["disk"]}
    asked: list[dict[str, Any]] = []

    def resize(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(arguments)
        return {"name": "disk", "array": "disk", "size": 7 << 20}

    daemon.answers["volume-resize"] = resize
    for unused in (0, 64 << 20):
        daemon.answers["array-list"] = {"arrays": [{**own, "unused_bytes": unused}]}
        for words in (("resize", "ARRAY"), ("volume", "resize", "ARRAY", "disk")):
            result = daemon.run(*words, "max")
            assert result.exit_code == 0, result.stderr
            assert result.stdout == "disk: 7 MiB\n"
            named = "64 MiB behind the data of each member stay unused" in result.stderr
            assert named == bool(unused)
            assert asked[-1]["size"] is None
            assert daemon.run(*words, "8MiB").stderr == ""
            assert asked[-1]["size"] == 8 << 20


# -- members and jobs ------------------------------------------------------------------------------


def test_fail_replace_add_remove_pass_their_arguments_on(daemon: Daemon, tmp_path: Path) -> None:
    done = {"role": 2, "job": 5, "path": "/disks/d2.img", "chunks_to_move": 3, "changed": True}
    daemon.answers |= dict.fromkeys(("fail-disk", "replace-disk", "add-disk", "remove-disk"), done)
    new = tmp_path / "new.img"
    assert daemon.run_json("fail-disk", "ARRAY", "2") == done
    assert daemon.run_json("fail-disk", "ARRAY", "2", "--lose-data") == done
    assert daemon.run_json("replace-disk", "ARRAY", "2", f"{new},model=hdd", "--create") == {
        **done,
        "changed": True,
    }
    assert daemon.run_json("add-disk", "ARRAY", str(new), "--as", "spare") == {
        **done,
        "changed": True,
    }
    assert daemon.run_json("remove-disk", "ARRAY", "abcd", "-n") == done
    plain = {"overwrite_signature": False, "dry_run": False}
    replaced = {"old": "2", "new": f"{new},model=hdd", "create": True}
    assert daemon.calls == [
        ("fail-disk", {"member": "2", "lose_data": False, "dry_run": False}),
        ("fail-disk", {"member": "2", "lose_data": True, "dry_run": False}),
        ("replace-disk", replaced | plain),
        (
            "add-disk",
            {
                **{"members": [str(new)], "role": "spare", "create": False, **plain},
                **{"parity": None, "surrogate": None},
            },
        ),
        ("remove-disk", {"member": "abcd", "dry_run": True}),
    ]


def test_relative_paths_reach_the_daemon_absolute(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.img").touch()
    daemon.answers["replace-disk"] = {"role": 0, "job": 1}
    daemon.run("replace-disk", "ARRAY", "old.img", "new.img")
    ((_, arguments),) = daemon.calls
    assert arguments["old"] == str(tmp_path / "old.img")
    assert arguments["new"] == str(tmp_path / "new.img")


def test_dry_run_states_bytes_time_and_exposure(daemon: Daemon) -> None:
    daemon.answers["replace-disk"] = {
        "dry_run": True,
        "does": "rebuilds role 2 onto /disks/new.img",
        "bytes_read": 3 << 30,
        "bytes_written": 1 << 30,
        "bytes_moved": 4 << 30,
        "rate": 200 << 20,
        "rate_source": "assumed",
        "seconds": 5.12,
        "seconds_busy": 128.0,
        "redundancy_left": 1,
        "redundancy_reduced": True,
        "redundancy_reduced_seconds": 5.12,
    }
    lines = daemon.run("replace-disk", "ARRAY", "2", "/disks/new.img", "-n").stdout.splitlines()
    assert lines == [
        "would do: rebuilds role 2 onto /disks/new.img",
        "moves: 4 GiB (reads 3 GiB, writes 1 GiB)",
        "time: 00:00:06 at 200 MiB/s (assumed); 00:02:08 under load",
        "redundancy: reduced for 00:00:06; now 1 more loss tolerated",
    ]


def scripted_job(daemon: Daemon, *steps: dict[str, Any]) -> None:
    """Let `job-list` show one job that goes through *steps*."""
    rest = list(steps)

    def look(_arguments: dict[str, Any]) -> dict[str, Any]:
        return {"jobs": [rest.pop(0) if len(rest) > 1 else rest[0]]}

    daemon.answers["job-list"] = look


def scrub_job(**changes: Any) -> dict[str, Any]:
    """Return a scrub that ended and found nothing, with *changes*."""
    found = {
        "mismatches": 0,
        "repaired": 0,
        "uncorrected": 0,
        "unchecked_stripes": 0,
        "findings": [],
    }
    return job(kind="scrub", state="done", done=1 << 30, **{**found, **changes})


FINDING = {
    "stripe": 7,
    "located": False,
    "members": [{"role": 1, "path": "/disks/d1.img"}, {"role": 2, "path": "/disks/d2.img"}],
    "image_offsets": [1376256],
    "byte_in_chunk": 12,
    "bytes": 3,
    "repaired": False,
    "assumed_data_right": False,
}


def test_scrub_returns_at_once_or_waits(daemon: Daemon) -> None:
    daemon.answers["scrub"] = {"job": 1}
    scripted_job(daemon, job(kind="scrub"), scrub_job())
    assert daemon.run_json("scrub", "ARRAY") == {"job": 1}
    assert daemon.calls == [("scrub", {"repair": False})]
    result = daemon.run("scrub", "ARRAY", "--repair", "--wait")
    assert result.exit_code == 0
    assert ("scrub", {"repair": True}) in daemon.calls
    assert "0 mismatches" in result.stdout
    assert "scrub running  29.3 %" in result.stderr
    assert "scrub done 100.0 %" in result.stderr


def test_scrub_that_leaves_something_wrong_exits_3_and_names_the_place(daemon: Daemon) -> None:
    daemon.answers["scrub"] = {"job": 1}
    scripted_job(daemon, scrub_job(mismatches=1, uncorrected=1, findings=[FINDING]))
    result = daemon.run("scrub", "ARRAY", "--check", "--wait")
    assert result.exit_code == 3
    for words in ("stripe 7", "1 (/disks/d1.img)", "image offset 1376256"):
        assert words in result.stdout
    document = daemon.run_json("scrub", "ARRAY", "--wait", exit_code=3)
    assert document["job"] == 1
    assert document["findings"] == [FINDING]


def test_replace_waits_for_its_rebuild_and_reports_its_failure(daemon: Daemon) -> None:
    daemon.answers["replace-disk"] = {"role": 2, "job": 1}
    scripted_job(daemon, job(), job(state="done", done=1 << 30))
    document = daemon.run_json("replace-disk", "ARRAY", "2", "/disks/new.img", "--wait")
    assert document["result"]["state"] == "done"
    scripted_job(daemon, job(state="failed", error="/disks/new.img: write failed"))
    result = daemon.run("replace-disk", "ARRAY", "2", "/disks/new.img", "--wait")
    assert result.exit_code == 1
    assert "raidx: rebuild failed: /disks/new.img: write failed" in result.stderr


def test_job_verbs(daemon: Daemon) -> None:
    daemon.answers |= dict.fromkeys(("job-pause", "job-resume", "job-cancel", "job-limit"), job())
    scripted_job(daemon, job())
    assert daemon.run_json("job", "ARRAY") == {"jobs": [job()]}
    assert "300 MiB of 1 GiB" in daemon.run("job", "ARRAY", "list").stdout
    scripted_job(daemon, job(kind="grow", going_back=True))
    assert "300 MiB of 1 GiB, going back" in daemon.run("job", "ARRAY", "list").stdout
    scripted_job(daemon, job())
    daemon.calls.clear()
    for verb in ("pause", "resume", "cancel"):
        assert daemon.run("job", "ARRAY", verb).exit_code == 0
    daemon.run("job", "ARRAY", "limit", "1", "--min", "1M", "--max", "0")
    asked = [call for call in daemon.calls if call[0] != "job-list"]
    assert asked == [
        ("job-pause", {"job": 1}),
        ("job-resume", {"job": 1}),
        ("job-cancel", {"job": 1}),
        ("job-limit", {"job": 1, "minimum": 1 << 20, "maximum": 0}),
    ]
    for wrong in (("limit", "1"), ("pause", "1", "--min", "1M"), ("stop",)):
        assert daemon.run("job", "ARRAY", *wrong).exit_code == 2
    scripted_job(daemon, job(), job(state="done"))
    assert daemon.run("job", "ARRAY", "wait").exit_code == 0
    scripted_job(daemon, job(state="cancelled"))
    assert daemon.run("job", "ARRAY", "wait", "1").exit_code == 1
    assert daemon.run("job", "ARRAY", "wait", "9").exit_code == 2
    assert daemon.run_json("job", "ARRAY", "wait") == {"jobs": []}
    refused = daemon.run("job", "ARRAY", "pause")
    assert (refused.exit_code, refused.stderr) == (2, "raidx: no job is running\n")
    daemon.answers["job-list"] = {"jobs": [job(), job(id=2)]}
    refused = daemon.run("job", "ARRAY", "cancel")
    place = daemon.mountpoint
    assert f"2 jobs are running; name one: raidx job {place} cancel 1 or 2" in refused.stderr


def test_growth_says_how_large_the_image_will_be_and_what_to_type_then(
    daemon: Daemon, tmp_path: Path
) -> None:
    sizes = {"size_before": 3 << 20, "size_after": 4 << 20}
    daemon.answers["add-disk"] = {"job": 5, "members_before": 4, "members_after": 5, **sizes}
    text = daemon.run("add-disk", "ARRAY", str(tmp_path / "new.img")).stdout
    assert "growing from 4 to 5 members (job 5); the image has 4 MiB when it ends" in text
    assert "losetup -c DEVICE, then make its file system larger: resize2fs DEVICE for ext4" in text
    ((_, arguments),) = daemon.calls
    assert arguments["role"] is None
    assert arguments["parity"] is arguments["surrogate"] is None
    costs = {"bytes_read": 1 << 20, "bytes_written": 1 << 20, "bytes_moved": 2 << 20}
    times = {"rate": 1 << 20, "rate_source": "assumed", "seconds": 1.0, "seconds_busy": 2.0}
    kept = {"redundancy_left": 1, "redundancy_reduced": False, "redundancy_reduced_seconds": 0.0}
    does = {"dry_run": True, "does": "grows from 4 to 5 members"}
    daemon.answers["add-disk"] = {**does, **costs, **times, **kept, **sizes, "bytes_logged": 4096}
    text = daemon.run("add-disk", "ARRAY", str(tmp_path / "new.img"), "-n").stdout
    for words in ("grows from 4 to 5", "moves: 2 MiB", "image: 3 MiB now, 4 MiB at the end"):
        assert words in text
    assert "journal: 4 KiB more" in text
    assert "redundancy: stays as it is" in text
    copies = {**does, **costs, **times, **kept, "redundancy": {"now": 1, "worst": 1, "end": 2}}
    daemon.answers["add-disk"] = copies  # one copy more of raid1
    text = daemon.run("add-disk", "ARRAY", str(tmp_path / "new.img"), "-n").stdout
    assert "redundancy: 1 more loss tolerated now, 2 more losses tolerated at the end" in text


def test_growth_passes_on_how_parity_is_to_follow(daemon: Daemon, tmp_path: Path) -> None:
    sizes = {"size_before": 3 << 20, "size_after": 4 << 20}
    daemon.answers["add-disk"] = {"job": 5, "members_before": 4, "members_after": 5, **sizes}
    new, surrogate = str(tmp_path / "new.img"), str(tmp_path / "surrogate.img")
    assert daemon.run("add-disk", "ARRAY", new, "--surrogate", surrogate).exit_code == 0
    assert daemon.run("add-disk", "ARRAY", new, "--parity", "piggyback").exit_code == 0
    assert daemon.run("add-disk", "ARRAY", new, "--parity", "backpack").exit_code == 2
    asked = [(a["members"], a["surrogate"], a["parity"]) for _, a in daemon.calls]
    assert asked == [([new], surrogate, None), ([new], None, "piggyback")]


def test_reshape_says_where_it_goes_and_add_disk_can_do_the_same(
    daemon: Daemon, tmp_path: Path
) -> None:
    new = str(tmp_path / "new.img")
    sizes = {"size_before": 3 << 20, "size_after": 4 << 20}
    shape = {"layout_before": "raid0", "members_before": 3, "layout_after": "raid5"}
    daemon.answers["reshape"] = {"job": 5, "members_after": 5, **shape, **sizes}
    text = daemon.run("reshape", "ARRAY", new, "--layout", "raid5", "--fixed").stdout
    assert "moving from raid0 on 3 members to raid5 on 5 (job 5)" in text
    assert "the image has 4 MiB when it ends" in text
    assert "losetup -c DEVICE, then make its file system larger: resize2fs DEVICE for ext4" in text
    assert daemon.run("add-disk", "ARRAY", new, "--method", "restripe", "--create").exit_code == 0
    (_, one), (_, other) = daemon.calls
    assert (one["members"], one["layout"], one["rotate"]) == ([new], "raid5", False)
    assert (other["members"], other["create"]) == ([new], True)
    assert "layout" not in other
    for refused in (("--as", "spare"), ("--parity", "piggyback"), ("--surrogate", new)):
        words = ("add-disk", "ARRAY", new, "--method", "restripe", *refused)
        assert daemon.run(*words).exit_code == 2
    daemon.answers["reshape"] = {"job": 5, "members_after": 3, **shape, **sizes, "size_after": 0}
    assert "losetup" not in daemon.run("reshape", "ARRAY", "--layout", "raid5").stdout


def test_what_rounds_to_nothing_has_no_sign(daemon: Daemon) -> None:
    def less(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: -1e-9 if isinstance(v, float) else less(v) for k, v in value.items()}
        return [less(each) for each in value] if isinstance(value, list) else value

    daemon.answers["stats"] = {**less(STATS), "interval_seconds": 1.0}
    text = daemon.run("stats", "ARRAY").stdout
    assert "0.00" in text
    assert "-0" not in text


@pytest.mark.parametrize(
    ("fs_type", "line"),
    [
        ("ext4", "losetup -c /dev/loop7 && resize2fs /dev/loop7"),
        ("xfs", "losetup -c /dev/loop7 && xfs_growfs '/my disk'"),
        ("btrfs", "losetup -c /dev/loop7 && btrfs filesystem resize max '/my disk'"),
        ("ntfs", "losetup -c /dev/loop7, then what ntfs on /my disk has to grow"),
    ],
)
def test_after_a_growth_the_file_systems_own_command_is_named(fs_type: str, line: str) -> None:
    mounted = Mount("/my disk", (7, 7), fs_type, "/dev/loop7", None, 1, "rw")
    assert growing_steps("/dev/loop7", mounted) == line


def test_a_member_that_is_back_comes_online(daemon: Daemon) -> None:
    daemon.answers["status"] = DEGRADED
    daemon.answers["replace-disk"] = {"role": 2, "job": 4, "catches_up": True}
    said = daemon.run("online", "ARRAY", "2").stdout
    assert said == "/disks/d2.img is back in role 2; it is being caught up (job 4)\n"
    called = dict(daemon.calls)["replace-disk"]
    assert (called["old"], called["new"], called["create"]) == ("2", "/disks/d2.img", False)
    daemon.calls.clear()
    assert daemon.run_json("online", "ARRAY", "/disks/d1.img")["changed"] is False
    assert daemon.run("online", "ARRAY", "7").exit_code == 2
    assert "replace-disk" not in dict(daemon.calls)
