"""Bugs of members that come and leave: rebuild, seats, locks, tables of raidx layouts, moves."""

from __future__ import annotations

from tests.crash.mutants.mutant import DISKS, GROWTH, LOGGED, MEMBERS, MOVES, UNLOGGED, Mutant

REBUILD = "raidx_fuse/jobs/rebuild.py"
MEMBERSHIP = "raidx_fuse/membership.py"
SHARES = "raidx_fuse/shares.py"
SETTLEMENT = "raidx_fuse/settlement.py"
MOVER = "raidx_fuse/mover.py"
RESHAPE = "raidx_fuse/reshape.py"
JOURNAL = "raidx_fuse/journal.py"
WRITER = "raidx_fuse/writer.py"
READER = "raidx_fuse/reader.py"
REBUILD_TESTS = (
    "tests/engine/test_rebuild.py",
    "tests/engine/test_rebuild_passes.py",
    "tests/crash/test_passed_over.py",
    "tests/crash/test_moments.py",
)
SHARE_TESTS = ("tests/engine/test_raidx_shares.py", "tests/engine/test_raidx.py")
MOVE_TESTS = ("tests/engine/test_raidx.py", "tests/engine/test_reshape.py")
WRITES = ("tests/engine/test_locks.py", "tests/engine/test_state_machine.py")

REBUILDING = (
    Mutant(
        "checkpoint-of-a-rebuild-waits-for-no-locks",
        REBUILD,
        "        for stripe in [stripe for stripe in locks.held if stripe < passed]:",
        "        for stripe in list[int]():",
        "a stripe that comes alive below the watermark lacks the member after a cut",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "checkpoint-of-a-rebuild-not-flushed",
        REBUILD,
        "        await store.flush()\n\n        def note",
        "        def note",
        "below the durable watermark something is not durable",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "rebuild-passes-what-came-alive",
        REBUILD,
        "                end = min(came_alive)",
        "                pass",
        "a stripe that was written first while its window was read is not rebuilt",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "watermark-of-a-rebuild-off-by-one",
        REBUILD,
        "                store.watermarks[role] = max(end, start)",
        "                store.watermarks[role] = max(end, start) + 1",
        "the first stripe that is not rebuilt is read from the new member",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "writes-do-not-see-a-rebuild-pass",
        WRITER,
        "            return not comes_alive or epoch[1] == core.store.rebuild_epoch",
        "            return True",
        "a stripe comes alive without the member that became whole meanwhile",
        (*DISKS, "raid4:none:disks"),
        REBUILD_TESTS,
    ),
    Mutant(
        "writes-do-not-see-another-member-in-a-role",
        WRITER,
        "            if epoch[0] != core.store.seat_epoch:",
        "            if False:",
        "what was planned for the old member is taken as written on the new one",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "checkpoint-of-a-rebuild-forgets-the-growth",
        REBUILD,
        "            await self.core.growth.save()",
        "            pass",
        "what was dead as the stripes lie now may be alive as they lie after a cut",
        GROWTH,
        ("tests/engine/test_growth_troubles.py",),
    ),
    Mutant(
        "log-not-formed-again-after-a-rebuild",
        REBUILD,
        "        await self.core.journal.reform()",
        "        pass",
        "the log stays on fewer members than may be lost and one more",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "log-formed-again-with-records-in-it",
        JOURNAL,
        "        await self.drain()\n        self.choose_roles()",
        "        self.choose_roles()",
        "the older records are on fewer members than the log is said to be",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "seat-without-an-empty-log",
        MEMBERSHIP,
        "        await self.array.core.journal.drain()",
        "        pass",
        "a record of the member that was there before is replayed onto the new one",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "maps-not-given-to-a-new-member",
        MEMBERSHIP,
        "            await pages.save_all()",
        "            pass",
        "when it is the only one left, everything was never written",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "member-before-its-maps-are-durable",
        MEMBERSHIP,
        "        await store.flush()  # the maps before the superblock that makes it a member",
        "        pass",
        "after a cut it is a member whose maps are empty",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "job-without-locks",
        "raidx_fuse/jobs/window.py",
        "            await locks.acquire_all(stripes)\n"
        "            try:\n"
        "                progress = await self.work(stripes)\n"
        "            finally:\n"
        "                locks.release_all(stripes)",
        "            progress = await self.work(stripes)",
        "a write changes a stripe while a job reads it",
        (*DISKS, "raid5:none:scrub", "evenodd:partial:scrub"),
        ("tests/engine/test_scrub.py", *REBUILD_TESTS),
    ),
    Mutant(
        "lock-let-go-while-a-write-runs",
        WRITER,
        "                await self._write_locked(direct, logged, view)",
        "                core.locks.release_all(stripes)\n"
        "                try:\n"
        "                    await self._write_locked(direct, logged, view)\n"
        "                finally:\n"
        "                    await core.locks.acquire_all(stripes)",
        "two writes plan by the same old parity",
        (*LOGGED, *UNLOGGED),
        WRITES,
    ),
    Mutant(
        "degraded-read-without-the-lock",
        READER,
        "        await core.locks.acquire(stripe)\n        try:",
        "        core.locks.held[stripe] = core.locks.held.get(stripe)\n        try:",
        "it solves by chains that a write is changing",
        DISKS,
        WRITES,
    ),
)

TABLES = (
    Mutant(
        "table-share-before-its-record",
        JOURNAL,
        "            self.overlay.freeze()\n",
        "            await self.shares.save_as(self.shares.take_unsaved())\n"
        "            self.overlay.freeze()\n",
        "one member's share names a place, and no record is durable that the other's follows",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "table-slots-written-together",
        SHARES,
        "            if slot:\n                await self.store.flush()\n",
        "",
        "both slots of a page of the table tear",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "old-place-stays-in-the-table",
        SHARES,
        "            self._unsaved.add((int(layout.disk[cell]),"
        " int(layout.offset[cell]) // PAGE_ENTRIES))\n",
        "",
        "two places claim a chunk after a remount",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "new-place-not-in-the-table",
        SHARES,
        "            self._unsaved.add((role, chunk // PAGE_ENTRIES))",
        "            pass",
        "no place claims a chunk after a remount",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "replayed-moves-forgotten",
        "raidx_fuse/replay.py",
        "            journal.shares.redo(record.table)",
        "            pass",
        "content is at the new place, the table says the old one",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "worn-page-of-the-table-not-healed",
        SHARES,
        "        self._unsaved: set[Page] = set(claims.worn)",
        "        self._unsaved: set[Page] = set()",
        "a second tear of the page takes both slots",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "page-that-a-replay-overruled-stays",
        SETTLEMENT,
        "                        self._unsaved.add((role, page))\n",
        "",
        "once the record is gone two places claim the chunk",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "contradiction-not-reported",
        SETTLEMENT,
        "                    if cell in moved:",
        "                    if False:",
        "of two places that claim a chunk one is guessed",
        MOVES,
        SHARE_TESTS,
    ),
    Mutant(
        "share-of-an-earlier-life",
        MEMBERSHIP,
        "        await self.array.core.journal.shares.erase(role, member)",
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
        "            if epoch == core.layout_epoch:",
        "            if True:",
        "the chunk moved while its lock was waited for",
        (*MOVES, *GROWTH),
        MOVE_TESTS,
    ),
    Mutant(
        "read-from-where-a-chunk-was",
        READER,
        "if mark == core.layout.mark(*chunks) and reuse_epoch == core.reuse_epoch:",
        "if reuse_epoch == core.reuse_epoch:",
        "the chunk moved while its place was read, and another one lies there",
        (*MOVES, *GROWTH),
        MOVE_TESTS,
    ),
    Mutant(
        "read-from-a-place-that-was-given-away",
        READER,
        "if mark == core.layout.mark(*chunks) and reuse_epoch == core.reuse_epoch:",
        "if mark == core.layout.mark(*chunks):",
        "a place that a block had left was punched or given to another while it was read",
        GROWTH,
        ("tests/engine/test_growth.py", "tests/engine/test_growth_troubles.py"),
    ),
    Mutant(
        "bundles-counted-before-their-places-are-durable",
        RESHAPE,
        "        await journal.shares.save_places(cells)",
        "        await self.store.update(grown)\n"
        "        await journal.shares.save_places(cells)",
        "after a cut there are bundles that no share gives a place",
        MEMBERS,
        MOVE_TESTS,
    ),
    Mutant(
        "new-bundles-under-records-of-the-old",
        RESHAPE,
        "            core.journal.ring.hold_from(layout.stripes)\n",
        "",
        "a record of who lay there is placed or replayed over a new bundle",
        MEMBERS,
        MOVE_TESTS,
    ),
    Mutant(
        "role-given-up-with-records-that-name-it",
        RESHAPE,
        "                await journal.reform()  # no record lies on the role or names it any more",
        "                pass",
        "a replay lays a record onto whoever has the role then, or lacks the log that left",
        MEMBERS,
        MOVE_TESTS,
    ),
)

MUTANTS = (*REBUILDING, *TABLES)
