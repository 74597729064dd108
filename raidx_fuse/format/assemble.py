"""Assembly: which of the given members form an array, decided by their superblocks.

One configuration is valid, W (`ruling_config`). It decides about each member:

  * W does not name the member, names it failed, or names it missing in a role: it is stale and is
    not used.
  * W names it active, but its own event counter is older: the writer crashed during the round of W.
    Using it is safe: if anything had been acknowledged without this member, W or a round before it
    would have excluded it. But if its counter is below the `base_events` of W, the lowest counter
    when that round began, it is an old copy, restored from a backup: stale.
  * A spare holds no data, so its counter does not matter, unless it is about to replace a member
    and has copies (*behind*). A missing spare that is given becomes a spare again.

If members hold several configurations, the newest one is valid, or none (a split brain).

A *round* is one call of `write_config`. These rules hold while an array runs:

* The engine acknowledges nothing that depends on a configuration before the round of the
  configuration has reached every member that has a role in it and is not excluded.
* A member that missed a round is excluded (failed) by the next one.
* A start excludes absent members (missing) and increments `starts`.
* Whenever a member that the last round reached is excluded, `lineage` gets a new, unique entry.

So for a member with a role, `starts` and `lineage` only grow. W *extends* S if the lineage of S is
a prefix of that of W and W has at least as many starts. Which configuration is valid, W or S?

 1. W extends S: W is valid. Every acknowledged round of S reached the members from which W
    continued, and W names the members that it excluded. If lineage and starts are equal, the
    higher event counter wins: the rounds followed each other, and a crash interrupted the last one.
 2. Neither extends the other: they diverged. If S counts on a member with a role that holds W, then
    no round of S reached all of its members: otherwise the configuration of that member would
    extend S. So a crash interrupted S, nothing was acknowledged on it, and W is valid. (Event
    counters do not help here: a round that reached a single member may have the higher one.)
 3. They diverged, neither counts on a holder of the other, and each counts on a member that holds
    neither it nor an extension: no round of either reached all of its members, so nothing was
    acknowledged on either, and each is right. For example, a power cut interrupts the round that
    lets a new disk take a role, and another one the next start, without the disk that knew. The one
    with more members that it can use is valid.
 4. Else, if they diverged (a split brain), both may have acknowledged writes, as two halves of a
    mirror that were mounted one at a time. No choice is right, so the assembly is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raidx_fuse.errors import (
    AssemblyError,
    MemberError,
    Reason,
    UsageError,
)
from raidx_fuse.format.both_ends import Copies, copies_of
from raidx_fuse.format.configuration.config import (
    ACTIVE,
    FAILED,
    MISSING,
    NO_ROLE,
    REBUILDING,
    SPARE,
    ArrayConfig,
    MemberRecord,
)
from raidx_fuse.format.configuration.names import brief
from raidx_fuse.format.configuration.saved_jobs import refuse_half_renamed
from raidx_fuse.format.configuration.sums import are_on
from raidx_fuse.format.pages import hint_behind, load_pages
from raidx_fuse.format.regions import SUPERBLOCK_BYTES
from raidx_fuse.format.shapes import RESTRIPE, can_lose, shapes_of
from raidx_fuse.format.signature import describe, find_signatures
from raidx_fuse.format.superblock import Superblock
from raidx_fuse.format.table_page import bytes_needed_by
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.plugged import require_origin
from raidx_fuse.layouts.registry import LAYOUTS, LayoutError, code_for
from raidx_fuse.members.base import Member


@dataclass(frozen=True, slots=True)
class Given:
    """A member with its newest superblock; *from_end*: it has none in its front any more."""

    member: Member
    superblock: Superblock
    from_end: bool = False

    @property
    def uuid(self) -> str:
        return self.superblock.member_uuid


@dataclass(frozen=True, slots=True)
class _Side:
    """All given members that hold one and the same configuration."""

    config: ArrayConfig
    holders: tuple[Given, ...]

    def diverged(self, other: _Side) -> bool:
        """Return whether neither side extends the other."""
        return not self.config.extends(other.config) and not other.config.extends(self.config)

    def is_void_beside(self, other: _Side) -> bool:
        """Return whether this side diverged from *other* and counts on a member that holds *other*.

        Then this side is not valid (rule 2).
        """
        counted_on = self._counted_on()
        return self.diverged(other) and any(g.uuid in counted_on for g in other.holders)

    def _counted_on(self) -> set[str]:
        return {r.member_uuid for r in self.config.members if r.state in (ACTIVE, REBUILDING)}

    def usable(self, given: Sequence[Given]) -> list[Given]:
        """Return those of *given* that this side counts on, and that hold it or an older one."""
        counted_on = self._counted_on()
        return [
            one
            for one in given
            if one.uuid in counted_on and self.config.extends(one.superblock.config)
        ]

    def is_interrupted(self, given: Sequence[Given]) -> bool:
        """Return whether a member that it counts on missed its rounds; no old copy of a member."""
        base_events = max(one.superblock.base_events for one in self.holders)
        return any(
            not one.superblock.config.extends(self.config) and one.superblock.events >= base_events
            for one in self.usable(given)
        )

    def rank(self) -> tuple[int, int, int]:
        """Return a key that orders sides of which one extends the other."""
        return len(self.config.lineage), self.config.starts, self.config.events


def paths_of(given: Sequence[Given]) -> str:
    return ", ".join(sorted(one.member.path for one in given))


def ruling_config(given: Sequence[Given]) -> ArrayConfig:
    """Return the valid configuration. Raises AssemblyError if there is none (a split brain)."""
    sides = _sides(given)
    valid = [side for side in sides if not any(side.is_void_beside(other) for other in sides)]
    diverged = [side for side in valid if any(side.diverged(other) for other in valid)]
    if diverged:
        if not all(side.is_interrupted(given) for side in diverged):
            raise _split(valid)
        valid = [max(diverged, key=lambda side: (len(side.usable(given)), side.rank()))]
    if not valid:
        raise _split(sides)
    best = max(side.rank() for side in valid)
    rulers = [side for side in valid if side.rank() == best]
    if len(rulers) > 1:
        raise AssemblyError(
            f"{' and '.join(paths_of(side.holders) for side in rulers)} contradict each other at "
            f"event {rulers[0].config.events}",
            action="start with one side alone, then replace the other's members",
            reason=Reason.SPLIT,
        )
    return rulers[0].config


def _sides(given: Sequence[Given]) -> list[_Side]:
    """Group the members by the configuration that they hold."""
    sides: list[_Side] = []
    for one in given:
        config = one.superblock.config
        for index, side in enumerate(sides):
            if side.config == config:
                sides[index] = _Side(config, (*side.holders, one))
                break
        else:
            sides.append(_Side(config, (one,)))
    return sides


def _split(sides: Sequence[_Side]) -> AssemblyError:
    ways: dict[tuple[str, ...], list[Given]] = {}
    for side in sides:
        if not any(o is not side and o.config.extends(side.config) for o in sides):
            ways.setdefault(side.config.lineage, []).extend(side.holders)
    named = " and ".join(f"[{paths_of(holders)}]" for holders in ways.values())
    return AssemblyError(
        f"array {sides[0].config.name!r} was split: {named} each ran without the other, and "
        "both may hold writes that the other lacks",
        action="start with one side alone, then replace the other's members",
        reason=Reason.SPLIT,
    )


@dataclass(frozen=True, slots=True)
class Assembly:
    """The result of an assembly.

    * *config*: the valid configuration, as found.
    * *by_role*: the members to use; *spares*: hot spares by member UUID.
    * *stale*: members that are not used, with the reason; *missing_roles*: ascending.
    * *warnings*: one line for everything that is not in order.
    * *base_events*: the lowest event counter that a member in use may have.
    * *behind*: the UUIDs of spares whose event counter is not that of *config*.
    * *logs_lost*: the roles of members that lost their front, with the log that it had.
    * *absent*: by UUID of a member that was not given, which of the warnings is about that.
    """

    config: ArrayConfig
    by_role: dict[Role, Member]
    spares: dict[str, Member]
    stale: list[tuple[Member, str]]
    missing_roles: list[Role]
    warnings: list[str]
    base_events: int = 0
    behind: frozenset[str] = frozenset()
    logs_lost: frozenset[Role] = frozenset()
    absent: dict[str, str] = field(default_factory=dict)


def tolerates(config: ArrayConfig, lost: frozenset[Role]) -> bool:
    """Return whether all data of the array of *config* can be read without the roles *lost*.

    Raises AssemblyError for an unknown or impossible layout.
    """
    try:
        if RESTRIPE not in config.params:
            require_origin(LAYOUTS, config.layout, config.width, config.params)
        else:
            shapes_of(config)
        info = LAYOUTS.get(config.layout)
    except LayoutError as error:
        raise AssemblyError(f"array {config.name!r} cannot be used: {brief(error)}") from error
    if info is None:
        raise AssemblyError(
            f"array {config.name!r} has the layout {brief(config.layout)!r}, unknown to this raidx",
            action="use the raidx that made it",
            reason=Reason.OTHER_VERSION,
        )
    try:
        if info.bundled:
            return len(lost) <= code_for(config.layout, config.width, config.params).tolerance
        return can_lose(config, lost)
    except LayoutError as error:
        raise AssemblyError(
            f"array {config.name!r} has an impossible layout: {brief(error)}"
        ) from error


async def assemble(members: Sequence[Member]) -> Assembly:
    """Return the array that *members*, in any order, form. Writes nothing.

    A file or device that is no member, is truncated, cannot be read or carries a signature of
    another format, is left out as if it had not been given, and named in a warning. Raises
    UsageError without members, OtherVersionError for a member whose superblock this program does
    not know, and AssemblyError with one line that names the members concerned: of another array,
    the same member twice, a split brain, or too many members missing.
    """
    if not members:
        raise UsageError("no members given", action="name the array's disks")
    given, left_out, warnings = await _look_at(members)
    if not given:
        raise AssemblyError("; ".join(left_out), reason=Reason.NOT_A_MEMBER)
    _refuse_foreign(given)
    _refuse_duplicates(given)
    config = ruling_config(given)
    base = max(g.superblock.base_events for g in given if g.superblock.config == config)
    problems = [_why_truncated(one, config) for one in given]
    given = [one for one, problem in zip(given, problems, strict=True) if problem is None]
    left_out += [problem for problem in problems if problem is not None]
    warnings += [f"not used: {text}" for text in left_out]
    if not given:
        raise AssemblyError("; ".join(left_out), reason=Reason.NOT_A_MEMBER)
    assembly = _judge(given, config, base, warnings)
    _refuse_failed(assembly, left_out)
    if not any(one.from_end for one in given):
        return assembly
    warnings += await _maps_lost(given, assembly)
    if config.clean:
        return assembly
    return replace(assembly, logs_lost=await _logs_lost(given, assembly))


async def _maps_lost(given: Sequence[Given], assembly: Assembly) -> list[str]:
    """Return in words which members without a front lack pages of the written map that others have.

    Its place is between the superblocks and the data: what went on to there may have gone on.
    """
    config, texts = assembly.config, list[str]()
    without_front = [one.member for one in given if one.from_end]
    region = config.regions.pages("written")
    with_front = [one for one in assembly.by_role.values() if one not in without_front]
    known = set[int]()
    for member in with_front[:1]:  # all have the same
        known.update(
            (await load_pages(member, region, config.array_uuid, payloads=False)).present()
        )
    for role, member in assembly.by_role.items():
        if member in without_front:
            own = await load_pages(member, region, config.array_uuid, payloads=False)
            if known - set(own.present()):
                texts.append(f"{member.path}: {_went_on(assembly, role, member.path)}")
    return texts


def _went_on(assembly: Assembly, role: Role, path: str) -> str:
    """Return in words that the data of a member may be overwritten, and what to do."""
    what = (
        "the map behind its front is gone as well: what overwrote it may have gone on into its data"
    )
    if are_on(assembly.config):
        return f"{what}; to have that healed by the checksums: raidx scrub --repair"
    if not tolerates(assembly.config, frozenset({*assembly.missing_roles, role})):
        return f"{what}, and the others cannot give that back"
    return (
        f"{what}, which reads do not notice; to have all of it rebuilt from the others, before "
        f"anything is written: unmount, raidx wipe {path} --lose-data, mount without it, "
        f"raidx replace-disk ARRAY {role} {path}; raidx scrub --repair would trust the data"
    )


async def _logs_lost(given: Sequence[Given], assembly: Assembly) -> frozenset[Role]:
    """Return the roles of members without a front, and without the head of their log behind it.

    What overwrote the superblocks went on at least to there. An empty log would be read instead.
    """
    config, lost = assembly.config, set[Role]()
    without_front = [one.member for one in given if one.from_end]
    for role, member in assembly.by_role.items():
        if member in without_front:
            head = await load_pages(member, config.regions.pages("journal"), config.array_uuid)
            lost.update([] if head.present() else [role])
    return frozenset(lost)


# -- what was given ------------------------------------------------------------------------------


async def _look_at(members: Sequence[Member]) -> tuple[list[Given], list[str], list[str]]:
    """Return the members with their superblocks, why others are left out, and warnings.

    A member that is intact and unknown here is refused: without it, members would count that are
    outdated by what it says.
    """
    given: list[Given] = []
    left_out: list[str] = []
    warnings: list[str] = []
    for member, copies in zip(members, await copies_of(members), strict=True):
        if not isinstance(copies, Copies):
            hint = "" if isinstance(copies, MemberError) else await hint_behind(member)
            left_out.append(f"{copies}{hint}")
        elif copies.superblock is None:
            left_out.append(await _why_not_a_member(member))
        elif copies.foreign:
            left_out.append(
                f"{member.path} carries {describe(copies.foreign)} now, made after it joined the "
                "array; if that is not needed, take it back with --accept-member"
            )
        elif copies.contradict:
            left_out.append(
                f"{member.path}: its superblocks in front and at its end are of different members: "
                "a copy of another disk was written over one of them"
            )
        else:
            given.append(Given(member, copies.superblock, copies.from_end))
            warnings += [f"{member.path}: {text}" for text in copies.problems()]
    return given, left_out, warnings


async def _why_not_a_member(member: Member) -> str:
    if member.size_bytes < SUPERBLOCK_BYTES:
        return f"{member.path} is no member: {member.size_bytes} bytes are too few (truncated?)"
    try:
        signatures = await find_signatures(member)
    except MemberError as error:
        return str(error)
    what = f"it holds {describe(signatures)}" if signatures else "it has no superblock"
    return f"{member.path} is no member of an array: {what}{await hint_behind(member)}"


def _refuse_foreign(given: Sequence[Given]) -> None:
    arrays: dict[str, list[Given]] = {}
    for one in given:
        arrays.setdefault(one.superblock.array_uuid, []).append(one)
    if len(arrays) == 1:
        return
    refuse_half_renamed([one.superblock.config for one in given])
    groups = sorted(arrays.values(), key=len, reverse=True)
    parts = [
        f"{paths_of(group)} of array {group[0].superblock.config.name!r} "
        f"({group[0].superblock.array_uuid[:8]})"
        for group in groups
    ]
    raise AssemblyError(
        f"these are members of {len(groups)} arrays: {'; '.join(parts)}",
        action="give the members of one array",
        reason=Reason.SEVERAL_ARRAYS,
    )


def _refuse_duplicates(given: Sequence[Given]) -> None:
    seen: dict[str, Given] = {}
    for one in given:
        if one.uuid in seen:
            first, second = sorted((seen[one.uuid].member.path, one.member.path))
            raise AssemblyError(
                f"{first} and {second} are the same member ({one.uuid[:8]}): a copy, or one disk "
                "under two names",
                action="give one of them",
                reason=Reason.OUTDATED,
            )
        seen[one.uuid] = one


def _why_truncated(one: Given, config: ArrayConfig) -> str | None:
    """Return that a member is too small for its role, None if it is not or is out for good.

    One that was only missing would be taken back.
    """
    record = config.find(one.uuid)
    needed = bytes_needed_by(config, record)
    out = record is None or record.state == FAILED
    if out or one.member.size_bytes >= needed:
        return None
    return (
        f"{one.member.path} has {one.member.size_bytes} bytes, but the array needs "
        f"{needed}: truncated"
    )


# -- the members to use --------------------------------------------------------------------------


def _judge(given: Sequence[Given], config: ArrayConfig, base: int, warnings: list[str]) -> Assembly:
    """Return the assembly of the members that *config* allows, with a reason for each other one."""
    by_role: dict[Role, Member] = {}
    spares: dict[str, Member] = {}
    stale: list[tuple[Member, str]] = []
    for one in given:
        record = config.find(one.uuid)
        reason = _why_stale(one, record, config, base)
        if reason is not None:
            stale.append((one.member, reason))
            warnings.append(f"{one.member.path} is not used: {reason}")
        elif record is not None and record.role == NO_ROLE:
            spares[one.uuid] = one.member
        elif record is not None:
            by_role[record.role] = one.member
    missing = [role for role in config.roles() if role not in by_role]
    absent: dict[str, str] = {}
    for role in missing:
        record = config.record(role)
        if all(one.uuid != record.member_uuid for one in given):
            what = "failed earlier" if record.state == FAILED else "is missing"
            absent[record.member_uuid] = f"role {role} ({_named(record)}) {what}"
    for record in config.members:
        if record.state == SPARE and record.member_uuid not in spares:
            absent[record.member_uuid] = f"the spare {_named(record)} is missing"
    warnings += absent.values()
    behind = {one.uuid for one in given if one.superblock.events != config.events}
    behind &= spares.keys()
    return Assembly(
        *(config, by_role, spares, stale, missing, warnings, base, frozenset(behind)),
        absent=absent,
    )


def _named(record: MemberRecord) -> str:
    return f"{brief(record.path_hint) or 'no path known'}, {record.member_uuid[:8]}"


def _why_stale(
    one: Given, record: MemberRecord | None, config: ArrayConfig, base_events: int
) -> str | None:
    """Return why a member must not be used under *config*, or None if it may."""
    events = one.superblock.events
    counters = f"its event counter {events} is behind {config.events}"
    if record is None:
        return f"another member took its place or it was removed ({counters})"
    if record.state == FAILED:
        return f"it failed and the array continued without it ({counters})"
    if record.role == NO_ROLE:
        return None
    if record.state == MISSING:
        return f"it was missing and the array continued without it ({counters})"
    if events < base_events:
        return f"it is an old copy of this member ({counters})"
    return None


def _refuse_failed(assembly: Assembly, left_out: Sequence[str]) -> None:
    config = assembly.config
    unfinished = config.roles_in(REBUILDING)
    lost = frozenset(assembly.missing_roles) | unfinished
    if tolerates(config, lost):
        return
    parts = []
    for role in sorted(lost):
        record = config.record(role)
        here = role in assembly.by_role
        what = (
            "is not rebuilt yet"
            if here
            else "has failed"
            if record.state == FAILED
            else "is missing"
        )
        parts.append(f"role {role} ({_named(record)}), which {what}")
    unused = [f"{member.path} is not used: {reason}" for member, reason in assembly.stale]
    raise AssemblyError(
        f"array {config.name!r} has failed: {config.layout} over {config.width} members cannot do "
        f"without {'; '.join([*parts, *unused, *left_out])}",
        action="give the missing members too",
        reason=Reason.MEMBERS_MISSING,
    )
