"""Whether the new member of a `replace-disk` is the old one, which was away and is back."""

from __future__ import annotations

from functools import partial
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.array.estimate import of_member_change, redundancy_during
from raidx_fuse.array.returning import is_past, problem
from raidx_fuse.array.status import redundancy_left
from raidx_fuse.daemon.commands.reshape import Newcomers
from raidx_fuse.daemon.member_files import Own
from raidx_fuse.format.configuration.config import FAILED, MISSING, MemberRecord
from raidx_fuse.members.base import Member


def own_superblock(array: Array, record: MemberRecord) -> Own | None:
    """Return which superblock the member of *record* may have if it is given again; None: none."""
    away = record.role >= 0 and record.state in (FAILED, MISSING)
    return partial(is_past, array, record) if away else None


async def cost_of_replacing(
    array: Array,
    newcomers: Newcomers,
    record: MemberRecord,
    path: str,
    *,
    overwrite_signature: bool,
    may_create: bool,
) -> dict[str, Any]:
    """Return what it costs to give the role of *record* to *path*.

    Raises what `Newcomers.open` would raise.
    """
    found: list[bool] = []

    async def look(member: Member) -> None:
        found.append(await problem(array, record, member) is None)

    own = own_superblock(array, record)
    await newcomers.check(
        path,
        overwrite_signature=overwrite_signature,
        may_create=may_create,
        own=own,
        look=None if own is None else look,
    )
    returns = any(found)
    does = f"rebuilds role {record.role} onto {path}"
    if returns:
        does = f"lets {path} catch up in role {record.role}"
    cost = await of_member_change(array, does, record.role, returns=returns)
    if record.state != "active":
        return cost
    return cost | {
        "does": f"copies role {record.role} to {path}; its member stays in use until then",
        "bytes_read": cost["bytes_written"],
        "bytes_moved": 2 * cost["bytes_written"],
        "redundancy_reduced": False,
        "redundancy_reduced_seconds": 0.0,
        "redundancy": redundancy_during(redundancy_left(array)),
    }
