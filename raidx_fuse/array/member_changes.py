"""How members join and leave an array: what `add-disk` and `remove-disk` do, and what it costs.

    bundles    raidx layouts: chunks move one by one, and members have any size
    copies     raid1: a new member is one more copy, and is rebuilt
    migration  all others: a growth, if the layout has one; it is undone, or a restripe, to leave

The layout says which it is (`LayoutInfo.members_by`); a restripe may change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raidx_fuse.array.services import MemberChanges, RunningArray
from raidx_fuse.engine.growth_position import LIVE
from raidx_fuse.errors import NotWithLayoutError
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.costs import PlannedChange
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import Grown, Removal, Reshaping


class ByBundles(MemberChanges):
    """Those of a raidx layout."""

    any_size = True

    def __init__(self, array: RunningArray, rebundle: RebundleOperation) -> None:
        super().__init__(array)
        self.rebundle = rebundle

    def plan_adding(self, added: int, parity: str | None) -> PlannedChange[Grown]:
        if parity is not None:
            raise NotWithLayoutError(
                "the growth of a raidx array moves no parity: omit --parity and --surrogate"
            )
        return self.rebundle.plan()

    async def plan_removing(self, record: MemberRecord) -> PlannedChange[Removal | Reshaping]:
        return await self.rebundle.plan_removal(record)

    def bytes_to_join(self, role: Role | None) -> int:
        if role is None:
            return min(map(self.rebundle.needed_bytes, self.array.member_set.config.roles()))
        return self.bytes_of_spare(role)

    def bytes_of_spare(self, role: Role) -> int:
        if role in self.array.member_set.lost:
            return self.rebundle.needed_bytes(role)
        return super().bytes_of_spare(role)

    async def make_way(self) -> None:
        await self.rebundle.give_way()

    async def fit(self, role: Role, member: Member) -> None:
        await self.rebundle.make_fit(role, member)
        self.rebundle.welcome(role, member)

    def resume(self) -> None:
        self.rebundle.resume()


class ByCopies(MemberChanges):
    """Those of raid1."""

    def plan_adding(self, added: int, parity: str | None) -> PlannedChange[Grown]:
        if parity is not None:
            raise NotWithLayoutError("raid1 has no parity: omit --parity and --surrogate")
        return self.array.copies.plan(added)

    async def plan_removing(self, record: MemberRecord) -> PlannedChange[Removal | Reshaping]:
        return self.array.copies.plan_removal(record)


class ByMigration(MemberChanges):
    """Those of every other layout."""

    def plan_adding(self, added: int, parity: str | None) -> PlannedChange[Grown]:
        return self.array.grow_operation.plan(added, parity or LIVE)

    async def plan_removing(self, record: MemberRecord) -> PlannedChange[Removal | Reshaping]:
        return self.array.removal.plan(record)


def member_changes(array: RunningArray) -> dict[str, MemberChanges]:
    """Return the changes that *array* may have, by what the layout has them by."""
    if array.rebundle is not None:
        return {"bundles": ByBundles(array, array.rebundle)}
    return {"copies": ByCopies(array), "migration": ByMigration(array)}
