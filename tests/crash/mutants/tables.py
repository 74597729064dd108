"""Bugs of the chunk tables of raidx layouts: moves, shares, bundles."""

from __future__ import annotations

from tests.crash.mutants.mutant import GROWTH, MEMBERS, MOVES, Mutant

MEMBERSHIP = "raidx_fuse/array/membership.py"
SHARES = "raidx_fuse/store/chunk_table.py"
MOVER = "raidx_fuse/engine/move_chunks.py"
RESHAPE = "raidx_fuse/jobs/rebundle/operation.py"
JOURNAL = "raidx_fuse/journal/journal.py"
WRITER = "raidx_fuse/engine/write/write.py"
READER = "raidx_fuse/engine/read.py"
PUNCHING = "raidx_fuse/jobs/grow/hole_punching.py"
SHARE_TESTS = (
    "tests/store/test_chunk_table.py",
    "tests/store/test_chunk_places.py",
    "tests/engine/test_raidx.py",
)
MOVE_TESTS = ("tests/engine/test_raidx.py", "tests/jobs/test_rebundle.py")

TABLES = (
    Mutant(
        "table-share-before-its-record",
        JOURNAL,
        "                    self._freeze_now()\n",
        "                    await self.chunk_table.save_as(self.chunk_table.take_unsaved())\n"
        "                    self._freeze_now()\n",
        "one member's share names a place, and no record is durable that the other's follows",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "table-slots-written-together",
        SHARES,
        "            if slot:\n                await self.member_set.flush()\n",
        "",
        "both slots of a page of the table tear",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "old-place-stays-in-the-table",
        SHARES,
        "            home = Role(int(layout.disk[cell]))\n"
        "            self._unsaved.add((home, int(layout.offset[cell]) // PAGE_ENTRIES))\n",
        "",
        "two places claim a chunk after a remount",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "new-place-not-in-the-table",
        SHARES,
        "            self._unsaved.add((role, chunk // PAGE_ENTRIES))\n        self._written",
        "            pass\n        self._written",
        "no place claims a chunk after a remount",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "replayed-moves-forgotten",
        "raidx_fuse/journal/recovery.py",
        "        journal.chunk_table.redo(record.table)",
        "        pass",
        "content is at the new place, the table says the old one",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "worn-page-of-the-table-not-healed",
        SHARES,
        "        self._unsaved: set[Page] = set(scan.worn)",
        "        self._unsaved: set[Page] = set()",
        "a second tear of the page takes both slots",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "page-that-a-replay-overruled-stays",
        SHARES,
        "                        self.unsaved.add((role, page))\n",
        "",
        "once the record is gone two places claim the chunk",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "contradiction-not-reported",
        SHARES,
        "                    if cell in moved:",
        "                    if False:",
        "of two places that claim a chunk one is guessed",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "share-of-an-earlier-life",
        MEMBERSHIP,
        "        await self.array.context.journal.chunk_table.erase(role, member)",
        "        pass",
        "a disk that was in this array before brings newer generations of its share",
        ("raidx-parity:partial:disks", "raidx-copy:full:disks"),
        SHARE_TESTS,
    ),
    Mutant(
        "two-moves-to-one-place",
        MOVER,
        "        promised |= places",
        "        pass",
        "two movers whose records are on their way take the same free chunk",
        MOVES,
        MOVE_TESTS,
    ),
    Mutant(
        "move-leaves-what-lay-there",
        MOVER,
        "            elif role in zero_roles:",
        "            elif False:",
        "a chunk that was never written finds another one's bytes where zeros are relied on",
        MOVES,
        MOVE_TESTS,
    ),
    Mutant(
        "write-to-where-a-chunk-was",
        WRITER,
        "            if epoch == context.layout_epoch:\n                break",
        "            if True:\n                break",
        "the chunk moved while its lock was waited for",
        (*MOVES, *GROWTH),
        ("tests/jobs/test_restripe.py",),
    ),
    Mutant(
        "read-from-where-a-chunk-was",
        READER,
        "if mark == context.layout.mark(*chunks):",
        "if True:",
        "the chunk moved while its place was read, and another one lies there",
        (*MOVES, *GROWTH),
        MOVE_TESTS,
    ),
    Mutant(
        "read-from-a-place-that-was-given-away",
        PUNCHING,
        "            await self.context.gate.passed()\n",
        "",
        "a place that a block had left was punched or given to another while it was read",
        GROWTH,
        ("tests/crash/test_places_given_away.py", "tests/jobs/test_growth.py"),
    ),
    Mutant(
        "bundles-counted-before-their-places-are-durable",
        RESHAPE,
        "        await self.context.journal.chunk_table.save_places(cells)\n",
        "        await self._count_bundles(bundles)\n"
        "        await self.context.journal.chunk_table.save_places(cells)\n",
        "after a cut there are bundles that no share gives a place",
        MEMBERS,
        MOVE_TESTS,
    ),
    Mutant(
        "new-bundles-under-records-of-the-old",
        RESHAPE,
        "                    context.journal.ring.hold_from(Stripe(layout.stripes))\n",
        "",
        "a record of who lay there is placed or replayed over a new bundle",
        MEMBERS,
        MOVE_TESTS,
    ),
    Mutant(
        "role-given-up-with-records-that-name-it",
        RESHAPE,
        "                    came_from=self._without,\n                    renumbers=True,\n",
        "                    came_from=self._without,\n",
        "a replay lays a record onto whoever has the role then, or lacks the log that left",
        MEMBERS,
        MOVE_TESTS,
    ),
    Mutant(
        "places-of-a-smaller-member-computed-as-of-the-larger-one",
        "raidx_fuse/store/chunk_table.py",
        "        self.layout.forget_initial_member(role)\n",
        "",
        "a start computes places that the role does not have any more",
        ("raidx-parity:partial:disks", "raidx-copy:none:disks"),
        ("tests/jobs/test_small_spares.py",),
    ),
)

MUTANTS = (*TABLES,)
