"""Several arrays in one mount: their members told apart, their names checked."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.errors import (
    AssemblyError,
    FormatError,
    MemberError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.renamed import refuse_half_renamed
from raidx_fuse.format.superblock import newest, read_slots
from raidx_fuse.members.base import Member
from raidx_fuse.pool.volume_table import ArrayVolumes


async def by_array(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members of each array, in the order in which the arrays are named first.

    Each array of several can be started, or AssemblyError names them all: a member of another
    array that was given by mistake must not look like an array of its own. Of one array nothing is
    checked here. What has no superblock that can be read is in the first group, whose assembly
    leaves it out and says what is wrong with it.
    """
    groups: dict[str, list[Member]] = {}
    names: dict[str, str] = {}
    configs: dict[str, ArrayConfig] = {}  # of the first member of each
    unread: list[Member] = []
    for member in members:
        try:
            superblock = newest(await read_slots(member), member.path)
        except (FormatError, MemberError):
            superblock = None
        if superblock is None:
            unread.append(member)
            continue
        uuid = superblock.array_uuid
        groups.setdefault(uuid, []).append(member)
        names[uuid] = superblock.config.name
        configs.setdefault(uuid, superblock.config)
    refuse_half_renamed(list(configs.values()))
    if len(groups) < 2:
        return [list(members)]
    for group in groups.values():
        try:
            await assemble(group)
        except RaidxError as error:
            parts = "; ".join(
                f"{', '.join(member.path for member in group)} of array {names[uuid]!r} "
                f"({uuid[:8]})"
                for uuid, group in groups.items()
            )
            raise AssemblyError(
                f"these are members of {len(groups)} arrays: {parts}; {error.message}",
                action="give the members of one array, or all of each",
                reason=Reason.SEVERAL_ARRAYS,
            ) from None
    first, *others = groups.values()
    return [[*first, *unread], *others]


def check_names(pool: Sequence[ArrayVolumes]) -> None:
    """Raise UsageError if two arrays of *pool*, or two of their volumes, have the same name.

    Or if two of their volumes are the same one: members of one of the arrays are outdated then.
    """
    arrays: dict[str, ArrayVolumes] = {}
    held: dict[str, ArrayVolumes] = {}
    uuids: dict[str, ArrayVolumes] = {}
    for volumes in pool:
        array = volumes.array
        other = arrays.setdefault(array.name, volumes)
        if other is not volumes:
            raise UsageError(
                f"two arrays are called {array.name}: {other.array.uuid} and {array.uuid}",
                action="mount each on a mount point of its own",
                reason=Reason.EXISTS,
            )
        for volume in volumes.volumes:
            if uuids.setdefault(volume.uuid, volumes) is not volumes:
                raise UsageError(
                    f"arrays {uuids[volume.uuid].array.name} and {array.name} both say that volume "
                    f"{volume.name} is theirs",
                    action="mount one alone, and delete the volume on the outdated one",
                )
            first = held.setdefault(volume.name, volumes)
            if first is not volumes:
                raise UsageError(
                    f"arrays {first.array.name} and {array.name} both have a volume {volume.name}",
                    action="mount one alone, then type: raidx volume rename MOUNT "
                    f"{volume.name} NEW",
                    reason=Reason.EXISTS,
                )
