"""What drives say of themselves: read as smartctl prints it, shown, and told once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.daemon import drives as drives_module
from raidx_fuse.daemon.backing_devices import drives_below
from raidx_fuse.daemon.drives import HOT_CELSIUS, Drives
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import LOOK_S, Watch
from tests.daemon.conftest import Desk

ATA = {
    "smart_status": {"passed": True},
    "temperature": {"current": 38},
    "power_on_time": {"hours": 20123},
    "ata_smart_attributes": {
        "table": [{"id": 5, "raw": {"value": 8}}, {"id": 197, "raw": {"value": 0}}, "noise"]
    },
}
NVME = {
    "smart_status": {"passed": False},
    "temperature": {"current": HOT_CELSIUS + 1},
    "nvme_smart_health_information_log": {"percentage_used": 103, "media_errors": 2},
}


class Smartctl:
    """A program in place of smartctl; *says* is what it prints of each drive, by its name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        program = folder / "smartctl"
        program.write_text(
            '#!/bin/sh\nfor drive; do :; done\ncat "${0%/*}/$(basename $drive)"\nexit 4\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(drives_module, "_SEARCH", str(folder))
        self.below: dict[str, list[str]] = {}
        monkeypatch.setattr(drives_module, "drives_below", lambda path: self.below.get(path, []))

    def says(self, drive: str, report: Any) -> None:
        text = report if isinstance(report, str) else json.dumps(report)
        (self.folder / Path(drive).name).write_text(text)


@pytest.fixture
def smartctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smartctl:
    return Smartctl(tmp_path, monkeypatch)


@pytest.mark.real_time
async def test_reports_of_drives_are_read(smartctl: Smartctl) -> None:
    smartctl.below = {"/srv/a": ["/dev/sda"], "/srv/b": ["/dev/sda"], "/dev/n1": ["/dev/n1"]}
    smartctl.says("sda", ATA)
    smartctl.says("n1", NVME)
    drives = Drives()
    await drives.ask(["/srv/a", "/srv/b", "/dev/n1", "nbd://host/c"])
    n1, sda = drives.shown()
    assert sda == {
        "path": "/dev/sda",
        "members": ["/srv/a", "/srv/b"],
        "passed": True,
        "temperature_celsius": 38,
        "powered_on_hours": 20123,
        "reallocated_sectors": 8,
        "pending_sectors": 0,
        "media_errors": None,
        "worn_ratio": None,
    }
    assert (n1["passed"], n1["media_errors"], n1["worn_ratio"]) == (False, 2, 1.03)
    assert drives.problems() == [
        "drive /dev/n1 below /dev/n1: it says that it is failing, media errors: 2, "
        f"it is hotter than {HOT_CELSIUS} degrees Celsius",
        "drive /dev/sda below /srv/a, /srv/b: sectors that it has replaced: 8",
    ]
    smartctl.says("sda", '{"smartctl": {"exit_status": 2}}')  # it is in standby
    smartctl.says("n1", "no JSON")
    await drives.ask(["/srv/a", "/dev/n1"])
    assert drives.shown() == [n1, sda], "what they said before"
    await drives.ask(["/srv/a"])
    assert drives.shown() == [sda], "a drive below no member is none of the array"


@pytest.mark.parametrize(
    "report",
    [
        "[]",
        {"smart_status": 3},
        {"smart_status": {}, "ata_smart_attributes": {"table": [{"id": []}]}},
    ],
)
@pytest.mark.real_time
async def test_strange_reports_stop_nothing(smartctl: Smartctl, report: Any) -> None:
    smartctl.below = {"/srv/a": ["/dev/sda"]}
    smartctl.says("sda", report)
    drives = Drives()
    await drives.ask(["/srv/a"])
    assert drives.problems() == []


async def test_a_problem_of_a_drive_is_told_once(desk: Desk) -> None:
    told: list[Event] = []
    drives = Drives()
    watch = Watch(told.append, "/mnt/a", lambda: 7, drives)
    watch.begin(desk.array)
    desk.array.nursery.start_soon(watch.run)
    drives.reports["/dev/sda"] = {
        "path": "/dev/sda",
        "members": ["/srv/a"],
        "passed": False,
        "temperature_celsius": None,
        "powered_on_hours": None,
        "reallocated_sectors": None,
        "pending_sectors": None,
        "media_errors": None,
        "worn_ratio": None,
    }
    await trio.sleep(3 * LOOK_S)
    (event,) = (event for event in told if event.event == "DriveProblem")
    assert (event.severity, event.message) == (
        "warning",
        "drive /dev/sda below /srv/a: it says that it is failing",
    )


def test_drives_below_a_file_are_devices(tmp_path: Path) -> None:
    for drive in drives_below(str(tmp_path)):
        assert os.path.basename(drive) in os.listdir("/sys/block")
