"""Commands that change the members of a running array, and its jobs, against a scripted daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Daemon
from tests.support.documents import job


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
    assert daemon.run("job", "ARRAY", "pause").exit_code == 2  # none is running
    assert daemon.run_json("job", "ARRAY", "wait") == {"jobs": []}


def test_growth_says_how_large_the_image_will_be_and_what_to_type_then(
    daemon: Daemon, tmp_path: Path
) -> None:
    sizes = {"size_before": 3 << 20, "size_after": 4 << 20}
    daemon.answers["add-disk"] = {"job": 5, "members_before": 4, "members_after": 5, **sizes}
    text = daemon.run("add-disk", "ARRAY", str(tmp_path / "new.img")).stdout
    assert "growing from 4 to 5 members (job 5); the image has 4 MiB when it ends" in text
    assert "losetup -c DEVICE && resize2fs DEVICE" in text
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
    assert "losetup -c DEVICE && resize2fs DEVICE" in text
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
