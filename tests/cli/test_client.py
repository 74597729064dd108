"""`raidx_fuse.client`: what a program gets from a running array.

The daemon answers from a script; tests/mount/test_client.py has a real one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import raidx_fuse.client
from raidx_fuse.client import Client, RaidxError, TimedOutError
from raidx_fuse.errors import BusyError, Reason
from tests.cli.conftest import Daemon
from tests.cli.test_running_commands import STATS
from tests.support.documents import job, status
from tests.support.reasons import because


def test_a_program_looks_and_changes(daemon: Daemon) -> None:
    array = Client(daemon.mountpoint)
    daemon.answers |= {"stats": STATS, "job-list": {"jobs": [job()]}, "scrub": {"job": 7}}
    daemon.answers |= {"job-wait": job(state="done"), "replace-disk": {"job": 8, "role": 2}}
    daemon.answers |= {"set": {"settings": {"speed_min": 1}}, "get": {"settings": {"a": 1}}}
    daemon.answers |= {
        "fail-disk": {"role": 1},
        "job-pause": job(),
        "reshape": {"job": 3},
        "add-disk": {"added": []},
    }
    assert array.status()["arrays"][0]["members"][0]["role"] == 0
    assert array.stats(0.5)["array"]["rmw"] == 3
    assert [each["kind"] for each in array.jobs()] == ["rebuild"]
    assert array.scrub(repair=True).get("job") == 7
    assert array.wait_job(7)["state"] == "done"
    assert array.set("speed_min", 1) == {"speed_min": 1}
    array.replace_disk(2, "new.img", create=True)
    array.add_disks("/a", "/b", spare=True)
    array.fail_disk(1)
    assert array.pause(7)["kind"] == "rebuild"
    assert array.reshape("raid4").get("job") == 3
    assert array.settings() == {"a": 1}
    called = dict(daemon.calls)
    assert called["fail-disk"] == {"member": "1", "lose_data": False}
    assert called["stats"] == {"interval_s": 0.5}
    assert called["replace-disk"]["old"] == "2"
    assert called["replace-disk"]["new"].startswith("/")
    assert called["add-disk"]["role"] == "spare"
    assert called["set"] == {"key": "speed_min", "value": "1"}


def test_a_program_asks_all_that_the_command_asks(daemon: Daemon) -> None:
    array = Client(daemon.mountpoint)
    states = iter(["running", "done"])
    daemon.answers |= {
        "volume-list": {"volumes": [], "unshown": []},
        "explain": lambda given: {"given": given},
        "peek": {"stripe": 3, "cells": [], "chains": []},
        "tune": {"job": 4},
        "balance": {"steps": [], "balance": {}},
        "balance-status": lambda _: {"balance": {"state": next(states)}},
        "volume-create": {"name": "a"},
        "volume-resize": {"name": "a"},
        "volume-rename": {"name": "b"},
        "volume-delete": {"deleted": "b"},
        "volume-move": {"job": 5},
        "array-list": {"arrays": [], "absent": []},
        "damage": {"ranges": []},
    }
    assert array.volumes()["volumes"] == []
    array.explain(4096, write=True)
    array.explain_stripe(7)
    assert array.peek(3)["stripe"] == 3
    assert array.tune().get("job") == 4
    array.balance(planner="dswap", dry_run=True)
    assert array.wait_balance() == "done"
    array.create_volume("a", 1 << 20, on="fast")
    array.resize_volume("a", 2 << 20)
    array.rename_volume("a", "b")
    array.delete_volume("b", lose_data=True)
    array.move_volume("b", "slow", dry_run=True)
    array.arrays()
    array.damage()
    assert daemon.calls[1:3] == [
        ("explain", {"offset": 4096, "length": 4096, "write": True}),
        ("explain", {"stripe": 7}),
    ]
    called = dict(daemon.calls)
    assert called["tune"] == {"now": True, "dry_run": False}
    assert called["balance"] == {"planner": "dswap", "dry_run": True}
    assert called["volume-create"] == {"name": "a", "size": 1 << 20, "on": "fast"}
    assert called["volume-delete"] == {"volume": "b", "lose_data": True, "dry_run": False}
    assert called["volume-move"] == {"volume": "b", "to": "slow", "dry_run": True}


def test_what_begins_a_daemon_is_asked_of_the_command(tmp_path: Path) -> None:
    members = [tmp_path / name for name in ("a", "b")]
    plan = Client.create(members, "raid1", size="32MiB", dry_run=True)
    assert plan["creates"] == [str(member) for member in members]
    assert Client.create(members, "raid1", size="32MiB", name="twin")["name"] == "twin"
    with pytest.raises(RaidxError, check=because(Reason.SIGNATURE_FOUND)):
        Client.create(members, "raid1")
    with pytest.raises(RaidxError) as caught:
        Client.mount(members, tmp_path / "nowhere")
    assert caught.value.reason == Reason.MOUNT_POINT


def test_an_error_has_its_kind_and_what_to_do(daemon: Daemon) -> None:
    daemon.answers["scrub"] = BusyError("a scrub is running", action="wait for it")
    with pytest.raises(RaidxError, match="a scrub is running") as caught:
        Client(daemon.mountpoint).scrub()
    assert (caught.value.kind, caught.value.action) == ("busy", "wait for it")
    with pytest.raises(RaidxError, check=because(Reason.NOT_MOUNTED)):
        Client("/nowhere").status()


def test_waiting_ends_with_the_state_or_an_error(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raidx_fuse.client.POLL_S", 0.001)
    states = iter(["degraded", "rebuilding", "clean"])
    daemon.answers["status"] = lambda _: status(state=next(states))
    assert Client(daemon.mountpoint).wait()["state"] == "clean"
    daemon.answers["status"] = status(state="degraded", action="replace it")
    with pytest.raises(TimedOutError, match="disk is degraded, not healthy") as caught:
        Client(daemon.mountpoint).wait(timeout_s=0)
    assert caught.value.action == "replace it"


def test_every_name_of_the_client_can_be_imported() -> None:
    for name in raidx_fuse.client.__all__:
        assert getattr(raidx_fuse.client, name).__name__ == name
    with pytest.raises(AttributeError, match="Nothing"):
        _ = raidx_fuse.client.Nothing


def test_the_client_alone_needs_neither_trio_nor_numpy() -> None:
    late = "{'trio', 'numpy', 'raidx_fuse.documents'}"
    program = f"import raidx_fuse.client, sys; print(sorted({late} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
