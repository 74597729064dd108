"""Bugs of checksums: sums that are wrong about right bytes, and rot that is believed."""

from __future__ import annotations

from tests.crash.mutants.mutant import Mutant

SUMS = "raidx_fuse/store/sums.py"
MEND = "raidx_fuse/engine/write/mend.py"
TESTS = ("tests/engine/test_sums_doubted.py", "tests/engine/test_sums.py")
LOGGED = ("raid5+sums:partial:writes", "raid1+sums:full:writes", "raid0+sums:full:writes")
PAST = ("raid0+sums:partial:writes", "raid5+sums:none:writes", "raid5+sums:partial:streams")
BESIDE = ("raid0+sums:none:beside", "raid5+sums:none:beside", "raid1+sums:none:beside")
OFF = ("raid5+sums:none:off", "raid1+sums:none:off", "rdp+sums:partial:off")
REPLACED = ("raid5+sums:partial:replaces", "rdp+sums:full:replaces", "raid1+sums:none:replaces")
GROWN = ("raid5+sums:partial:growth", "rdp+sums:none:growth", "raid0+sums:full:growth")
RESTRIPED = ("raid5+sums:none:restripe", "raid0+sums:none:restripe", "raid1+sums:full:restripe")
LEFT = ("raid5+sums:partial:leave", "raid1+sums:full:copies", "evenodd+sums:full:shrink")
ROT = ("raid5+sums:partial:rot", "rdp+sums:full:rot", "raid1+sums:none:rot")

MUTANTS = (
    Mutant(
        "growth-saves-its-position-before-the-sums",
        "raidx_fuse/engine/growth_position.py",
        "                await self._member_set.sums.save()\n",
        "                pass\n",
        "blocks have their new places, where the sums on the members know nothing of them",
        GROWN,
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "restripe-moves-its-watermark-before-the-sums",
        "raidx_fuse/jobs/restripe/job.py",
        "            await context.cells.save_sums()\n",
        "",
        "chunks have their new places, and the sums there are those of what lay there before",
        RESTRIPED,
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "tables-count-before-they-are-copied",
        "raidx_fuse/jobs/move_sums.py",
        "        return sums is not None and bool(self._copies) and not",
        "        return False and not",
        "what was saved since the first copy is missing in a copy that counts",
        (*LEFT, *GROWN),
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "tables-overwrite-slots-that-count",
        "raidx_fuse/jobs/move_sums.py",
        "        if first is not None and first != before:",
        "        if False:",
        "the table of a member that leaves is saved over the copy that was made there",
        LEFT,
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "tables-do-not-follow-their-roles",
        SUMS,
        "            if old is not None:\n                self._views.append(views[old])",
        "            if old is not None:\n                old = len(self._views)\n"
        "                self._views.append(views[old])",
        "where a role gets another number, its pages are compared with sums of another one",
        LEFT,
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "tail-moves-before-the-sums",
        "raidx_fuse/journal/journal.py",
        "        await self.cells.save_sums()\n",
        "",
        "what the log does not redo any more does not fit the old sums",
        LOGGED,
        TESTS,
    ),
    Mutant(
        "unmarked-before-the-sums",
        "raidx_fuse/store/dirty_bitmap.py",
        "            await self.save_sums()\n",
        "",
        "what was written past the log does not fit, and no mark says so",
        PAST,
        TESTS,
    ),
    Mutant(
        "sums-of-marked-regions-believed",
        "raidx_fuse/array/array.py",
        "        if member_set.sums is not None:  # of what was being written",
        "        if False:  # of what was being written",
        "a write that a cut has left half done is taken for rot, and rolled back",
        PAST,
        TESTS,
    ),
    Mutant(
        "sums-noted-behind-the-write",
        SUMS,
        "        self._flights.append(flight)\n        try:\n",
        "        for role, first, end in flight.runs:\n"
        "            self._set(role, first, 1, end - first)\n"
        "        flight.runs = []\n"
        "        self._flights.append(flight)\n        try:\n",
        "a write in flight has a sum that fits neither the old nor the new bytes",
        (*BESIDE, *LOGGED),
        TESTS,
    ),
    Mutant(
        "small-write-keeps-the-old-sums",
        "raidx_fuse/engine/write/small.py",
        "                        sums.note(role, position, buffers, length)\n",
        "                        pass\n",
        "what was written past the log is taken for rot",
        PAST,
        TESTS,
    ),
    Mutant(
        "write-in-flight-is-judged",
        SUMS,
        "        self._flights.append(flight)\n        try:\n",
        "        flight.runs = []\n        self._flights.append(flight)\n        try:\n",
        "a read beside a write in place is taken for rot",
        (*BESIDE, *PAST),
        TESTS,
    ),
    Mutant(
        "what-is-read-at-once-is-believed",
        SUMS,
        "        return not known or known == sum_of(buffers[0], page, self._seeds[role])\n",
        "        return True\n",
        "a rotten page is read",
        ROT,
        TESTS,
    ),
    Mutant(
        "what-is-read-is-believed",
        SUMS,
        "[first + at for at in np.flatnonzero(wrong).tolist()] if wrong.any() else []",
        "[]",
        "a rotten page goes into a rebuild, into parity, to a reader that waits",
        ROT,
        TESTS,
    ),
    Mutant(
        "resync-gives-no-sums",
        "raidx_fuse/jobs/resync.py",
        "            sums.note_unverified((await fill_sums(context, live)).total())\n",
        "            pass\n",
        "what was marked at a crash is never verified again",
        PAST,
        TESTS,
    ),
    Mutant(
        "resync-gives-sums-before-it-checks",
        "raidx_fuse/jobs/resync.py",
        "        await heal_rot(context, live)\n        await resync.check(live)\n",
        "        await fill_sums(context, live)\n        await resync.check(live)\n",
        "torn bytes get sums, and those that are right contradict them",
        OFF,
        TESTS,
    ),
    Mutant(
        "resync-heals-no-rot",
        "raidx_fuse/jobs/resync.py",
        "        await heal_rot(context, live)\n",
        "",
        "bytes that rotted beside a write in flight are taken as they are",
        OFF,
        TESTS,
    ),
    Mutant(
        "sums-of-marked-regions-saved-as-none",
        SUMS,
        "            entries = np.where(entries == 0, past, entries)\n",
        "            pass\n",
        "a second crash, before the resync, takes what rotted beside the first for right",
        OFF,
        TESTS,
    ),
    Mutant(
        "resync-sums-not-saved",
        "raidx_fuse/jobs/resync.py",
        "        await self.context.cells.save_sums()\n",
        "",
        "the mark goes, and the sums on the members are of before the crash",
        PAST,
        TESTS,
    ),
    Mutant(
        "rebuild-sums-not-saved",
        "raidx_fuse/jobs/rebuild.py",
        "        await self.context.cells.save_sums()\n",
        "",
        "below a durable mark the member has bytes that do not fit",
        ("raid5+sums:partial:disks", "raid1+sums:none:disks", "raid5+sums:none:returns"),
        TESTS,
    ),
    Mutant(
        "discard-keeps-the-sums",
        "raidx_fuse/engine/discard.py",
        "await sums.forget((role, at, (), size) for role in left for at in left[role])",
        "pass",
        "what is not live any more has sums of bytes that are gone",
        ("raid5+sums:partial:discards", "raid0+sums:full:discards", "raid1+sums:none:discards"),
        TESTS,
    ),
    Mutant(
        "mended-with-what-does-not-fit",
        MEND,
        "        if sums is None:\n            return contents\n",
        "        return contents\n",
        "where sums are wrong, or more is rotten than the code can tell, right bytes are replaced",
        ROT,
        TESTS,
    ),
    Mutant(
        "solved-and-not-compared",
        "raidx_fuse/engine/read_cells.py",
        "        if self._solved and self._compares and",
        "        if False and self._compares and",
        "what rotten members give back is read",
        ROT,
        TESTS,
    ),
    Mutant(
        "holder-counts-before-it-is-filled",
        "raidx_fuse/jobs/rebuild.py",
        "            await member_set.sums.save_all()\n",
        "            pass\n",
        "tables that the rebuilt member lacks are read from it, and are on one member less",
        ("raid5+sums:partial:disks", "raid1+sums:none:disks", "rdp+sums:full:disks"),
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "new-member-without-sums",
        SUMS,
        "np.flatnonzero(used).tolist())\n        await self.save()\n",
        "np.flatnonzero(used).tolist()[:0])\n",
        "there is one copy less than the layout can lose members",
        REPLACED,
        TESTS,
    ),
    Mutant(
        "tables-take-room-unasked",
        SUMS,
        "            self.reserve(self._dirty)\n",
        "",
        "a table that is saved on a full host costs its member",
        LOGGED[:1],
        ("tests/engine/test_enospc.py",),
    ),
    Mutant(
        "judged-by-what-was-read",
        SUMS,
        "            if known != before or self._is_flying(role, page):\n                continue\n"
        "            if not isinstance(content",
        "            if not isinstance(content",
        "a write that came while it was read is taken for rot",
        BESIDE,
        TESTS,
    ),
)
