"""The types of the documents that a running array answers with.

They name what programs use most. The schemas (`raidx schema`) have every key; a test finds each key
of these types there, with the same type. Numbers named without a unit: sizes are bytes.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Member(TypedDict):
    """A member of an array; *role* is negative for a spare."""

    role: int
    path: str | None
    uuid: str
    state: str
    size: int
    errors: int | None
    errors_ever: int
    repairs_ever: int


class Volume(TypedDict):
    """An image file, or an export of `raidx serve`, which has no *path*."""

    name: str
    size: int
    path: str | None


class Job(TypedDict):
    """A background job. *done* and *total* are in *unit*, *rate* in units per second."""

    id: int
    kind: str
    state: str
    done: int
    total: int
    unit: str
    rate: float
    eta_seconds: float | None
    paused: bool
    error: str | None


class ArrayStatus(TypedDict):
    """The status of one array."""

    uuid: str
    name: str
    layout: str
    chunk_size: int
    size: int
    state: str
    redundancy_left: int
    members: list[Member]
    jobs: list[Job]
    volumes: list[Volume]
    warnings: list[str]
    action: str | None
    last_scrub: dict[str, Any] | None
    internal: dict[str, Any]


class Status(ArrayStatus):
    """The status of a mount: *arrays* has each of its arrays, the top one of them."""

    arrays: list[ArrayStatus]
    problems: list[dict[str, Any]]
    mountpoint: str | None
    pid: int
    socket: str
    log_path: str


class Latencies(TypedDict):
    """Milliseconds between request and answer."""

    mean: float
    p50: float
    p95: float
    p99: float


class Counters(TypedDict):
    """What an array has done for its users in an interval."""

    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    latency_ms: Latencies
    pre_reads: int
    rmw: int
    rcw: int
    full_stripe: int
    degraded_reads: int
    chunks_moved: int


class MemberCounters(TypedDict):
    """What a member has done in an interval; *utilisation* is a ratio."""

    role: int
    path: str | None
    reads: int
    writes: int
    read_bytes: int
    write_bytes: int
    queue_mean: float
    utilisation: float
    read_ms_mean: float
    write_ms_mean: float


class Stats(TypedDict):
    """Counters since the mount, or of an interval."""

    interval_seconds: float
    members: list[MemberCounters]
    array: Counters


class Started(TypedDict):
    """A command that began: *job* is the job that carries it out, None if it is done already."""

    job: NotRequired[int | None]


class Plan(TypedDict):
    """What a dry run found."""

    dry_run: bool
    does: str
    bytes_moved: int
    seconds: float
    redundancy_reduced: bool


class Event(TypedDict):
    """Something that happened to an array, *at_s* seconds after the beginning of 1970."""

    at_s: float
    event: str
    severity: str
    array: str
    uuid: str
    mountpoint: str | None
    subject: str
    message: str
    action: str | None
