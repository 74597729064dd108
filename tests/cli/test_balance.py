"""`raidx balance`, `raidx array evacuate` and the load in `raidx status`, from scripted daemons."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Daemon
from tests.support.command import fail, run, run_json
from tests.support.documents import status

STATE = {"auto": "off", "state": "idle", "steps": [], "steps_done": 0, "error": None, "note": None}
PLAN: dict[str, Any] = {
    "planner": "dswap",
    "solved": True,
    "hotspots": ["fast"],
    "moves": [{"volume": "mail", "from": "fast", "to": "slow", "size": 1 << 20}],
    "steps": ["move mail from fast to slow"],
    "bytes_moved": 1 << 20,
    "bytes_copied": 1 << 20,
    "bytes_read": 1 << 19,
    "bytes_written": 1 << 19,
    "seconds": 2.0,
    "utilisation": [],
    "explanation": ["fast is a hotspot: utilisation 90%, threshold 80%", "mail: fast -> slow"],
    "dry_run": True,
    "balance": STATE,
}


def test_a_dry_run_prints_hotspots_plan_and_bytes(daemon: Daemon) -> None:
    daemon.answers["balance"] = PLAN
    result = daemon.run("balance", "ARRAY", "--dry-run", "--strategy", "exact")
    assert result.exit_code == 0, result.stderr
    assert daemon.calls == [("balance", {"planner": "exact", "dry_run": True})]
    assert "fast is a hotspot: utilisation 90%" in result.stdout
    assert "1. move mail from fast to slow" in result.stdout
    assert "moves 1 MiB of volumes, copies 512 KiB that were written" in result.stdout
    assert daemon.run_json("balance", "ARRAY", "-n")["bytes_moved"] == 1 << 20
    explained = daemon.run("explain", "ARRAY", "--balance")
    assert explained.stdout.splitlines() == PLAN["explanation"]


def test_the_papers_example_needs_no_pool_and_a_pool_is_shown_alike(daemon: Daemon) -> None:
    shown = run("balance", "--step")
    assert "step 1: displace v1 from array1 to array2" in shown
    assert "array2  load 60 of 100, 60% (threshold 75%), 0 B free" in shown
    assert "step 2: swap v2 of array1 for w4 of array2" in shown
    assert "C1: takes 10 of load off array1, at least 0.8" in shown
    assert shown.endswith("no array is overloaded; 3 GiB of volumes are moved\n")
    document = run_json("balance", "--step", "--planner", "worst-fit")
    assert (document["example"][:6], document["planner"]) == ("Fig. 2", "worst-fit")
    daemon.answers["balance"] = {**PLAN, "trace": document["trace"]}
    told = daemon.run("balance", "ARRAY", "--step")
    assert daemon.calls == [("balance", {"planner": None, "dry_run": True, "step": True})]
    assert told.stdout.startswith("this pool as it was observed; nothing is moved; planner dswap\n")
    assert (
        told.stdout.splitlines()[1:]
        == run("balance", "--step", "--planner", "worst-fit")[:-1].split("\n")[1:]
    )
    assert "leave out --wait" in fail("balance", "--step", "--wait")
    assert "Missing argument 'MOUNT'" in fail("balance")


def test_a_plan_is_begun_or_waited_for(daemon: Daemon) -> None:
    daemon.answers["balance"] = PLAN
    begun = daemon.run("balance", "ARRAY")
    assert f"begun: raidx balance {daemon.mountpoint} --status" in begun.stdout.replace("\n", "")
    done = {**STATE, "state": "done", "steps": PLAN["steps"], "steps_done": 1}
    daemon.answers["balance-status"] = {"balance": done}
    assert daemon.run("balance", "ARRAY", "--wait").stdout.endswith("plan done\n")
    assert daemon.run_json("balance", "ARRAY", "--wait")["balance"]["state"] == "done"
    shown = daemon.run("balance", "ARRAY", "--status").stdout.splitlines()
    assert shown == ["balance.auto is off; done", "done: move mail from fast to slow"]
    daemon.answers["balance-status"] = {"balance": {**done, "state": "failed", "error": "no room"}}
    failed = daemon.run("balance", "ARRAY", "--wait")
    assert (failed.exit_code, failed.stderr) == (1, "raidx: the plan ended: no room\n")
    daemon.answers["balance-cancel"] = {"balance": {**done, "state": "cancelled", "steps_done": 0}}
    dropped = daemon.run("balance", "ARRAY", "--cancel").stdout.splitlines()
    assert dropped == ["balance.auto is off; cancelled", "dropped: move mail from fast to slow"]


def test_an_evacuation_names_its_array(daemon: Daemon) -> None:
    daemon.answers["array-evacuate"] = PLAN
    assert daemon.run("array", "evacuate", "ARRAY", "fast", "-n").exit_code == 0
    assert daemon.calls == [("array-evacuate", {"name": "fast", "dry_run": True})]


def test_status_shows_the_load_of_several_arrays(daemon: Daemon) -> None:
    load = {"array": "fast", "utilisation": 0.91, "busy": 0.95, "latency_ms": 31.2, "tau": 0.8}
    load |= {"above": 1.0, "hotspot": True, "observations": 12}
    new = {**load, "array": "slow", "hotspot": False, "observations": 0}
    daemon.answers["status"] = status(pool={"arrays": [load, new], "balance": STATE})
    shown = daemon.run("status", "ARRAY").stdout
    line = "fast: utilisation 91% (threshold 80%), busy 95%, 31.2 ms a request; hotspot for 100%"
    assert line in shown
    assert "slow: not observed yet" in shown
    assert "what would help: raidx balance /mnt --dry-run" in shown
    daemon.answers["status"] = status(pool={"arrays": [new], "balance": STATE})
    assert "not observed" not in daemon.run("status", "ARRAY").stdout
