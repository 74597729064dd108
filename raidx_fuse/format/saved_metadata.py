"""Saved metadata: the configuration of an array in a file, for members that lost their superblocks.

    {"format": "raidx metadata", "version": 1, "saved_s": ..., "configuration": {...},
     "log_epoch": ..., "log_generation": ..., "pages": {kind: [[first, end], ...]},
     "members": [...], "checksum": ...}

The file has what a superblock has, and what tells later whether it still describes the members:

* *log_epoch*, a count of starts, and *log_generation*, one of changes of the head of the log: the
  members' own say whether the array was started since, or the members are older than the file;
* *pages*: which pages of the maps there were. They lie behind the superblocks and are not saved;
  where no member has one of them any more, what it says of the content is lost;
* *samples*: a few sums of content, by which a member without a superblock is recognised.

The superblocks are counted as well, so that restored ones never claim to be newer than they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raidx_fuse.documents import SavedMetadata
from raidx_fuse.errors import FormatError, OtherVersionError, Reason
from raidx_fuse.format.configuration.config import (
    ArrayConfig,
    config_to_dict,
    decode_config,
    encode_config,
)
from raidx_fuse.format.configuration.lost_chunks import KEY as LOST_CHUNKS
from raidx_fuse.format.configuration.names import brief
from raidx_fuse.format.configuration.saved_jobs import RENAMED
from raidx_fuse.format.configuration.volumes import TARGET
from raidx_fuse.format.regions import COUNTER_MAX, REGION_KINDS
from raidx_fuse.format.shapes import MIGRATED
from raidx_fuse.typed import fits, wrong_key

if TYPE_CHECKING:
    from raidx_fuse.documents import SavedMember as MemberDocument

FORMAT = "raidx metadata"
VERSION = 1
FILE_BYTES_MAX = 16 << 20
SAMPLE_BYTES = 4096
_CHECKSUM_BYTES = 16
_UNFINISHED = ("grow", "restripe", "reshape", "rebuild", "replace")

Samples = Mapping[int, int]
"""Byte offset on the member -> CRC-32C of the SAMPLE_BYTES there."""
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SavedMember:
    """What is known of one member; *sequence* and *base_events* None: it was absent."""

    uuid: str
    sequence: int | None = None
    base_events: int | None = None
    samples: Samples = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a file; *members* are those of *config*, in its order."""

    config: ArrayConfig
    members: tuple[SavedMember, ...]
    log_epoch: int
    log_generation: int
    pages: Mapping[str, Runs]
    saved_s: int = 0

    def member(self, uuid: str) -> SavedMember:
        return next(member for member in self.members if member.uuid == uuid)

    @property
    def base_events(self) -> int:
        """The lowest event counter that a member of this configuration may have."""
        known = [one.base_events for one in self.members if one.base_events is not None]
        return max(known, default=0)


def runs_of(numbers: Iterable[int]) -> Runs:
    """Return ascending *numbers* as runs (first, end).

    >>> runs_of([0, 1, 2, 7])
    ((0, 3), (7, 8))
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return tuple(runs)


def essence(config: ArrayConfig) -> str:
    """Return what of *config* an old copy of it must not lack, as a text to compare.

    Event counters, dates, positions of jobs, paths and what is for people only are left out.
    """
    params = {key: value for key, value in config.params.items() if key != MIGRATED}
    kinds = {key: None for key in config.jobs if key.partition(":")[0] in _UNFINISHED}
    lost = {LOST_CHUNKS: config.jobs[LOST_CHUNKS]} if LOST_CHUNKS in config.jobs else {}
    records = tuple(replace(record, path_hint="") for record in config.members)
    values = config_to_dict(
        replace(
            config,
            events=1,
            starts=0,
            clean=True,
            lineage=(),
            members=records,
            params=params,
            jobs=kinds | lost,
        )
    )
    if MIGRATED in config.params:
        values["growing"] = True
    for volume in (values.get("volumes") or {}).get("table", ()):
        if "move" in volume:
            volume["move"] = {
                key: volume["move"][key] for key in volume["move"].keys() - {"watermark", "first"}
            }
    return json.dumps(values, sort_keys=True)


def position_in(config: ArrayConfig) -> str | None:
    """Return what of *config* says how far a change has come, in words; None if nothing does.

    Such a position is worth nothing once the change went on.
    """
    if MIGRATED in config.params:
        return "a growth was under way"
    if RENAMED in config.jobs:
        return "its UUID was being changed"
    for volume in () if config.volumes is None else config.volumes.volumes:
        if volume.move is not None and volume.move.role == TARGET:
            return f"volume {volume.name} was moving here"
    return None


# -- the file --------------------------------------------------------------------------------------


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")


def checksum_of(document: Mapping[str, Any]) -> str:
    """Return the checksum of all keys of *document* but its own."""
    values = {key: value for key, value in document.items() if key != "checksum"}
    return hashlib.blake2b(_canonical(values), digest_size=_CHECKSUM_BYTES).hexdigest()


def to_document(saved: Saved) -> SavedMetadata:
    """Return *saved* as JSON values."""
    members: list[MemberDocument] = []
    for record in saved.config.members:
        one = saved.member(record.member_uuid)
        samples = {str(offset): f"{crc:08x}" for offset, crc in sorted(one.samples.items())}
        members.append(
            {
                "uuid": record.member_uuid,
                "role": record.role,
                "state": record.state,
                "size": record.size_bytes,
                "path": record.path_hint,
                "sequence": one.sequence,
                "base_events": one.base_events,
                "samples": samples,
            }
        )
    document: SavedMetadata = {
        "format": FORMAT,
        "version": VERSION,
        "saved_s": saved.saved_s,
        "configuration": config_to_dict(saved.config),
        "log_epoch": saved.log_epoch,
        "log_generation": saved.log_generation,
        "pages": {kind: [list(run) for run in runs] for kind, runs in saved.pages.items()},
        "members": members,
        "checksum": "",
    }
    document["checksum"] = checksum_of(document)
    return document


def to_text(document: SavedMetadata) -> bytes:
    """Return *document* as the bytes of a file."""
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii") + b"\n"


def is_one(content: bytes) -> bool:
    """Return whether *content* is a file of saved metadata, damaged or not."""
    return content.startswith(b"{") and f'"format": "{FORMAT}"'.encode() in content


def from_bytes(content: bytes) -> Saved:
    """Return what the file with *content* has.

    Raises OtherVersionError for a file that is intact and not known here, FormatError for any
    other content.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError("it is no file of raidx save-metadata, or damaged", reason=Reason.DAMAGED)
    try:
        found = checksum_of(document)
    except (ValueError, TypeError, RecursionError):
        found = ""
    if document.get("checksum") != found:
        raise FormatError("its checksum does not hold: it was changed or damaged")
    version = document.get("version")
    if version != VERSION:
        raise OtherVersionError(f"its version is {brief(version)}, this raidx knows {VERSION}")
    unknown = sorted(document.keys() - SavedMetadata.__annotations__.keys())
    if unknown:
        raise OtherVersionError(f"it has the field {brief(unknown[0])}, unknown to this raidx")
    if (key := wrong_key(document, SavedMetadata)) is not None:
        raise FormatError(f"its {key} cannot be read")
    try:
        return _decoded(document)
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"it cannot be read ({brief(error)})") from error


def _decoded(document: dict[str, Any]) -> Saved:
    config = decode_config(_canonical(document["configuration"]))
    encode_config(config)
    members = []
    for record, values in zip(config.members, document["members"], strict=True):
        if (values["uuid"], values["role"]) != (record.member_uuid, record.role):
            raise ValueError("its members are not those of its configuration")
        counts = values["sequence"], values["base_events"]
        if not all(count is None or 0 <= count <= COUNTER_MAX for count in counts):
            raise ValueError("a counter is out of range")
        samples = {int(at): int(crc, 16) for at, crc in values["samples"].items()}
        if not all(0 <= at <= COUNTER_MAX for at in samples):
            raise ValueError("a sample is out of range")
        members.append(SavedMember(record.member_uuid, *counts, samples))
    pages = {}
    for kind, runs in document["pages"].items():
        if kind not in REGION_KINDS or not fits(runs, list[tuple[int, int]]):
            raise ValueError("its pages are not of known kinds")
        room = config.regions.pages(kind).pages
        if not all(0 <= first < end <= room for first, end in runs):
            raise ValueError("a page is out of range")
        pages[kind] = tuple((first, end) for first, end in runs)
    counts = document["log_epoch"], document["log_generation"]
    if not all(0 <= count <= COUNTER_MAX for count in counts):
        raise ValueError("a counter is out of range")
    return Saved(config, tuple(members), *counts, pages, int(document["saved_s"]))
