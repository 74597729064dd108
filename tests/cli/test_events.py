"""`raidx events`: what was kept, of which array, since when; following; trying the hooks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raidx_fuse.cli.commands import events as command
from raidx_fuse.cli.main import main
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.store import EventStore
from tests.cli.conftest import Daemon

NOW_S = 1_700_000_000
UUID = "11111111-2222-3333-4444-555555555555"


def event(kind: str, ago_s: int = 0, **changes: Any) -> Event:
    made = Event(NOW_S - ago_s, kind, "error", "disk", UUID, "/mnt/a", "", f"{kind} it is", "do it")
    return replace(made, **changes)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventStore:
    """Return the store of this user, with events of two arrays."""
    monkeypatch.setenv("RAIDX_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(command, "unix_s", lambda: NOW_S)
    made = EventStore(tmp_path / "state")
    made.append(event("Old", 9 * 86400))
    made.append(event("Other", 100, array="second", uuid="2" + UUID[1:], mountpoint="/mnt/b"))
    made.append(event("New", 50))
    return made


def run(*words: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["events", *words])
    assert result.exit_code == status, result.stderr
    return result


def kinds(*words: str) -> list[str]:
    return [each["event"] for each in json.loads(run(*words, "--json").stdout)["events"]]


def test_events_are_chosen_by_array_and_time(store: EventStore, tmp_path: Path) -> None:
    assert kinds() == ["Old", "Other", "New"]
    assert kinds("disk") == kinds(UUID) == ["Old", "New"]
    assert kinds("second") == ["Other"]
    assert kinds("--since", "1w") == kinds("--since", "2h") == ["Other", "New"]
    assert kinds("--since", "75s") == ["New"]
    assert kinds("--since", "2023-11-01", "disk") == ["Old", "New"]
    assert kinds("--since", "2024-01-01") == []
    store.append(event("Here", mountpoint=str(tmp_path)))
    assert kinds(str(tmp_path)) == ["Old", "New", "Here"]
    lines = run("second").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1] == "    next: do it"
    assert lines[0].endswith("second  Other  Other it is")
    assert "no event of third" in run("third", status=2).stderr
    assert "neither a date" in run("--since", "soon", status=2).stderr


def test_following_prints_what_is_new_once(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_seconds: float) -> None:
        if len(store.read()) > 5:
            raise KeyboardInterrupt
        store.append(event(f"Later{len(store.read())}"))

    monkeypatch.setattr("time.sleep", sleep)
    result = run("disk", "--since", "1h", "--follow", "--json", status=130)
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["event"] for each in told] == ["New", "Later3", "Later4", "Later5"]
    assert {each["output_version"] for each in told} == {1}


def test_hooks_are_tried_and_a_bad_one_is_told(daemon: Daemon) -> None:
    hooks: dict[str, Any] = {"events.program": {"ok": True, "problem": None}}
    daemon.answers["events-test"] = {"event": {}, "hooks": hooks}
    assert daemon.run("events", "ARRAY", "--test").stdout == "events.program: done\n"
    hooks["events.mail"] = {"ok": False, "problem": "there is no sendmail"}
    result = daemon.run("events", "ARRAY", "--test")
    assert result.exit_code == 1
    assert "events.mail: there is no sendmail" in result.stdout
    daemon.answers["events-test"] = {"event": {}, "hooks": {}}
    assert "no hook is set: raidx set" in daemon.run("events", "ARRAY", "--test").stdout
    assert "mount point" in run("--test", status=2).stderr
