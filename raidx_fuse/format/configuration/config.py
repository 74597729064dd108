"""The configuration of an array, `ArrayConfig`: the body of every superblock.

It is an immutable value and is stored as canonical JSON: ASCII, keys sorted, no spaces. So equal
configurations have equal bytes.

The event counter increases with every change that reaches a superblock. A configuration excludes a
member by naming it failed or missing, or by not naming it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeVar

from raidx_fuse.errors import FormatError, OtherVersionError
from raidx_fuse.format.configuration.codec import Stored, decode, encode
from raidx_fuse.format.configuration.features import (
    ENDS,
    LOG_MOVED,
    parted,
    with_moved_log,
    with_needs,
    without_moved_log,
)
from raidx_fuse.format.configuration.names import (
    brief,
    cleaned,
    is_clean,
    is_uuid,
    name_problem,
)
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.format.regions import (
    COUNTER_MAX,
    Regions,
    end_offset,
    member_bytes_for,
    usable_bytes,
)
from raidx_fuse.layouts.numbers import Offset, Role
from raidx_fuse.layouts.registry import WIDTH_MAX

DEPTH_MAX = 12  # of nested JSON values
ACTIVE, FAILED, MISSING, SPARE, REBUILDING = "active", "failed", "missing", "spare", "rebuilding"
ROLE_STATES = frozenset({ACTIVE, FAILED, MISSING, REBUILDING})
NO_ROLE_STATES = frozenset({SPARE, FAILED, MISSING})
NO_ROLE = Role(-1)

LINEAGE_ENTRY_BYTES = 8
CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = 1 << 20
CREATED_S_MAX = 253_402_300_799  # the last second of the year 9999
ROLES_MAX = WIDTH_MAX + 1  # one more during a growth with a surrogate
NAME_SHOWN = 80  # characters of an invalid name that an error shows

_HISTORY = "history"  # always []: 79fb2b4 reads no configuration without it, and has nothing in it
T = TypeVar("T")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)

_encoded: tuple[ArrayConfig, bytes] | None = None  # the last one: each round encodes it again


def impossible_number(value: object) -> int | float | None:
    """Return a number in JSON *value* that exceeds COUNTER_MAX, None if there is none."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((n for n in map(impossible_number, value) if n is not None), None)
    if isinstance(value, int | float) and not -COUNTER_MAX <= value <= COUNTER_MAX:
        return value
    return None


def is_storable(values: object) -> bool:
    """Return whether JSON returns *values* as they are, in at most DEPTH_MAX levels."""
    level: list[Any] = [values]
    for _ in range(DEPTH_MAX):
        inner: list[Any] = []
        for part in level:
            if type(part) is dict and not all(type(key) is str for key in part):
                return False
            inner += part.values() if type(part) is dict else part
        if any(type(value) is tuple for value in inner):
            return False
        level = [value for value in inner if type(value) in (dict, list)]
    return not level


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The record of one member in the configuration.

    * *role*: 0..width-1, or -1 for a spare.
    * *member_uuid*: a disk that joins again after it was replaced gets a new one.
    * *state*: one of active, failed, missing, spare, rebuilding.
    * *size_bytes*: its size when it joined; *path_hint*: its last known path, for messages only.
    * *reads_zero*: whether unwritten data reads as zero there.
    """

    UNKNOWN: ClassVar[str] = "the record of a member has the field"

    role: Role
    member_uuid: str
    state: str
    size_bytes: int
    path_hint: Annotated[str, cleaned] = ""
    reads_zero: bool = False


@dataclass(frozen=True, slots=True)
class ArrayConfig:
    """An array: its members, layout and state at event counter *events*.

    * *size_bytes*: the limit on the image that the user set, or None; *created_s*: Unix seconds.
    * *jobs*: progress of jobs that survives a remount ("rebuild:2" -> {"next_stripe": 123}).
    * *params*: belong to the layout; *needs*: the features of the format that earlier programs
      cannot read (features.py), ascending.
    * *starts*: counts the starts for writing; *lineage*: an entry for each exclusion of members.
      From both, assemble.py decides whether one configuration extends another or both diverged.
    * *volumes*: the volume table (volumes.py); None: one volume, the whole image.
    """

    UNKNOWN: ClassVar[str] = "the configuration has the field"

    array_uuid: str
    name: Annotated[str, cleaned]
    layout: str
    chunk_bytes: int
    width: int
    members: tuple[MemberRecord, ...]
    regions: Regions
    events: int = 1
    clean: bool = True
    params: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    lineage: tuple[str, ...] = ()
    size_bytes: int | None = None
    created_s: int = 0
    volumes: Annotated[VolumeTable | None, Stored(optional=True)] = None
    needs: Annotated[tuple[str, ...], Stored(key="")] = ()  # among the parameters there

    # -- questions -------------------------------------------------------------------------------

    def record(self, role: Role) -> MemberRecord:
        return next(r for r in self.members if r.role == role)

    def find(self, member_uuid: str) -> MemberRecord | None:
        """Return the record of *member_uuid*, or None if it does not belong to the array."""
        return next((r for r in self.members if r.member_uuid == member_uuid), None)

    def excludes(self, member_uuid: str) -> bool:
        """Return whether *member_uuid* is excluded: failed, missing or unknown."""
        record = self.find(member_uuid)
        return record is None or record.state in (FAILED, MISSING)

    def reached(self) -> frozenset[str]:
        """Return the UUIDs of the members that a round writes: all that are not excluded."""
        return frozenset(
            r.member_uuid for r in self.members if r.state in (ACTIVE, REBUILDING, SPARE)
        )

    def extends(self, older: ArrayConfig) -> bool:
        """Return whether this configuration can be a successor of *older*.

        Its lineage must begin with that of *older*, and it must have at least as many starts.
        """
        known = self.lineage[: len(older.lineage)]
        return known == older.lineage and self.starts >= older.starts

    def roles(self) -> list[Role]:
        """Return the roles that have a member, present or not, ascending."""
        return sorted(r.role for r in self.members if r.role >= 0)

    @property
    def has_ends(self) -> bool:
        """Whether its members have superblocks at their ends, too, if they are large enough."""
        return ENDS in self.needs

    def usable_bytes(self, member_bytes: int) -> int:
        """Return how much of a member of *member_bytes* is not behind superblocks at its end."""
        return usable_bytes(member_bytes) if self.has_ends else member_bytes

    def member_bytes_for(self, needed_bytes: int) -> int:
        """Return the least size of a member that has *needed_bytes* of `usable_bytes`."""
        return member_bytes_for(needed_bytes) if self.has_ends else needed_bytes

    def end_of(self, record: MemberRecord) -> Offset | None:
        """Return where the superblocks at the end of the member of *record* begin, or None.

        The size counts that the member had when it joined. A place inside its regions never counts.
        """
        end = end_offset(record.size_bytes) if self.has_ends else None
        return None if end is None or end < self._data_end(record.role) else end

    def _data_end(self, role: Role) -> int:
        if role == NO_ROLE:
            return 0
        counts = self.params.get("chunk_counts", ())
        if role < len(counts):
            return self.regions.data.offset + int(counts[role]) * self.chunk_bytes
        return self.regions.end

    def vacant_roles(self) -> frozenset[Role]:
        """Return the roles without a member, because it left a raidx layout: 0 chunks."""
        counts = self.params.get("chunk_counts")
        listed = counts if isinstance(counts, list | tuple) else ()
        return frozenset(Role(role) for role, count in enumerate(listed) if count == 0)

    def roles_in(self, *states: str) -> frozenset[Role]:
        return frozenset(r.role for r in self.members if r.role >= 0 and r.state in states)

    def job(self, key: str, kind: type[T]) -> T | None:
        """Return the job *key*; None if there is none, or something that is not of *kind*."""
        try:
            return decode(kind, self.jobs.get(key))
        except (ValueError, KeyError):
            return None

    def problem(self) -> str | None:
        """Return in words why this configuration is impossible, or None."""
        if name_problem(self.name):
            return f"{self.name[:NAME_SHOWN]!r} cannot be an array's name"
        for text in (self.array_uuid, *(r.member_uuid for r in self.members)):
            if not is_uuid(text):
                return f"{text!r} is not a UUID"
        if len({r.member_uuid for r in self.members}) != len(self.members):
            return "two members have the same UUID"
        size = self.chunk_bytes
        if size & (size - 1) or not CHUNK_BYTES_MIN <= size <= CHUNK_BYTES_MAX:
            return f"chunk size {size} is not a power of two from 4 KiB to 1 MiB"
        if not 1 <= self.width <= ROLES_MAX:
            return f"{self.width} is no number of members: 1 to {ROLES_MAX}"
        counts = self.params.get("chunk_counts")
        known = counts is None or (isinstance(counts, list | tuple) and len(counts) == self.width)
        if not known:
            return "chunk_counts must be a list of numbers of chunks, one for each role"
        held = sorted([*(r.role for r in self.members if r.role >= 0), *self.vacant_roles()])
        if held != list(range(self.width)):
            return f"the roles are not 0 to {self.width - 1}, each once"
        for record in self.members:
            if record.role < NO_ROLE or not 0 <= record.size_bytes <= COUNTER_MAX:
                return f"role {record.role} of {record.size_bytes} bytes is no member"
            allowed = NO_ROLE_STATES if record.role == NO_ROLE else ROLE_STATES
            if record.state not in allowed:
                return f"role {record.role} cannot be {record.state!r}"
            if not is_clean(record.path_hint):
                return f"the path hint of role {record.role} would not be read as it is written"
        if not 1 <= self.events <= COUNTER_MAX or not 0 <= self.starts <= COUNTER_MAX:
            return f"events must be 1 to {COUNTER_MAX}, starts 0 to {COUNTER_MAX}"
        if self.size_bytes is not None and not 1 <= self.size_bytes <= COUNTER_MAX:
            return f"image size {self.size_bytes} is not possible"
        if not 0 <= self.created_s <= CREATED_S_MAX:
            return f"a creation {self.created_s} s after 1970 is not possible"
        for name in ("params", "jobs"):
            if (number := impossible_number(getattr(self, name))) is not None:
                return f"{name} has the number {number}"
        if self.volumes is not None and (problem := self.volumes.problem()):
            return f"the volume table is not possible: {problem}"
        if problem := self.regions.problem() or self._data_problem():
            return problem
        if (LOG_MOVED in self.needs) != self.regions.has_moved_log:
            return "its log does not lie where its features say"
        return None

    def _data_problem(self) -> str | None:
        if self.regions.data.length < self.chunk_bytes:
            return "the data region has no room for a chunk"
        counts = self.params.get("chunk_counts", ())
        for record in self.members:
            count = counts[record.role] if 0 <= record.role < len(counts) else 0
            if not isinstance(count, int) or not 0 <= count <= COUNTER_MAX // self.chunk_bytes:
                return f"role {record.role} cannot have {count} chunks"
        return None

    # -- successors ------------------------------------------------------------------------------

    def bumped(self) -> ArrayConfig:
        """Return this configuration with the event counter increased by one."""
        return replace(self, events=self.events + 1)

    def with_job(self, key: str, values: Any) -> ArrayConfig:
        return replace(self, jobs={**self.jobs, key: values})

    def without_job(self, key: str) -> ArrayConfig:
        """Return this configuration without the job *key*; itself if it has none."""
        if key not in self.jobs:
            return self
        return replace(self, jobs={k: v for k, v in self.jobs.items() if k != key})

    def without_members(self, *uuids: str) -> ArrayConfig:
        return replace(self, members=tuple(r for r in self.members if r.member_uuid not in uuids))

    def with_record(self, record: MemberRecord) -> ArrayConfig:
        """Return this configuration with *record* in its role, or added as a spare.

        A member that held the role before is removed.
        """
        others = tuple(
            r
            for r in self.members
            if r.member_uuid != record.member_uuid
            and (record.role == NO_ROLE or r.role != record.role)
        )
        members = sorted((*others, record), key=lambda r: (r.role < 0, r.role))
        return replace(self, members=tuple(members))

    def started_with(self, present: Collection[str]) -> ArrayConfig:
        """Return the configuration of an array that starts for writing with *present* (UUIDs).

        Absent members become missing. It must be written before anything is acknowledged.
        """
        members = []
        for record in self.members:
            here = record.member_uuid in present
            if record.role == NO_ROLE and record.state in (SPARE, MISSING):
                record = replace(record, state=SPARE if here else MISSING)
            elif not here and record.state != FAILED:
                record = replace(record, state=MISSING)
            members.append(record)
        started = replace(self, members=tuple(members), starts=self.starts + 1, clean=False)
        return started.parting_from(self)

    def parting_from(self, older: ArrayConfig) -> ArrayConfig:
        """Return this configuration as the successor of *older*, with a lineage that continues it.

        If this configuration excludes a member that *older* reached, the lineage gets an entry that
        no other successor of *older* can have (a hash of this configuration).
        """
        successor = self if self.lineage == older.lineage else replace(self, lineage=older.lineage)
        if older.reached() <= self.reached():
            return successor
        text = json.dumps(config_to_dict(successor), sort_keys=True).encode()
        entry = hashlib.blake2b(text, digest_size=LINEAGE_ENTRY_BYTES).hexdigest()
        return replace(successor, lineage=(*older.lineage, entry))


def uuid_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def uuid_text(content: bytes) -> str:
    """Return the canonical form of the UUID of 16 bytes."""
    text = content.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


# -- canonical JSON ------------------------------------------------------------------------------


def config_to_dict(config: ArrayConfig) -> dict[str, Any]:
    values = {**encode(config), "params": with_needs(config.params, config.needs), _HISTORY: []}
    if config.regions.has_moved_log:
        values["regions"] = with_moved_log(values["regions"])
    return values


def encode_config(config: ArrayConfig) -> bytes:
    """Return *config* as canonical JSON. Raises FormatError unless it would be read as it is.

    The text of the last *config* is kept: like those of `decode_config` it must not be changed.
    """
    global _encoded
    if _encoded is None or _encoded[0] is not config:
        _encoded = config, _text_of(config)
    return _encoded[1]


def _text_of(config: ArrayConfig) -> bytes:
    error: Exception | None = None
    try:
        values = config_to_dict(config)
        if not is_storable(values):
            raise ValueError("it would not be read as it is written")
        text = _ENCODER.encode(values).encode("ascii")
    except (ValueError, TypeError, RecursionError) as caught:
        error = caught
    problem = config.problem()
    if problem is not None:
        raise FormatError(f"the configuration would be impossible: {brief(problem)}")
    if error is not None:
        raise FormatError(f"the configuration cannot be written ({brief(error)})") from error
    return text


@lru_cache(maxsize=32)  # every member has the same text, and every round reads all members
def decode_config(text: bytes) -> ArrayConfig:
    """Return the configuration in *text*. It is cached and shared, so it must not be changed.

    Raises OtherVersionError for fields that are not known here, FormatError if *text* is not a
    valid configuration.
    """
    try:
        values = json.loads(text.decode("ascii"), parse_constant=_refuse_constant)
        if not isinstance(values, dict) or not is_storable(values):
            raise ValueError("no object, or values too deep in values")
        if values.pop(_HISTORY, []) != []:
            raise OtherVersionError(f"the configuration has a {_HISTORY}, unknown to this raidx")
        needs: tuple[str, ...] = ()
        if isinstance(values.get("params"), dict):
            values["params"], needs = parted(values["params"])
        if LOG_MOVED in needs and isinstance(values.get("regions"), dict):
            values["regions"] = without_moved_log(values["regions"])
        config = replace(decode(ArrayConfig, values), needs=needs)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"the configuration is not readable ({brief(error)})") from error
    problem = config.problem()
    if problem is not None:
        raise FormatError(f"the configuration is impossible: {brief(problem)}")
    return config


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
