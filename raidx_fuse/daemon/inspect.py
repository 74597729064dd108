"""Examine arrays that are not mounted, by their members' paths; nothing is written or started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from raidx_fuse.array import advice
from raidx_fuse.daemon.array_lock import refuse_running
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.errors import AssemblyError, BusyError, InUseError, RaidxError, reason_of, single
from raidx_fuse.format.assemble import Assembly, assemble
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.remembered import health_of, shown_scrub
from raidx_fuse.format.configuration.sums import shown_sums
from raidx_fuse.format.examine import examine as examine_member
from raidx_fuse.format.shapes import MIGRATED, RESTRIPE, layout_of
from raidx_fuse.members.spec import is_local
from raidx_fuse.members.threads import run_without_loop

if TYPE_CHECKING:
    from raidx_fuse.answers import Peeked
    from raidx_fuse.documents import ArrayReport, Checked, Member, Volume

Question = TypeVar("Question", str, Sequence[str])
Answer = TypeVar("Answer")


def run(question: Callable[[Question], Awaitable[Answer]], specs: Question) -> Answer:
    """Return what *question*, of this module or scan.py, answers about *specs*.

    Local members need no trio. Raises what *question* raises.
    """
    if all(map(is_local, [specs] if isinstance(specs, str) else specs)):
        return run_without_loop(question, specs)
    return trio.run(question, specs)


async def examine(spec: str) -> dict[str, Any]:
    """Return what one member's superblock says; *problem* says why it cannot be read.

    A member that is in use by a mount can be examined too.
    """
    try:
        with Disks(read_only=True, lock=False) as disks:
            (member,) = disks.attach([spec])
            return {"path": member.path, "problem": None, **await examine_member(member)}
    except RaidxError as error:
        return {"path": spec, "problem": reason_of(error, spec)}


async def status(specs: Sequence[str]) -> ArrayReport:
    """Return the status of the array that *specs* form, as `raidx status --json` prints it.

    *state* is the state that a mount would start with; "unclean" if that mount would have to
    recover the array from a crash, "unknown" if the members are in use. Raises AssemblyError if
    they form no array, BusyError if they are not all members of an array that is in use.
    """
    in_use = _in_use(specs)
    try:
        with Disks(read_only=True, lock=False) as disks:
            assembly = await assemble(disks.attach(specs))
            document, config = describe(assembly), assembly.config
        try:  # by a process of this user, maybe under other names of its disks
            refuse_running(config.array_uuid, config.name)
        except BusyError:
            in_use = True
    except AssemblyError:
        if in_use:
            raise InUseError(
                f"{specs[0]}: in use by another process", action="ask its mount point"
            ) from None
        raise
    if in_use:
        # The process that uses them knows which members it has, and writes to them.
        document |= {"running": True, "state": "unknown", "action": None}
        document["warnings"].append("these members are in use: ask their mount point instead")
    return document


async def array_in_use(spec: str) -> str | None:
    """Return the UUID of the array of member *spec* if another process uses it, else None."""
    if not _in_use([spec]):
        return None
    uuid = (await examine(spec)).get("array_uuid")
    return uuid if isinstance(uuid, str) else None


def _in_use(specs: Sequence[str]) -> bool:
    """Return whether another process holds the lock of a member."""
    try:
        with Disks(read_only=True) as disks:
            disks.attach(specs)
    except BusyError:
        return True
    return False


def describe(assembly: Assembly) -> ArrayReport:
    """Return the status of an array that is not mounted."""
    config, layout = assembly.config, layout_of(assembly.config)
    paths = {role: member.path for role, member in assembly.by_role.items()}
    health = health_of(config)
    members: list[Member] = [
        {
            "role": record.role,
            "path": paths.get(record.role, record.path_hint),
            "uuid": record.member_uuid,
            "state": "missing" if record.role in assembly.missing_roles else record.state,
            "size": record.size_bytes,
            "errors": None,
            "errors_ever": health.counts_of(record.member_uuid)[0],
            "repairs_ever": health.counts_of(record.member_uuid)[1],
        }
        for record in config.members
    ]
    lost = sum(member["role"] >= 0 and member["state"] != "active" for member in members)
    left = layout.code.tolerance - lost
    whole = layout.size_bytes
    size = whole if config.size_bytes is None else min(config.size_bytes, whole)
    whole_state = "clean" if config.clean else "unclean"
    if MIGRATED in config.params:
        whole_state = "growing"
    if RESTRIPE in config.params:
        whole_state = "restriping"
    warnings = list(assembly.warnings)
    if not config.clean:
        warnings.append("it was not unmounted: the next mount recovers what was being written")
    document: ArrayReport = {
        "uuid": config.array_uuid,
        "name": config.name,
        "layout": config.layout,
        "layout_parameters": dict(config.params),
        "chunk_size": config.chunk_bytes,
        "size": size,
        "state": "failed" if left < 0 else "degraded" if lost else whole_state,
        "redundancy_left": max(left, 0),
        "running": False,
        "clean": config.clean,
        "members": members,
        "jobs": [],
        "last_scrub": shown_scrub(health),
        "volumes": _volumes(config, size),
        "mountpoint": None,
        "warnings": warnings,
        "action": None,
    }
    if (sums := shown_sums(config)) is not None:
        document["sums"] = sums
    return {**document, "action": advice.action(document)}


def _volumes(config: ArrayConfig, size_bytes: int) -> list[Volume]:
    """Return the volumes of an array whose image has *size_bytes*."""
    if config.volumes is None:
        return [{"name": config.name, "size": size_bytes, "path": None}]
    return [
        {"name": v.name, "size": size_bytes if v.size_bytes is None else v.size_bytes, "path": None}
        for v in config.volumes.volumes
    ]


async def peek(specs: Sequence[str], stripe: int, begin: int, length: int) -> Peeked:
    """Return the bytes of a stripe of the array that *specs* form, as a mount would read them.

    Content that is only in the log counts. Raises UsageError, AssemblyError, BusyError.
    """
    from raidx_fuse.array.open import open_array  # late: a status needs no engine
    from raidx_fuse.engine.peek import Peek

    try:
        with Disks(read_only=True) as disks:
            members = disks.attach(specs)
            await disks.claim(members)
            async with open_array(members, read_only=True, start_degraded=True) as array:
                return await Peek(array.context).peek(stripe, begin, length)
    except BaseExceptionGroup as group:
        raise single(group) from None


async def check(specs: Sequence[str], *, deep: bool = False) -> Checked:
    """Check superblocks, maps and parity of the array that *specs* form; see `check_members`.

    The members are locked against a mount meanwhile.
    """
    from raidx_fuse.array.check import check_members  # late: as above

    try:
        with Disks(read_only=True) as disks:
            members = disks.attach(specs)
            await disks.claim(members)
            return await check_members(members, deep=deep)
    except BaseExceptionGroup as group:
        raise single(group) from None
