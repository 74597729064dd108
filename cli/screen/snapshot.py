"""One look at a running array, from the answers to `stats`, `status` and `chunk-map`.

The answers are checked and bounded: any user can run a daemon that calls itself raidx.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raidx_fuse.cli.asking import check_status
from raidx_fuse.cli.output import Output, percent
from raidx_fuse.cli.status_text import job_amount, redundancy
from raidx_fuse.daemon.control_socket import ControlError

PARTS_MAX = 256  # of a member's chunks
WORD_CHARS_MAX = 40
TEXT_CHARS_MAX = 1000
NUMBER_MAX = 1e20

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a member's places: shares in percent, and *uses*, accesses per second."""

    written: int
    lost: int
    uses: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a member did in the interval: rates per second, times in milliseconds."""

    busy: float
    queue: float
    reads: float
    writes: float
    read_ms: float
    read_p99_ms: float
    write_ms: float
    write_p99_ms: float


@dataclass(frozen=True, slots=True)
class MemberLook:
    """A member; *role* is negative for a spare. *work* is None if it does not answer requests."""

    role: int
    state: str
    path: str
    work: Work | None
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """What the commands call it: its role, or the path of a spare."""
        return str(self.role) if self.role >= 0 else self.path


@dataclass(frozen=True, slots=True)
class JobLook:
    """A background job; *share* is in percent."""

    number: int
    kind: str
    paused: bool
    share: float
    amount: str
    error: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """What users did in the interval: per second, and latencies in milliseconds."""

    reads: float
    writes: float
    read_bytes: float
    write_bytes: float
    mean_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The array at one moment; *notes* are the lines that its owner should read."""

    name: str
    layout: str
    chunk_bytes: int
    state: str
    redundancy: str
    notes: tuple[str, ...]
    traffic: Traffic
    members: tuple[MemberLook, ...]
    jobs: tuple[JobLook, ...]


def snapshot(status: Document, stats: Document, chunk_map: Document) -> Snapshot:
    """Return the look that three answers give. Raises ControlError if one is not valid."""
    check_status(status)
    try:
        return _snapshot(status, stats, chunk_map)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise ControlError("the daemon sent an answer that is not valid") from None


def _snapshot(status: Document, stats: Document, chunk_map: Document) -> Snapshot:
    seconds = max(_number(stats["interval_seconds"]), 1e-9)
    works = {int(each["role"]): _work(each, seconds) for each in stats["members"]}
    parts = {int(each["role"]): _parts(each) for each in chunk_map["members"]}
    members = []
    for each in status["members"]:
        role = int(each["role"])
        path = str(each.get("path") or "(not here)")
        members.append(
            MemberLook(role, _word(each["state"]), path, works.get(role), parts.get(role, ()))
        )
    members.sort(key=lambda member: (member.role < 0, member.role))
    totals = stats["array"]
    latency = totals["latency_ms"]
    return Snapshot(
        name=_word(status["name"]),
        layout=_word(status["layout"]),
        chunk_bytes=int(_number(status["chunk_size"])),
        state=_word(status["state"]),
        redundancy=redundancy(status["redundancy_left"]),
        notes=_notes(status),
        traffic=Traffic(
            *(
                _number(totals[name]) / seconds
                for name in ("reads", "writes", "read_bytes", "write_bytes")
            ),
            *(_number(latency[name]) for name in ("mean", "p99")),
        ),
        members=tuple(members),
        jobs=tuple(_job(each) for each in status["jobs"]),
    )


def _number(value: Any) -> float:
    """Return *value* as a number of reasonable size. Raises ValueError, TypeError.

    It is not negative: an average over an interval without work may come out as -1e-17.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not abs(value) < NUMBER_MAX:  # nor is a NaN
        raise ValueError
    return max(0.0, float(value))


def _word(value: Any) -> str:
    return str(value)[:WORD_CHARS_MAX]


def _work(member: Document, seconds: float) -> Work:
    return Work(
        *(_number(member[name]) for name in ("utilisation", "queue_mean")),
        *(_number(member[name]) / seconds for name in ("reads", "writes")),
        *(
            _number(member[f"{word}_ms_{kind}"])
            for word in ("read", "write")
            for kind in ("mean", "p99")
        ),
    )


def _parts(member: Document) -> tuple[Part, ...]:
    rows = (member["written_percent"], member["lost_percent"], member["accesses_per_s"])
    if len(rows[0]) > PARTS_MAX:
        raise ValueError
    return tuple(
        Part(int(_number(written)), int(_number(lost)), _number(uses))
        for written, lost, uses in zip(*rows, strict=True)
    )


def _job(job: Document) -> JobLook:
    share = percent(_number(job["done"]), _number(job["total"]))
    error = str(job.get("error") or "")[:TEXT_CHARS_MAX]
    amount = job_amount({**job, "error": None}, Output())
    return JobLook(
        int(job["id"]), _word(job["kind"]), bool(job.get("paused")), share, amount, error
    )


def _notes(status: Document) -> tuple[str, ...]:
    notes = []
    if status.get("action"):
        notes.append(f"action: {status['action']}")
    tuner = status.get("tuner")
    if tuner:
        notes.append(
            f"tuner: {tuner['state']}: {tuner['why']}; {int(tuner['chunks_moved'])} chunks moved"
        )
    faults = [
        f"{each['member']}: {', '.join(map(str, each['faults']))}"
        for each in status.get("lab") or ()
        if each["faults"]
    ]
    if faults:
        notes.append(f"lab: {'; '.join(faults)}")
    notes += [f"warning: {warning}" for warning in status["warnings"]]
    return tuple(str(note)[:TEXT_CHARS_MAX] for note in notes)
