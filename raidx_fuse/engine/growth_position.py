"""The growth position: how far a growth has come, in memory and durably (mcpod paper, 3.5).

    stripe   0 ......... saved ........ migrated ........ end        growing: migrated rises
             [ checkpointed | copied only | as before     ]
             0 ......... migrated ........ saved ........ end        going back: migrated falls

Which of the two places of a block counts: `ElasticLayout.place` (layouts/placements/elastic.py).
A block is copied to a place that is unwritten by the last durable checkpoint, so both copies are
valid until one is written. A crash between *saved* and *migrated* returns to the old shape with its
parity, because the parity of a stripe is the same in both shapes. Laws:

1. A write that changes a cell that moved in a stripe of *unsaved* waits for `save` first, because
   only such a write makes the old copy stale. The cell may be a parity that the write updates: if a
   surrogate has the parity, every write needs a save. Cells that stay need none.
2. `save` flushes the copies and their sums, then writes the position into every superblock. This
   superblock round is complete before any write that relied on it begins.
3. A place that a block has left is written again only after that position was saved. New blocks at
   such places belong to the image from the end of the growth on, or never if it was cancelled. A
   resync, which fills unwritten places with zeros, ends before the next block moves.
4. A copy goes to its place past the log only in stripes of which no record may be redone
   (journal/journal.py, law 3): an older record of the same place would undo the copy.
5. Data without its parity is logged only where its places are durable: not in stripes of *unsaved*.
   The window of a growth settles its stripes before it moves them (jobs/job.py), so recovery finds
   every unsettled stripe where the record has its data, in whichever shape it starts.
"""

from __future__ import annotations

from dataclasses import replace

import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.format.shapes import MIGRATED
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.registry import PARITY_WAYS
from raidx_fuse.store.member_set import MemberSet

PARITY = "parity"
LIVE, PIGGYBACK, SURROGATE = PARITY_WAYS
JOB_KEY = "grow"
PARITY_WORDS = {
    LIVE: "",
    PIGGYBACK: "; old copies stay part of the parity",
    SURROGATE: "; parity moves to the surrogate, and its present member becomes a spare",
}


def parity_way(role: str | None, parity: str | None, surrogate: object) -> str | None:
    """Return how parity follows a growth, from the options that a user gave; None without them.

    *role* is what the members are added as, None for a growth. Raises UsageError for a combination
    that is not possible.
    """
    if role is not None and (parity or surrogate):
        raise UsageError("parity and surrogate apply to a growth, not to adding a spare")
    if parity not in (None, LIVE, PIGGYBACK):
        raise UsageError(f"unknown way for parity: {parity!r}; choose live or piggyback")
    if surrogate is None:
        return parity
    if parity is not None:
        raise UsageError("parity and surrogate exclude each other: parity moves to the surrogate")
    return SURROGATE


class GrowthPosition:
    """The position of the growth of *layout*; *unsaved* are the stripes between both positions.

    *parity* is how parity follows (jobs/grow/copy.py). *checkpoints* counts the positions that were
    made durable.
    """

    __slots__ = ("_member_set", "_saving", "checkpoints", "layout", "parity", "saved", "unsaved")

    def __init__(self, member_set: MemberSet, layout: ElasticLayout) -> None:
        self.layout = layout
        self.parity: str = member_set.config.params.get(PARITY, LIVE)
        self.saved = layout.migrated
        self.unsaved = range(0)
        self.checkpoints = 0
        self._member_set = member_set
        self._saving = trio.Lock()

    def move_to(self, stripe: Stripe) -> None:
        """Make *stripe* the first in the old shape; the copies that this needs are written."""
        self.layout.migrate_to(stripe)
        self._derive()

    def _derive(self) -> None:
        self.unsaved = range(*sorted((self.saved, self.layout.migrated)))

    def threatens(self, stripe: Stripe, cells: int) -> bool:
        """Return True if writing the data cells *cells* of *stripe* needs a `save` first (law 1).

        The write also changes the parities of these cells.
        """
        if stripe not in self.unsaved:
            return False
        moved, code = self.layout.moved_cells(stripe), self.layout.code
        return bool(moved & cells) or any(
            moved >> code.data_count + parity & 1 and support & cells
            for parity, support in enumerate(code.support)
        )

    def lets_parity_follow(self, stripe: Stripe) -> bool:
        """Return whether the log may get data of *stripe* without its parity (law 5)."""
        return self.parity == LIVE and stripe not in self.unsaved

    async def save(self) -> None:
        """Make the position durable, together with the copies before it. Raises RaidxError."""
        async with self._saving:
            stripe = self.layout.migrated
            if stripe == self.saved:
                return
            if self._member_set.sums is not None:
                await self._member_set.sums.tables.save()
            await self._member_set.flush()
            await self._member_set.update(
                lambda config: replace(config, params={**config.params, MIGRATED: stripe})
            )
            self.checkpoints += 1
            self.saved = stripe
            self._derive()
