"""Which member of a running array a user means, and where one that had left is again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import Member


def member_named(members: Sequence[Member], member: str) -> Member | None:
    """Return the one of *members* with this role, UUID or path; None if there is none."""
    same = (member, absolute(member), os.path.realpath(member))
    for each in members:
        here = each["path"] and os.path.realpath(each["path"])
        if member in (str(each["role"]), each["uuid"]) or each["path"] in same or here in same:
            return each
    return None


def returning(members: Sequence[Member], member: str, array: str) -> tuple[Member, str, bool]:
    """Return the one of *members* of *array* that is taken back, its path, and whether it is out.

    Raises UsageError if there is none with this role, UUID or path, or its path is not known.
    """
    found = member_named(members, member)
    path = found and found["path"]
    if found is None and os.path.exists(member):  # it was absent from the mount on
        from raidx_fuse.daemon import inspect  # late: it reads members, as the daemon does

        path = absolute(member)
        uuid = str(inspect.run(inspect.examine, path).get("member_uuid", ""))
        found = member_named(members, uuid)
    if found is None or path is None:
        raise UsageError(
            f"the array has no member {member}, or does not know where it is",
            action=f"raidx replace-disk {array} ROLE PATH",
            reason=Reason.NO_SUCH_MEMBER,
        )
    return found, path, found["role"] >= 0 and found["state"] in ("failed", "missing")
