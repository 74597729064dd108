"""Check the saved progress of unfinished jobs in the superblocks before a job continues.

A job, or a field of one, that is not known here is refused: a program that ignores it may undo what
it stands for. What an unmount and the next mount do with each kind of job: jobs/job.py.

The job of a change of the UUID (array/new_identity.py) says what the array was made from. It is
dropped by the last step of the change, so an array that is mounted has it only if that step was
cut:

    "renamed": {"array": UUID, "events": N, "members": {old UUID: new UUID, ...}}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

from raidx_fuse.errors import AssemblyError, FormatError, Reason
from raidx_fuse.format.configuration import sums
from raidx_fuse.format.configuration.codec import Stored, require_known
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.names import is_uuid

REBUILD = "rebuild:"
REPLACE = "replace:"
RENAMED = "renamed"
RETIRED = frozenset({"plan"})
"""What earlier programs kept among the jobs: accepted, used for nothing, dropped by a start."""
_FIELDS: dict[str, frozenset[str] | None] = {
    REBUILD: frozenset({"next_stripe", "changed"}),
    REPLACE: frozenset({"member_uuid", "next_stripe", "starts"}),
    "grow": frozenset({"back", "remove"}),
    "restripe": frozenset({"back"}),
    "reshape": frozenset({"kind", "role"}),
    "tuner": frozenset({"since_scrub_s"}),
    "away": frozenset({"left", "stripes", "regions", "starts", "shape"}),
    RENAMED: frozenset({"array", "events", "members"}),
    sums.KEY: frozenset(one.name for one in fields(sums.StoredSums)),
    "bad_chunks": frozenset({"count", "steps", "pages", "shift", "ranges"}),
    **dict.fromkeys(("health", "pool", *RETIRED)),  # for people, and where nothing is lost without
}
"""The fields of each job; None: whatever there is, a reader ignores what it does not know."""
_MOVES = {"grow": "migrated", "restripe": "restripe", "reshape": "chunk_counts"}
"""Jobs that move content, and the parameter without which the layout has nothing for them."""


def check_progress(config: ArrayConfig, stripes: int) -> None:
    """Raise FormatError if the jobs of *config* are impossible for an array of *stripes*.

    It is an OtherVersionError if they have a name that is not known here. The position of a rebuild
    whose member has failed meanwhile is not used, and says nothing.
    """
    for key, values in config.jobs.items():
        kind = "".join(key.partition(":")[:2])  # of "rebuild:2", that is "rebuild:"
        require_known(f"array {config.name!r} has the unfinished job", _FIELDS, (kind,))
        known = _FIELDS[kind]
        if known is not None and isinstance(values, dict):
            what = f"array {config.name!r}: its unfinished {kind.rstrip(':')} has the field"
            require_known(what, known, values)
        if not _is_possible(config, key, values, stripes):
            raise FormatError(f"array {config.name!r}: its unfinished {key[:40]!r} is impossible")


def without_retired(config: ArrayConfig) -> ArrayConfig:
    """Return *config* without what only earlier programs kept among its jobs."""
    jobs = {key: value for key, value in config.jobs.items() if key not in RETIRED}
    return config if jobs.keys() == config.jobs.keys() else replace(config, jobs=jobs)


def _is_possible(config: ArrayConfig, key: str, values: object, stripes: int) -> bool:
    if key.startswith(REBUILD):
        rebuilt = {f"{REBUILD}{r.role}" for r in config.members if r.state == "rebuilding"}
        return key not in rebuilt or _is_count(_of(values, "next_stripe"), stripes)
    if key.startswith(REPLACE):
        role, uuid = key.removeprefix(REPLACE), _of(values, "member_uuid")
        is_role = role.isdecimal() and len(role) < 6  # one that is gone by now: ignored
        is_copied = _is_count(_of(values, "next_stripe"), stripes)
        return is_role and isinstance(uuid, str) and is_copied
    match key:
        case "grow" | "restripe":
            return isinstance(_of(values, "back", False), bool) and _MOVES[key] in config.params
        case "reshape":
            kind, leaving = _of(values, "kind"), _of(values, "role")
            if _MOVES[key] not in config.params:
                return False
            return kind == "grow" or (kind == "evacuate" and _is_count(leaving, config.width - 1))
        case "tuner":
            since_s = _of(values, "since_scrub_s", 0.0)
            return isinstance(since_s, int | float) and type(since_s) is not bool and since_s >= 0
        case sums.KEY:
            return sums.are_possible(config)
    return True


def _of(values: object, name: str, default: object = None) -> object:
    return values.get(name, default) if isinstance(values, dict) else None


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and type(value) is int and 0 <= value <= most


@dataclass(frozen=True, slots=True)
class Renamed:
    """The former *array_uuid*, event counter *events*, and the *members*, old UUID to new."""

    array_uuid: Annotated[str, Stored(key="array")]
    events: int
    members: dict[str, str]


def renamed(config: ArrayConfig) -> Renamed | None:
    """Return what *config* was made from, None if that does not matter any more."""
    made = config.job(RENAMED, Renamed)
    return made if made is not None and is_uuid(made.array_uuid) else None


def refuse_half_renamed(configs: Sequence[ArrayConfig]) -> None:
    """Raise AssemblyError if one of *configs* was made from another one, which is still there."""
    uuids = {config.array_uuid for config in configs}
    for config in configs:
        made = renamed(config)
        if made is not None and made.array_uuid in uuids:
            raise AssemblyError(
                f"the UUID of array {config.name!r} was being changed, and some of these members "
                "have the old one still",
                action="complete it: raidx rename --new-uuid with all members",
                reason=Reason.MEMBERS_MISSING,
            )
