"""Whether the new member of a `replace-disk` is the old one, which was away and is back."""

from __future__ import annotations

from functools import partial
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.array.estimate import of_member_change
from raidx_fuse.array.returning import problem
from raidx_fuse.daemon.commands.reshape import Newcomers
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.members.base import Member


def uuid_away(record: MemberRecord) -> str:
    """Return the UUID of the member of *record* if it is away and may be given again, else ""."""
    away = record.role >= 0 and record.state in ("failed", "missing")
    return record.member_uuid if away else ""


async def cost_of_replacing(
    array: Array,
    newcomers: Newcomers,
    record: MemberRecord,
    path: str,
    chunks: int,
    *,
    overwrite_signature: bool,
    may_create: bool,
) -> dict[str, Any]:
    """Return what it costs to give the role of *record* to *path*, losing *chunks* at most.

    Raises what `Newcomers.open` would raise.
    """
    found: list[bool] = []

    async def look(member: Member) -> None:
        found.append(await problem(array, record, member) is None)

    check = partial(newcomers.check, look=look) if uuid_away(record) else newcomers.check
    await check(
        path,
        overwrite_signature=overwrite_signature,
        may_create=may_create,
        own_uuid=uuid_away(record),
    )
    returns = any(found)
    does = f"rebuilds role {record.role} onto {path}"
    if returns:
        does = f"lets {path} catch up in role {record.role}"
    return await of_member_change(array, does, record.role, chunks, returns=returns)
