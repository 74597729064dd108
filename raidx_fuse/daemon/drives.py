"""What the drives below the members say of themselves (SMART), as smartctl prints it, once an hour.

A member may be a drive, a partition or volume of some, or a file on them. Only where smartctl is
installed and may open the drive: as root. A drive in standby is not woken, and keeps what it said
before. Sources of the names: smartctl(8), "--json"; NVMe base specification, "SMART / Health
Information"; the numbers of ATA attributes that all vendors use alike (5, 197, 198).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raidx_fuse.daemon.backing_devices import drives_below
from raidx_fuse.daemon.events.programs import found, output_of
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.spec import is_local
from raidx_fuse.members.threads import in_thread

if TYPE_CHECKING:
    from raidx_fuse.array.array import Array
    from raidx_fuse.documents import Drive

ASK_EACH_S = 3600.0
ASKED_S = 20.0  # for one drive to answer
HOT_CELSIUS = 60  # vendors allow 60 to 70
REALLOCATED, PENDING, UNCORRECTABLE = 5, 197, 198  # ATA attributes
_SEARCH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin"

log = logging.getLogger(__name__)


class Drives:
    """The *reports* of the drives below the members of an array, by the path of the drive."""

    def __init__(self) -> None:
        self.reports: dict[str, Drive] = {}

    async def run(self, array: Array) -> None:
        """Ask each drive now, and once an hour (a background task of *array*)."""
        while True:
            await self.ask([member.path for member in array.member_set.present().values()])
            await rest(ASK_EACH_S)

    async def ask(self, paths: Sequence[str]) -> None:
        """Ask the drives below *paths*; those that do not answer keep what they said before."""
        program = found("smartctl", _SEARCH)
        members: dict[str, list[str]] = {}
        for path in filter(is_local, paths) if program else ():
            try:
                for drive in await in_thread(path, partial(drives_below, path)):
                    members.setdefault(drive, []).append(path)
            except OSError as error:
                log.info("%s: its drives are not known: %s", path, error)
        for drive in self.reports.keys() - members.keys():
            del self.reports[drive]
        for drive, above in members.items():
            words = [str(program), "--json=c", "--nocheck=standby", "--health", "--attributes"]
            said = _report(await output_of([*words, drive], ASKED_S) or b"", drive, above)
            if said is not None:
                self.reports[drive] = said

    def shown(self) -> list[Drive]:
        return [self.reports[path] for path in sorted(self.reports)]

    def problems(self) -> list[str]:
        """Return a line for each drive with which something is wrong."""
        said = ((drive, _problem_of(drive)) for drive in self.shown())
        return [
            f"drive {drive['path']} below {', '.join(drive['members'])}: {problem}"
            for drive, problem in said
            if problem
        ]


def _problem_of(drive: Drive) -> str:
    """Return what is wrong with *drive*, "" if nothing is."""
    found = []
    if drive["passed"] is False:
        found.append("it says that it is failing")
    for number, what in (
        (drive["pending_sectors"], "sectors that it cannot read"),
        (drive["reallocated_sectors"], "sectors that it has replaced"),
        (drive["media_errors"], "media errors"),
    ):
        if number:
            found.append(f"{what}: {number}")
    if (drive["temperature_celsius"] or 0) > HOT_CELSIUS:
        found.append(f"it is hotter than {HOT_CELSIUS} degrees Celsius")
    return ", ".join(found)


def _report(output: bytes, path: str, members: list[str]) -> Drive | None:
    """Return what smartctl printed of the drive *path*, None if it is no report."""
    try:
        said = json.loads(output)
    except ValueError:
        return None
    if not isinstance(said, dict) or "smart_status" not in said:
        return None
    nvme = _part(said, "nvme_smart_health_information_log")
    rows = _part(said, "ata_smart_attributes").get("table")
    ata = {
        _count(row.get("id")): _part(row, "raw").get("value")
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict)
    }
    passed = _part(said, "smart_status").get("passed")
    errors = [nvme.get("media_errors"), ata.get(UNCORRECTABLE)]
    worn = nvme.get("percentage_used")
    return {
        "path": path,
        "members": members,
        "passed": passed if isinstance(passed, bool) else None,
        "temperature_celsius": _count(_part(said, "temperature").get("current")),
        "powered_on_hours": _count(_part(said, "power_on_time").get("hours")),
        "reallocated_sectors": _count(ata.get(REALLOCATED, said.get("scsi_grown_defect_list"))),
        "pending_sectors": _count(ata.get(PENDING)),
        "media_errors": next((number for each in errors if (number := _count(each))), None),
        "worn_ratio": None if (used := _count(worn)) is None else used / 100,
    }


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
