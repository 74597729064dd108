"""Superblocks written anew from saved metadata: which, onto which member, and whether it is safe.

Nothing is written before all of this holds; the same is what a dry run shows.

1. **Whose configuration.** Members with a valid superblock keep it. If theirs extends the saved one
   (format/assemble.py), the others get theirs, not the saved one: a file never makes an array older
   than its members. If the saved one extends theirs, they are judged by it; else it is refused.
   A member that the configuration excludes is out of date: it has to be rebuilt. And theirs counts
   only if one of them has content and as new a head of the log as there is: a spare that was pulled
   and a member that was left behind do not know how the array continued.
2. **How old the file is.** Without such members the file has the last word, so it must be known to
   be the newest: it was saved when the array was closed, and the log says that the array was not
   started since; or the daemon, which keeps each change of the configuration, kept it last. Else
   the user has to say that nothing has changed. Its counters stay as they were: a member that turns
   up later with a newer configuration is newer. The log must not name other members.
3. **Which member is which.** Members of one parity group are alike for their parity: two that are
   exchanged pass every check of it, and the log is then redone in wrong places. So a member takes a
   role because of sums of its content, which the file has; where these say nothing, because it was
   named for the role, by a path that stays the same, or because it alone is left. It must carry
   pages or content of this array in any case, and never looks like another member.
4. **What lies behind the superblocks.** Every page of the maps that there was is still on a member.
5. **A trial.** The array is opened, read-only, over the members as they would be: what a mount
   would refuse (an old copy, a split brain, a log that cannot be read) is refused. Stripes are
   scrubbed: if the parity does not fit, members, order or file are wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.array.save_metadata import sample, sampled_stripes
from raidx_fuse.errors import (
    AssemblyError,
    FormatError,
    RaidxError,
    Reason,
    SignatureFoundError,
    TooSmallError,
    UsageError,
)
from raidx_fuse.format.assemble import Given, ruling_config
from raidx_fuse.format.both_ends import erase_superblocks, read_copies, read_superblock
from raidx_fuse.format.configuration.absence import KEY as ABSENCE
from raidx_fuse.format.configuration.config import (
    ACTIVE,
    REBUILDING,
    ArrayConfig,
    MemberRecord,
)
from raidx_fuse.format.configuration.sums import sums_of, without_sums
from raidx_fuse.format.log_record import HEAD, decode_holders, holder_of
from raidx_fuse.format.pages import load_pages
from raidx_fuse.format.regions import REGION_KINDS, SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS
from raidx_fuse.format.saved_metadata import SAMPLE_BYTES, Saved, position_in
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.format.signature import describe, find_in_front
from raidx_fuse.format.superblock import (
    Slot,
    Superblock,
    encode_superblock,
    newest,
    read_slots,
    write_superblock,
)
from raidx_fuse.format.table_page import bytes_needed_by
from raidx_fuse.jobs.scrub import Scrub
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.members.fronted import FrontedMember
from raidx_fuse.store.io_tuples import MemberLostError

CLEAR_WIN = 4  # so many times as much of a member's content is there as of any other's
TELLING = 8  # so many sums of a member that all fail say that it is another one, or was rewritten
WRONG_MAX = 0.25  # of the stripes that are scrubbed: more is no rot; none on the user's word alone
FRONT_BYTES = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS


@dataclass(frozen=True, slots=True)
class Permits:
    """What the user permits, and says.

    *roles*: role of members, by their position among those given. *degraded*: without members that
    are not given. *older*: nothing has changed since the file was saved. *is_newest*: the file is
    the last one that a daemon kept; *newer*: the path of one that has later changes, or "".
    *overwrite_signature*: what others made in front of a member.
    """

    roles: Mapping[int, Role] = field(default_factory=dict)
    degraded: bool = False
    older: bool = False
    is_newest: bool = False
    newer: str = ""
    overwrite_signature: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """A member, its record, how it was recognised, and the superblock that it gets (None: none)."""

    member: Member
    record: MemberRecord
    recognised: str
    superblock: Superblock | None = None


@dataclass(frozen=True, slots=True)
class Restoration:
    """What is to be written, and what the trial found: *state*, stripes *checked* and *wrong*."""

    config: ArrayConfig
    from_members: bool
    members: tuple[Restored, ...]
    absent: tuple[MemberRecord, ...]
    warnings: tuple[str, ...]
    state: str
    checked: int
    wrong: int

    async def carry_out(self) -> None:
        """Write the superblocks, each flushed. Raises RaidxError that says what was written."""
        done: list[str] = []
        for one in self.members:
            if one.superblock is None:
                continue
            try:
                await erase_superblocks(one.member, whatever=True)
                await write_superblock(one.member, one.superblock)
                if await read_superblock(one.member) != one.superblock:
                    raise FormatError(f"{one.member.path}: its new superblock is not read back")
            except RaidxError as error:
                written = f"written so far: {', '.join(done) or 'none'}"
                raise RaidxError(
                    f"{error.message}; {written}",
                    action="the same command continues",
                    reason=error.reason,
                ) from None
            done.append(one.member.path)


@dataclass(slots=True)
class _Candidate:
    """A given member; without *superblock* one to be recognised.

    *hits*: by UUID, how many sums of that member alone fit; *shared*: the same of all sums.
    *fitting*: whether half of all sums of a member fit. *has_pages*: pages of this array lie behind
    its superblocks. *generation*: of the head of its log, by which its age is known; 0: none.
    """

    member: Member
    position: int
    slots: tuple[Slot, Slot]
    superblock: Superblock | None
    hits: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    fitting: bool = False
    has_pages: bool = False
    generation: int = 0

    @property
    def path(self) -> str:
        return self.member.path

    def looks_like(self, saved: Saved) -> str | None:
        """Return the UUID of the member whose content it has, None if nothing says that.

        Raises AssemblyError if it has the content of several.
        """
        hits = {one.uuid: self.hits[one.uuid] for one in saved.members if one.samples}
        ranked = sorted(hits, key=lambda uuid: -hits[uuid])
        if not ranked or not hits[ranked[0]]:
            return None
        if len(ranked) > 1 and hits[ranked[0]] <= CLEAR_WIN * hits[ranked[1]]:
            raise AssemblyError(
                f"{self.path} has content of several members: the layout is another one since the "
                "file was saved",
                action="take the newest file",
                reason=Reason.OUTDATED,
            )
        return ranked[0]


async def plan(saved: Saved, members: Sequence[Member], permits: Permits) -> Restoration:
    """Return what restoring *saved* to *members* does. Writes nothing.

    Raises RaidxError for what must not be written.
    """
    if not members:
        raise UsageError("no members given", action="name the array's disks")
    candidates = [await _look_at(n, member, saved, permits) for n, member in enumerate(members)]
    intact = [one for one in candidates if one.superblock is not None]
    lost = [one for one in candidates if one.superblock is None]
    if not lost:
        raise RaidxError(
            "every member that was given has a valid superblock: there is nothing to restore",
            action="mount them; what one end of a member has lost: raidx check "
            "--repair-superblocks",
            reason=Reason.ALREADY,
        )
    config, base, from_members = _whose(saved, intact)
    head = await _look_behind(saved, config, candidates)
    warnings: list[str] = []
    if not from_members:
        config = _of_the_file(saved, head, permits, warnings)
    else:
        _require_witness(config, intact, head)
    _require_members_of_log(head, config)
    _require_same_age(config, candidates, head)
    if _places(config) != _places(saved.config):  # content lies elsewhere since
        saved = replace(saved, members=tuple(replace(one, samples={}) for one in saved.members))
    found = _assign(saved, config, candidates, permits)
    is_newest = config.clean or (permits.is_newest and head.epoch == saved.log_epoch)
    if not (from_members or is_newest) and sums_of(config) is not None:
        # They may have been off meanwhile, and say what pages were before that.
        config = without_sums(config)
        warnings.append(f"checksums begin anew: raidx set {config.name} sums=on")
    restored = []
    for one in candidates:
        record, how = found[one.position]
        if one.superblock is not None:
            restored.append(Restored(one.member, record, how))
            continue
        _require_current(one, record, config)
        known = saved.config.find(record.member_uuid) is not None
        sequence = saved.member(record.member_uuid).sequence if known else None
        superblock = Superblock(record.member_uuid, sequence or 0, base, config)
        restored.append(Restored(one.member, record, how, superblock))
        _note_signature(one, permits, warnings)
        if not one.generation:
            warnings.append(
                f"{one.path} has lost its maps, too: nothing tells whether it is an old copy"
            )
    here = {one.record.member_uuid for one in restored}
    absent = tuple(
        record
        for record in config.members
        if record.member_uuid not in here and record.state in (ACTIVE, REBUILDING)
    )
    if absent and not permits.degraded:
        raise UsageError(
            f"{_named(absent[0])} is not given",
            action="give it, too; if it is gone for good, add --start-degraded",
            reason=Reason.MEMBERS_MISSING,
        )
    _prefer_rebuild(config, candidates, found)
    state, checked, wrong = await _try(restored, permits, warnings)
    return Restoration(
        config, from_members, tuple(restored), absent, tuple(warnings), state, checked, wrong
    )


def _named(record: MemberRecord) -> str:
    what = f"role {record.role}" if record.role >= 0 else "spare"
    return f"{what} ({record.path_hint or 'no path known'}, {record.member_uuid[:8]})"


# -- what there is ---------------------------------------------------------------------------------


async def _look_at(number: int, member: Member, saved: Saved, permits: Permits) -> _Candidate:
    """Return what *member* has in front, and the superblock at its end if that counts.

    Raises FormatError, SignatureFoundError, MemberError.
    """
    name = saved.config.name
    if member.size_bytes < FRONT_BYTES:
        raise TooSmallError(f"{member.path} has {member.size_bytes} bytes: too few for a member")
    slots = await read_slots(member, searched=True)
    for slot in slots:
        if slot.other is not None:
            newest(slots, member.path)  # raises
    superblock = None
    try:
        sizes = [record.size_bytes for record in saved.config.members]
        superblock = (await read_copies(member, sizes)).superblock
    except FormatError:
        if any(slot.superblock is not None for slot in slots):
            raise
    if superblock is not None and superblock.array_uuid != saved.config.array_uuid:
        raise UsageError(
            f"{member.path} is a member of array {superblock.config.name!r} "
            f"({superblock.array_uuid[:8]}), not of {name!r}",
            action="leave it out, or wipe it first: raidx wipe",
            reason=Reason.SEVERAL_ARRAYS,
        )
    foreign = find_in_front(slots)
    if foreign and superblock is not None:
        raise SignatureFoundError(
            f"{member.path} has a valid superblock and carries {describe(foreign)}",
            action="if that is not needed, mount with --accept-member",
        )
    if foreign and not permits.overwrite_signature:
        raise SignatureFoundError(
            f"{member.path} carries {describe(foreign)} now",
            action="--overwrite-signature destroys it",
        )
    return _Candidate(member, number, slots, superblock)


def _note_signature(one: _Candidate, permits: Permits, warnings: list[str]) -> None:
    foreign = find_in_front(one.slots)
    if foreign and permits.overwrite_signature:
        warnings.append(
            f"{one.path} carries {describe(foreign)}, which is destroyed: what else was written to "
            "it is found by raidx scrub"
        )


def _whose(saved: Saved, intact: Sequence[_Candidate]) -> tuple[ArrayConfig, int, bool]:
    """Return (configuration, its base events, whether it is that of members).

    Raises AssemblyError.
    """
    given = [Given(one.member, one.superblock) for one in intact if one.superblock is not None]
    if not given:
        return saved.config, saved.base_events, False
    theirs = ruling_config(given)
    base = max(one.superblock.base_events for one in given if one.superblock.config == theirs)
    ours = saved.config
    if theirs == ours or (theirs.extends(ours) and _rank(theirs) >= _rank(ours)):
        return theirs, base, True
    if ours.extends(theirs) and _rank(ours) > _rank(theirs):
        return ours, saved.base_events, False
    raise AssemblyError(
        f"the saved configuration (event {ours.events}) and that of "
        f"{', '.join(one.path for one in intact)} (event {theirs.events}) do not follow each other",
        action="mount those members without the others, and replace these",
        reason=Reason.SPLIT,
    )


def _rank(config: ArrayConfig) -> tuple[int, int, int]:
    return len(config.lineage), config.starts, config.events


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest head page of the log: its *generation* (0: no member has one) and what it says.

    *epoch* counts starts; *holders* may have records (None: it does not say).
    """

    generation: int = 0
    epoch: int = 0
    holders: Collection[bytes] | None = None


def _require_witness(config: ArrayConfig, intact: Sequence[_Candidate], head: _Head) -> None:
    """Refuse *config*, of members, if none of them shows that the array did not go on without it.

    A spare that was pulled has no content, and a member that was left behind has an older log.
    """
    for one in intact:
        assert one.superblock is not None
        record = config.find(one.superblock.member_uuid)
        counts = record is not None and record.state in (ACTIVE, REBUILDING) and record.role >= 0
        if counts and one.superblock.config == config and one.generation == head.generation > 0:
            return
    names = ", ".join(one.path for one in intact)
    raise AssemblyError(
        f"{names}: nothing tells whether the array continued after event {config.events}, which is "
        "the newest there",
        action="leave them out, and give the newest file",
        reason=Reason.OUTDATED,
    )


def _require_same_age(config: ArrayConfig, candidates: Sequence[_Candidate], head: _Head) -> None:
    """Refuse members with content that have an older head of the log than others."""
    for one in candidates:
        record = None if one.superblock is None else config.find(one.superblock.member_uuid)
        left_behind = one.superblock is not None and (
            record is None or record.role < 0 or record.state not in (ACTIVE, REBUILDING)
        )
        if not left_behind and 0 < one.generation < head.generation:
            raise AssemblyError(
                f"{one.path} has an older head of the log than others: it is an old copy, or the "
                "array continued without it",
                action="leave it out (--start-degraded), mount, then raidx replace-disk",
                reason=Reason.OUTDATED,
            )


def _places(config: ArrayConfig) -> object:
    """Return what decides where content lies."""
    return config.layout, config.params, config.width, config.chunk_bytes, config.regions


def _require_members_of_log(head: _Head, config: ArrayConfig) -> None:
    known = {holder_of(record.member_uuid) for record in config.members}
    if head.holders is not None and not known.issuperset(head.holders):
        raise AssemblyError(
            f"the log has members that array {config.name!r} did not have at event {config.events}",
            action="take the newest file, or give a member with a valid superblock",
            reason=Reason.OUTDATED,
        )


async def _look_behind(
    saved: Saved, config: ArrayConfig, candidates: Sequence[_Candidate]
) -> _Head:
    """Look at what lies behind the superblocks; return what the head of the log says.

    Raises AssemblyError if a page of the maps is gone.
    """
    tellers = {  # the sums that only one member has
        one.uuid: {at: crc for at, crc in one.samples.items() if _is_alone(saved, at, crc)}
        for one in saved.members
    }
    offsets = {at for one in saved.members for at in one.samples}
    head = _Head()
    there: dict[str, set[int]] = {kind: set() for kind in REGION_KINDS}
    for one in candidates:
        end = one.member.size_bytes
        sums: dict[int, int] = {}
        await sample(one.member, [at for at in offsets if at + SAMPLE_BYTES <= end], sums)
        for saved_member in saved.members:
            uuid, samples = saved_member.uuid, saved_member.samples
            one.hits[uuid] = sum(sums.get(at) == crc for at, crc in tellers[uuid].items())
            one.shared[uuid] = sum(sums.get(at) == crc for at, crc in samples.items())
            one.fitting |= 2 * one.shared[uuid] >= len(samples) > 0
        for kind in REGION_KINDS:
            region = config.regions.pages(kind)
            if region.offset + region.length > end:
                continue
            is_head = kind == "journal"
            loaded = await load_pages(one.member, region, config.array_uuid, payloads=is_head)
            present = loaded.present()
            there[kind].update(present)
            one.has_pages |= bool(present)
            if is_head and present:
                one.generation = int(loaded.generations[0])
                if one.generation > head.generation:
                    head = _head_of(one.generation, loaded.payload[0].tobytes())
    for kind, runs in saved.pages.items():
        gone = [page for run in runs for page in range(*run) if page not in there[kind]]
        if gone:
            what = "head of the log" if kind == "journal" else f"page {gone[0]} of the {kind} map"
            all_given = len(candidates) >= sum(record.role >= 0 for record in config.members)
            raise AssemblyError(
                f"the {what} is gone from every member that was given, and is not in the file: "
                "without it content cannot be told from what was never written",
                action="all members were given: make the array anew and restore its files from a "
                "copy"
                if all_given
                else "give the other members, too",
                reason=Reason.LOST,
            )
    return head


def _head_of(generation: int, payload: bytes) -> _Head:
    epoch, *_, held_epoch, count = HEAD.unpack_from(payload)
    return _Head(generation, epoch, decode_holders(payload, count) if held_epoch == epoch else None)


def _is_alone(saved: Saved, offset: int, crc: int) -> bool:
    return sum(one.samples.get(offset) == crc for one in saved.members) == 1


# -- whether the file is the newest ----------------------------------------------------------------


def _of_the_file(saved: Saved, head: _Head, permits: Permits, warnings: list[str]) -> ArrayConfig:
    """Return the configuration that superblocks get from the file. Raises AssemblyError."""
    config, name = saved.config, saved.config.name
    if 0 < head.generation < saved.log_generation:
        raise AssemblyError(
            f"the members are older copies: array {name!r} ran on after them before the file was "
            "saved",
            action="give the members themselves, or a file as old as they are",
            reason=Reason.OUTDATED,
        )
    same_run = head.epoch == saved.log_epoch
    if config.clean and same_run and head.generation == saved.log_generation:
        return config  # closed, and not started since: nothing can have changed
    if permits.newer:
        raise AssemblyError(
            f"{permits.newer} has later changes of array {name!r}",
            action="restore that file",
            reason=Reason.OUTDATED,
        )
    if position := position_in(config):
        raise AssemblyError(
            f"when the file was saved, {position}, and how far it has come since is not known",
            action="give a member with a valid superblock, or a later file",
            reason=Reason.OUTDATED,
        )
    if not permits.older and not (permits.is_newest and same_run):
        if not head.generation:
            what = f"nothing tells whether array {name!r} was started since the file was saved"
        elif same_run:
            what = f"array {name!r} ran when the file was saved"
        else:
            times = f"{head.epoch - saved.log_epoch} times"
            what = f"array {name!r} was started since the file was saved ({times})"
        raise AssemblyError(
            f"{what}: what changed later of members, layout or volumes is not in it",
            action="take the newest file; if nothing has changed, add --accept-older",
            reason=Reason.OUTDATED,
        )
    warnings.append("the array may not have been closed: the next mount recovers it")
    # What an absent member lacks may have become more, and it would be caught up by too little.
    return replace(config, clean=False).without_job(ABSENCE)


# -- which member is which -------------------------------------------------------------------------


def _assign(
    saved: Saved, config: ArrayConfig, candidates: Sequence[_Candidate], permits: Permits
) -> dict[int, tuple[MemberRecord, str]]:
    """Return the record of each candidate, and how it was recognised, by its position.

    Raises UsageError.
    """
    found: dict[int, tuple[MemberRecord, str]] = {}
    for one in candidates:
        if one.superblock is not None:
            record = config.find(one.superblock.member_uuid)
            if record is None:
                raise AssemblyError(
                    f"{one.path}: another member took its place",
                    action="leave it out",
                    reason=Reason.OUTDATED,
                )
            if one.position in permits.roles:
                raise UsageError(
                    f"{one.path} has a valid superblock, of {_named(record)}",
                    action="give it without a role",
                    reason=Reason.ALREADY,
                )
            _take(found, one, record, "by its superblock", candidates)
    lost = [one for one in candidates if one.superblock is None]
    for one in lost:
        if not (one.has_pages or one.fitting):
            raise UsageError(
                f"nothing on {one.path} is of array {config.name!r}",
                action="if it is new, mount without it, then raidx replace-disk",
                reason=Reason.NOT_A_MEMBER,
            )
        record = config.find(one.looks_like(saved) or "")
        named = permits.roles.get(one.position)
        if named is not None:
            wanted = next((each for each in config.members if each.role == named), None)
            if wanted is None:
                raise UsageError(
                    f"array {config.name!r} has no role {named}", reason=Reason.NO_SUCH_MEMBER
                )
            if record is not None and record != wanted:
                raise UsageError(
                    f"{one.path} has the content of {_named(record)}, not of role {named}",
                    action=f"give it as {record.role}={one.path}, or without a role",
                )
            _take(found, one, wanted, "as it was named", candidates)
        elif record is not None:
            sums = f"by {one.hits[record.member_uuid]} of its sums"
            _take(found, one, record, sums, candidates)
    _take_the_rest(saved, config, candidates, found)
    return found


def _take(
    found: dict[int, tuple[MemberRecord, str]],
    one: _Candidate,
    record: MemberRecord,
    how: str,
    candidates: Sequence[_Candidate],
) -> None:
    for position, (taken, _) in found.items():
        if taken == record:
            first = candidates[position].path
            raise UsageError(
                f"{first} and {one.path} are both {_named(record)}: one of them is a copy",
                action="leave one out",
                reason=Reason.OUTDATED,
            )
    found[one.position] = record, how


def _take_the_rest(
    saved: Saved,
    config: ArrayConfig,
    candidates: Sequence[_Candidate],
    found: dict[int, tuple[MemberRecord, str]],
) -> None:
    """Give the members about which no sum says anything the roles that are left."""

    def left() -> list[MemberRecord]:
        taken = [record for record, _ in found.values()]
        counted = (each for each in config.members if each.state in (ACTIVE, REBUILDING))
        return [record for record in counted if record.role >= 0 and record not in taken]

    def unknown() -> list[_Candidate]:
        return [one for one in candidates if one.position not in found]

    def fits(one: _Candidate, record: MemberRecord) -> bool:
        sums = 0
        if saved.config.find(record.member_uuid) is not None:
            samples = saved.member(record.member_uuid).samples
            sums = sum(_is_alone(saved, at, crc) for at, crc in samples.items())
        silent = sums < TELLING
        return silent and one.member.size_bytes >= bytes_needed_by(config, record)

    are_copies = layout_of(config).code.data_count == 1 and not layout_of(config).has_table
    for one in unknown():
        same = [record for record in left() if record.path_hint == one.path]
        if same and is_lasting(one.path) and fits(one, same[0]):
            _take(found, one, same[0], "by its path", candidates)
    if are_copies and not config.roles_in(REBUILDING):  # then it does not matter which is which
        for one in unknown():
            same = [record for record in left() if record.path_hint == one.path] or left()
            if same and one.shared.get(same[0].member_uuid):
                _take(found, one, same[0], "as one of several copies", candidates)
    if len(unknown()) == len(left()) == 1 and fits(unknown()[0], left()[0]):
        _take(found, unknown()[0], left()[0], "as the only one that is left", candidates)
    for one in unknown():
        roles = ", ".join(str(record.role) for record in left()) or "none"
        raise UsageError(
            f"nothing says which member {one.path} is (roles left: {roles})",
            action=f"if you know it, name it: ROLE={one.path}",
            reason=Reason.AMBIGUOUS,
        )


def is_lasting(path: str) -> bool:
    """Return whether *path* means the same disk after a restart: the kernel numbers /dev/sda.

    >>> is_lasting("/dev/sdb"), is_lasting("/dev/disk/by-id/x"), is_lasting("/srv/d0.img")
    (False, True, True)
    """
    return not path.startswith("/dev/") or path.count("/") > 2


def _require_current(one: _Candidate, record: MemberRecord, config: ArrayConfig) -> None:
    needed, size = bytes_needed_by(config, record), one.member.size_bytes
    if needed > size:
        raise TooSmallError(f"{one.path} has {size} bytes, but {_named(record)} needs {needed}")
    if record.state not in (ACTIVE, REBUILDING) or record.role < 0:
        raise AssemblyError(
            f"{one.path} is {_named(record)}, which is {record.state} at event {config.events}: "
            "the array continued without it",
            action="mount without it, then replace it by itself: raidx replace-disk",
            reason=Reason.OUTDATED,
        )


def _prefer_rebuild(
    config: ArrayConfig,
    candidates: Sequence[_Candidate],
    found: Mapping[int, tuple[MemberRecord, str]],
) -> None:
    """Refuse a member whose age nothing tells, if the array can do without it: it is rebuilt."""
    blind = [one for one in candidates if one.superblock is None and not one.generation]
    roles = {found[one.position][0].role for one in blind}
    here = {record.role for record, _ in found.values()}
    lost, layout = frozenset(roles | (set(config.roles()) - here)), layout_of(config)
    spared = len(lost) <= layout.code.tolerance if layout.has_table else layout.tolerates(lost)
    if blind and spared:
        raise AssemblyError(
            f"{blind[0].path} has lost its maps, too: nothing tells whether it is an old copy, and "
            "the array can do without it",
            action="leave it out (--start-degraded), mount, then raidx replace-disk",
            reason=Reason.OUTDATED,
        )


# -- the trial -------------------------------------------------------------------------------------


async def _try(
    restored: Sequence[Restored], permits: Permits, warnings: list[str]
) -> tuple[str, int, int]:
    """Open the array as it would be; return its state, and how many stripes fit and do not.

    Raises RaidxError as a mount would.
    """
    trial = [FrontedMember(one.member, _front(one.superblock)) for one in restored]
    async with open_array(trial, read_only=True, start_degraded=permits.degraded) as array:
        for member, why in array.stale:
            if next(one for one in restored if one.member.path == member.path).superblock:
                raise AssemblyError(
                    f"{member.path} would not be used: {why}", reason=Reason.OUTDATED
                )
        warnings += array.warnings
        checked, wrong = await _scrubbed(array)
        state = str(array.status()["state"])
    if wrong > (0 if permits.older else WRONG_MAX * checked):
        raise AssemblyError(
            f"the content does not fit: {wrong} of {checked} stripes contradict their parity, so a "
            "member is not the one it is taken for or is out of date, or the file is",
            action="give the members as they were, and the newest file",
            reason=Reason.OUTDATED,
        )
    return state, checked, wrong


def _front(superblock: Superblock | None) -> bytes:
    if superblock is None:
        return b""
    front = bytearray(FRONT_BYTES)
    content = encode_superblock(superblock)
    at = superblock.slot * SUPERBLOCK_SLOT_BYTES
    front[at : at + len(content)] = content
    return bytes(front)


async def _scrubbed(array: Array) -> tuple[int, int]:
    """Scrub some stripes; return how many could be checked, and how many are wrong."""
    context, checked, wrong = array.context, 0, 0
    for stripe in sampled_stripes(array):
        if context.dirty_bitmap.awaits_resync(stripe):
            continue
        scrub = Scrub(context, 0, repair=False)
        try:
            await scrub.check([stripe])
        except MemberLostError:
            continue
        checked += bool(context.code.parity_count) and not scrub.unchecked
        wrong += bool(scrub.mismatches)
    return checked, wrong
