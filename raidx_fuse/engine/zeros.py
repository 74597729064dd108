"""Which members can be relied on to read as zero where nothing was written."""

from __future__ import annotations

from dataclasses import replace

from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.member_set import MemberSet


class Zeros:
    """*roles*: those whose unwritten places can be relied on to read as zero, *all_roles*: all can.

    There are none while a resync is due: a write from before the crash may have reached a place
    whose bit in the written map was never set.
    """

    __slots__ = ("_dirty_bitmap", "_member_set", "all_roles", "roles")

    def __init__(self, member_set: MemberSet, dirty_bitmap: DirtyBitmap) -> None:
        self._member_set = member_set
        self._dirty_bitmap = dirty_bitmap
        self.roles: frozenset[int] = frozenset()
        self.all_roles = False

    def recorded(self) -> frozenset[int]:
        """Return the roles whose superblock records say that unwritten places read as zero.

        The set is empty during a restripe. There a place becomes unwritten as soon as its chunk has
        moved, so it need not read as zero; a member that took a role meanwhile received what
        was at the place then.
        """
        if isinstance(self._member_set.layout, RestripeLayout):
            return frozenset()
        return frozenset(r.role for r in self._member_set.config.members if r.reads_zero)

    def note(self) -> None:
        """Take over what the superblocks, and the regions that await a resync, say now."""
        pending = self._dirty_bitmap.pending_regions()
        self.roles = frozenset() if pending else self.recorded()
        self.all_roles = self.roles.issuperset(self._member_set.config.roles())

    def distrust(self) -> None:
        """Assume of no member, now or after a remount, that its unwritten places read as zero."""
        self._member_set.change(
            lambda config: replace(
                config, members=tuple(replace(r, reads_zero=False) for r in config.members)
            )
        )
        self.note()
        self._member_set.publish_soon()
