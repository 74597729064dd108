"""The statistics of a mount as Prometheus metrics: `raidx stats --prometheus`.

Counters count since the mount. Names and units follow the conventions of Prometheus: base units,
`_total` for counters. The text is made by the client library of Prometheus (the extra
``prometheus``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from raidx_fuse.cli.printable import shown
from raidx_fuse.client.status_document import exit_status
from raidx_fuse.errors import NotInstalledError, RaidxError, Reason

PREFIX = "raidx"
Document = Mapping[str, Any]
Values = Iterable[tuple[tuple[str, ...], float]]  # (values of the labels, value)
MEMBER = ("array", "role", "path")

MEMBER_COUNTERS = (
    ("reads", "member_reads", "Reads of a member that have ended."),
    ("writes", "member_writes", "Writes to a member that have ended."),
    ("flushes", "member_flushes", "Flushes of a member that have ended."),
    ("read_bytes", "member_read_bytes", "Bytes read from a member."),
    ("write_bytes", "member_written_bytes", "Bytes written to a member."),
    ("errors", "member_errors", "Errors of a member."),
)
DRIVE_GAUGES = (
    ("temperature_celsius", "Temperature of a drive below members."),
    ("powered_on_hours", "Hours that a drive has been on."),
    ("reallocated_sectors", "Sectors that a drive has replaced."),
    ("pending_sectors", "Sectors that a drive cannot read."),
    ("media_errors", "Media errors of a drive."),
    ("worn_ratio", "Share of its endurance that a drive has used."),
    ("passed", "1 if a drive says that it does not expect to fail."),
)
SUM_COUNTERS = (
    ("misfits", "sum_misfits", "Pages that did not fit their checksums."),
    ("healed", "sum_healed", "Pages that did not fit their checksums and were written anew."),
    ("wrong_sums", "sum_wrong", "Checksums that were wrong about right bytes."),
    ("unverified", "sum_unverified", "Pages that were taken as they were after a crash."),
)
VOLUME_COUNTERS = (
    ("reads", "volume_reads", "Reads of a volume."),
    ("writes", "volume_writes", "Writes to a volume."),
    ("read_bytes", "volume_read_bytes", "Bytes read from a volume."),
    ("write_bytes", "volume_written_bytes", "Bytes written to a volume."),
)


def as_text(status: Document, reports: Mapping[str, Document]) -> str:
    """Return the metrics of a mount as text in the exposition format.

    *status*: the document of `raidx status`. *reports*: name of an array -> its document of
    `raidx stats`. Raises RaidxError if the library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector
    except ModuleNotFoundError:
        raise NotInstalledError(
            "the library of Prometheus is not installed",
            action="pip install 'raidx-fuse[prometheus]'",
        ) from None

    class Mount(Collector):
        def collect(self) -> Iterator[Any]:
            return families(status, reports)

    registry = CollectorRegistry()
    registry.register(Mount())
    return generate_latest(registry).decode()


def families(status: Document, reports: Mapping[str, Document]) -> Iterator[Any]:
    """Yield the metric families of a mount; see `as_text`."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    mount = status["mountpoint"]
    arrays = {each["name"]: each for each in status.get("arrays", [status])}

    def gauge(name: str, text: str, labels: tuple[str, ...], values: Values) -> Any:
        return _filled(GaugeMetricFamily, mount, name, text, labels, values)

    def counter(name: str, text: str, labels: tuple[str, ...], values: Values) -> Any:
        return _filled(CounterMetricFamily, mount, name, text, labels, values)

    for name, text, value in ARRAY_GAUGES:
        yield gauge(name, text, ("array",), (((a,), value(d)) for a, d in arrays.items()))
    yield gauge(
        "array_state",
        "1 for the state that the array has.",
        ("array", "state"),
        (((name, array["state"]), 1) for name, array in arrays.items()),
    )
    yield gauge(
        "member_active",
        "1 if the member is active in its role.",
        MEMBER,
        (
            ((name, str(member["role"]), member["path"]), member["state"] == "active")
            for name, array in arrays.items()
            for member in array["members"]
            if member["role"] >= 0
        ),
    )
    yield gauge(
        "job_done_ratio",
        "Progress of a background job.",
        ("array", "job"),
        (
            ((name, job["kind"]), job["done"] / job["total"] if job["total"] else 1.0)
            for name, array in arrays.items()
            for job in array["jobs"]
        ),
    )
    sums = [((name,), array["sums"]) for name, array in arrays.items() if "sums" in array]
    for key, name, text in SUM_COUNTERS:
        yield counter(name, text, ("array",), ((labels, each[key]) for labels, each in sums))
    drives = [((n, d["path"]), d) for n, array in arrays.items() for d in array.get("drives", ())]
    for key, text in DRIVE_GAUGES:
        known = [(labels, each[key]) for labels, each in drives if each[key] is not None]
        yield gauge(f"drive_{key}", text, ("array", "drive"), known)
    members = [
        ((name, str(member["role"]), member["path"]), member, report["interval_seconds"])
        for name, report in reports.items()
        for member in report["members"]
    ]
    for key, name, text in MEMBER_COUNTERS:
        yield counter(name, text, MEMBER, ((labels, each[key]) for labels, each, _ in members))
    yield counter(
        "member_busy_seconds",
        "Time in which a member had a request.",
        MEMBER,
        ((labels, each["utilisation"] * seconds) for labels, each, seconds in members),
    )
    volumes = {volume["name"]: volume for r in reports.values() for volume in r["volumes"]}
    for key, name, text in VOLUME_COUNTERS:
        yield counter(name, text, ("volume",), (((v,), d[key]) for v, d in volumes.items()))


def _filled(
    family: Any, mount: str, name: str, text: str, labels: tuple[str, ...], values: Values
) -> Any:
    """Return a metric family whose labels begin with the mount point."""
    filled = family(f"{PREFIX}_{name}", text, labels=["mount", *labels])
    for label_values, value in values:
        # A path may have bytes that are not UTF-8, which the format cannot have.
        filled.add_metric([shown(label) for label in (mount, *label_values)], value)
    return filled


ARRAY_GAUGES = (
    ("array_size_bytes", "Size of the image.", lambda array: array["size"]),
    ("array_written_bytes", "Bytes that were ever written.", lambda array: array["written"]),
    (
        "array_redundancy_left",
        "Members that can still be lost without loss of data.",
        lambda array: array["redundancy_left"],
    ),
    (
        "array_lost_chunks",
        "Chunks that nothing can give back, or some pages of them.",
        lambda array: array["lost_chunks"],
    ),
    (
        "array_host_full",
        "1 if a file system that holds members is full, so that new writes fail.",
        lambda array: array.get("host_full", False),
    ),
    (
        "array_host_free_bytes",
        "Bytes free on the fullest file system that holds members.",
        lambda array: min((host["free_bytes"] for host in array.get("hosts", ())), default=inf),
    ),
    (
        "array_health",
        "0 healthy, 1 degraded, 2 failed, 4 unknown: as `raidx status --check`.",
        exit_status,
    ),
)


def write_text(path: str, text: str) -> None:
    """Write *text* to *path* for node_exporter's textfile collector: at once, or not at all."""
    part = f"{path}.{os.getpid()}"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        raise RaidxError(
            f"{path} cannot be written: {error.strerror}", reason=Reason.FILE
        ) from error
