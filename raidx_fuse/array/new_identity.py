"""Gives an array at rest a new identity, or completes that; the steps: format/new_identity.py."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import UsageError
from raidx_fuse.format import new_identity as steps
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import UuidSource, new_uuid
from raidx_fuse.members.base import Member


async def give_new_identity(
    members: Sequence[Member], uuid_source: UuidSource = new_uuid
) -> tuple[str, ArrayConfig]:
    """Give the array of *members* other UUIDs; return the former one and the new configuration.

    A change that was cut is completed. Raises UsageError, AssemblyError, MemberError.
    """
    new = await steps.find_interrupted(members)
    if new is None:
        steps.require_whole(await assemble(members))
        async with open_array(members):
            pass  # what was in the log is in its places now
        assembly = await assemble(members)
        used = steps.require_whole(assembly)
        if left := [member.path for member in members if member not in used]:
            raise UsageError(f"{left[0]} is not used by the array", action="leave it out")
        new = steps.with_new_identity(assembly.config, uuid_source)
        await steps.write_pages(members, new)
    former = steps.former_uuid(new)
    await steps.write_superblocks(members, new)
    return former, await steps.finish(members, new)
