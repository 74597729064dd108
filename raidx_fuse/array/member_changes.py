"""How members join and leave an array: what `add-disk` and `remove-disk` do, and what it costs.

    bundles    raidx layouts: chunks move one by one, and members have any size
    copies     raid1: a new member is one more copy, and is rebuilt
    migration  all others: a growth, if the layout has one; it is undone, or a restripe, to leave

The layout says which it is (`LayoutInfo.members_by`); a restripe may change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raidx_fuse.array import estimate
from raidx_fuse.array.services import MemberChanges, RunningArray
from raidx_fuse.engine.growth_position import LIVE, SURROGATE, parity_way
from raidx_fuse.errors import NotWithLayoutError, RaidxError
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        BundlePlan,
        CopyPlan,
        Grown,
        GrowthPlan,
        MemberPlan,
        Removal,
        ReshapePlan,
        Reshaping,
    )


class ByBundles(MemberChanges):
    """Those of a raidx layout."""

    any_size = True

    def __init__(self, array: RunningArray, rebundle: RebundleOperation) -> None:
        super().__init__(array)
        self.rebundle = rebundle

    def require_addable(self, added: int, parity: str | None, surrogate: str | None) -> None:
        if (parity, surrogate) != (None, None):
            raise NotWithLayoutError(
                "the growth of a raidx array moves no parity: omit --parity and --surrogate"
            )
        self.rebundle.require_growable()

    async def cost_of_adding(self, sizes: Sequence[int], parity: str) -> BundlePlan:
        return await estimate.of_adding(self.array, sizes)

    async def add(self, members: Sequence[Member], parity: str, surrogate: Member | None) -> Grown:
        return await self.rebundle.add(members)

    async def cost_of_removing(self, record: MemberRecord) -> BundlePlan:
        return await estimate.of_removing(self.array, record)

    async def remove(self, record: MemberRecord) -> Removal:
        return await self.rebundle.remove(record)

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

    def require_addable(self, added: int, parity: str | None, surrogate: str | None) -> None:
        if (parity, surrogate) != (None, None):
            raise _no_parity()
        self.array.copies.wider(added)

    async def cost_of_adding(self, sizes: Sequence[int], parity: str) -> CopyPlan:
        return await estimate.of_copying(self.array, len(sizes))

    async def add(self, members: Sequence[Member], parity: str, surrogate: Member | None) -> Grown:
        if (parity, surrogate) != (LIVE, None):
            raise _no_parity()
        return await self.array.copies.add(members)

    async def cost_of_removing(self, record: MemberRecord) -> MemberPlan:
        self.array.copies.require_removable(record)
        does = f"removes {self.array.membership.path_of(record)}"
        return await estimate.of_member_change(self.array, does, None, excludes=True)

    async def remove(self, record: MemberRecord) -> Removal:
        return await self.array.copies.remove(record)


def _no_parity() -> RaidxError:
    return NotWithLayoutError("raid1 has no parity: omit --parity and --surrogate")


class ByMigration(MemberChanges):
    """Those of every other layout."""

    def require_addable(self, added: int, parity: str | None, surrogate: str | None) -> None:
        self.array.grow_operation.wider(added, parity_way(None, parity, surrogate))

    async def cost_of_adding(self, sizes: Sequence[int], parity: str) -> GrowthPlan:
        added = len(sizes) - (parity == SURROGATE)
        layout = self.array.grow_operation.wider(added, parity)
        return await estimate.of_growing(self.array, layout, parity)

    async def add(self, members: Sequence[Member], parity: str, surrogate: Member | None) -> Grown:
        return await self.array.grow_operation.begin(members, parity, surrogate)

    async def cost_of_removing(self, record: MemberRecord) -> ReshapePlan:
        return await estimate.of_leaving(self.array, record)

    async def remove(self, record: MemberRecord) -> Removal | Reshaping:
        return await self.array.removal.begin(record)


def member_changes(array: RunningArray) -> dict[str, MemberChanges]:
    """Return the changes that *array* may have, by what the layout has them by."""
    if array.rebundle is not None:
        return {"bundles": ByBundles(array, array.rebundle)}
    return {"copies": ByCopies(array), "migration": ByMigration(array)}
