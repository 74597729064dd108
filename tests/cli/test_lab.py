"""`raidx inject` and `raidx crash` before a scripted daemon: what is sent, and what is believed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Daemon
from tests.support.documents import status


def test_a_fault_is_sent_as_it_was_typed_and_confirmed(daemon: Daemon) -> None:
    daemon.answers["inject"] = lambda given: {
        "member": "/d1",
        "role": 1,
        "length": None,
        "count": given["count"],
        "at": given["at"],
        "delay_s": None,
        "shift": 65536,
    }
    result = daemon.run("inject", "ARRAY", "1", "misdirect", "--at", "4K", "--count", "2")
    assert result.stdout == "/d1 (role 1): the next 2 writes will go 65536 bytes too far\n"
    (call,) = daemon.calls
    sent = {"member": "1", "fault": "misdirect", "at": 4096, "count": 2, "delay_s": None, "seed": 0}
    assert call == ("inject", sent)


def test_the_status_shows_what_is_broken(daemon: Daemon) -> None:
    lab = [{"member": "/d0", "faults": []}, {"member": "/d1", "faults": ["hang", "slow"]}]
    daemon.answers["status"] = status(lab=lab)
    shown = daemon.run("status", "ARRAY").stdout
    assert "members can be broken; faults now: /d1: hang, slow" in shown


@pytest.mark.parametrize(
    "again",
    [
        None,
        {},
        {"members": ["/d0"], "mountpoint": "/etc"},
        {"members": 5, "mountpoint": "/mnt"},
        {"members": ["/d0"], "mountpoint": "/mnt", "rm": "-rf"},
    ],
)
def test_what_is_mounted_again_must_be_what_was_mounted(daemon: Daemon, again: Any) -> None:
    """Else the command would kill this process, in which the scripted daemon runs."""
    daemon.answers["crash"] = {"keep": "some", "seed": 0, "cut": [], "again": again}
    result = daemon.run("crash", "ARRAY")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "sent an answer that is not valid" in line


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("inject", "ARRAY", "1", "explode"), "'explode' is not one of"),
        (("inject", "ARRAY", "1", "rot", "--at", "soon"), "soon"),
        (("inject", "ARRAY", "1"), "Missing argument"),
        (("crash", "ARRAY", "--keep", "most"), "'most' is not one of"),
        (("peek", "ARRAY", "first"), "'first' is not a valid integer"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    daemon: Daemon, words: tuple[str, ...], complaint: str
) -> None:
    result = daemon.run(*words)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not daemon.calls
