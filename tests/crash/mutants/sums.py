"""Bugs of checksums: sums that are wrong about right bytes, and rot that is believed."""

from __future__ import annotations

from tests.crash.mutants.mutant import Mutant

SUMS = "raidx_fuse/store/sums.py"
TABLES = "raidx_fuse/store/sum_tables.py"
MEND = "raidx_fuse/engine/write/mend.py"
TESTS = ("tests/engine/test_sums_doubted.py", "tests/engine/test_sums.py")
TAIL_TESTS = ("tests/engine/test_sum_tail.py",)
LOGGED = ("raid5+sums:partial:writes", "raid1+sums:full:writes", "raid0+sums:full:writes")
PAST = ("raid0+sums:partial:writes", "raid5+sums:none:writes", "raid5+sums:partial:streams")
BESIDE = ("raid0+sums:none:beside", "raid5+sums:none:beside", "raid1+sums:none:beside")
EXCESS = ("raid5+sums:partial:excess", "rdp+sums:full:excess", "raid5+sums:none:excess")
FULL = ("raid5+sums:partial:full", "raid1+sums:none:full", "rdp+sums:full:full")
OFF = ("raid5+sums:none:off", "raid1+sums:none:off", "rdp+sums:partial:off")
REPLACED = ("raid5+sums:partial:replaces", "rdp+sums:full:replaces", "raid1+sums:none:replaces")
GROWN = ("raid5+sums:partial:growth", "rdp+sums:none:growth", "raid0+sums:full:growth")
RESTRIPED = ("raid5+sums:none:restripe", "raid0+sums:none:restripe", "raid1+sums:full:restripe")
LEFT = ("raid5+sums:partial:leave", "raid1+sums:full:copies", "evenodd+sums:full:shrink")
ABSENT = ("raid5+sums:partial:absent", "rdp+sums:full:absent", "raid5+sums:none:absent")
ABSENT_TESTS = ("tests/engine/test_sums_absent.py",)
ROT = ("raid5+sums:partial:rot", "rdp+sums:full:rot", "raid1+sums:none:rot")
MOVED = (
    "raidx-parity+sums:partial:moves",
    "raidx-copy+sums:full:moves",
    "raidx-parity+sums:none:members",
    "raidx-zero+sums:full:members",
    "raidx-copy+sums:partial:members",
)

LARGER = ("raid5+sums:partial:larger", "rdp+sums:none:larger", "raid0+sums:full:larger")
ROOM = ("raid5+sums:partial:room", "raid1+sums:none:room", "raid0+sums:full:room")

MUTANTS = (
    Mutant(
        "tables-of-more-data-not-copied",
        "raidx_fuse/jobs/move_sums.py",
        "            self._copies = self._new_copies(before, self._stored, came_from)\n"
        "        else:",
        "            pass\n        else:",
        "after a cut the pages of before have no sums",
        LARGER,
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "data-where-tables-were-taken-to-read-as-zero",
        "raidx_fuse/format/configuration/sums.py",
        "        members = tuple(replace(record, reads_zero=False) for record in members)\n",
        "        pass\n",
        "sums show around a first write",
        ROOM,
        ("tests/array/test_room_for_sums.py",),
    ),
    Mutant(
        "growth-saves-its-position-before-the-sums",
        "raidx_fuse/engine/growth_position.py",
        "                await self._member_set.sums.tables.save()\n",
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
        TABLES,
        "            if old is not None and len(loaded[old]) == pages:\n",
        "            if old is not None and len(loaded[old]) == pages:\n"
        "                old = len(self.views)\n",
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
        "            self.tables.put(role, first, 1, end - first)\n"
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
        ("raid1+sums:none:rot", "raid0+sums:none:remounts", "raid5+sums:none:rot"),
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
        "        return not known or known == sum_of(buffers[0], page, tables.seeds[role])\n",
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
        TABLES,
        "    kept: Values = np.where(values == 0, past, values)\n",
        "    kept: Values = values\n",
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
        "await sums.forget((role, at, (), size) for role, at in (*places, *absent))",
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
        EXCESS,
        TESTS,
    ),
    Mutant(
        "sum-is-wrong-if-all-else-may-be",
        MEND,
        "            if same and await are_known(self.context, sums, stripe, terms, at):\n",
        "            if same:\n",
        "the same bit flipped in a page, and in a parity without a sum, makes rot right",
        EXCESS,
        TESTS,
    ),
    Mutant(
        "solved-and-not-compared",
        "raidx_fuse/engine/read_cells.py",
        "        if self._solved and self._compares and",
        "        if False and self._compares and",
        "what rotten members give back is read",
        EXCESS,
        TESTS,
    ),
    Mutant(
        "holder-counts-before-it-is-filled",
        "raidx_fuse/jobs/rebuild.py",
        "            await member_set.sums.tables.save_all()\n",
        "            pass\n",
        "tables that the rebuilt member lacks are read from it, and are on one member less",
        ("raid5+sums:partial:disks", "raid1+sums:none:disks", "rdp+sums:full:disks"),
        ("tests/array/test_sums_kept.py",),
    ),
    Mutant(
        "new-member-without-sums",
        TABLES,
        "np.flatnonzero(used).tolist())\n            self._tails[role].is_due = True\n",
        "np.flatnonzero(used).tolist()[:0])\n",
        "there is one copy less than the layout can lose members",
        REPLACED,
        TESTS,
    ),
    Mutant(
        "tables-take-room-unasked",
        TABLES,
        "        self.reserve(self._dirty | self._whole)\n",
        "",
        "a table that is saved on a full host costs its member",
        FULL,
        ("tests/engine/test_enospc.py",),
    ),
    Mutant(
        "absent-members-keep-old-sums",
        "raidx_fuse/store/cells.py",
        "                role for role, _ in by_role(member_set.queues) if role not in queues\n",
        "",
        "what was logged while a member was absent contradicts its sums when it is given back",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "writes-give-absent-members-no-sums",
        "raidx_fuse/engine/write/prepare.py",
        "cells & context.kept_sums(piece.stripe) if context.member_set.sums is not None else 0",
        "0",
        "what was written while a member was absent contradicts its sums when it is given back",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "absent-sums-before-the-record",
        "raidx_fuse/engine/write/prepare.py",
        "        content = piece.content(view, cell, low, high)\n"
        "        work.writes.append((role, position + low, [content], high - low))\n"
        "    return kept",
        "        content = piece.content(view, cell, low, high)\n"
        "        assert context.member_set.sums is not None\n"
        "        context.member_set.sums.note(role, position + low, [content], high - low)\n"
        "        work.writes.append((role, position + low, [content], high - low))\n"
        "    return kept",
        "sums are saved of a record that the cut drops",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "rebuilt-and-not-verified",
        "raidx_fuse/jobs/verify_rebuilt.py",
        "    for target, index, page in wrong:\n",
        "    for target, index, page in wrong[:0]:\n",
        "what rotten survivors without sums give back gets sums of its own",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "caught-up-and-not-verified",
        "raidx_fuse/jobs/rebuild.py",
        "            given += await verify_rebuilt(",
        "            if self.was_away:\n"
        "                unverified = self._writes(strips, spaces, targets)\n"
        "                await context.cells.write(join(unverified), Cover.VACANT)\n"
        "                continue\n"
        "            given += await verify_rebuilt(",
        "a member that returns loses bytes that only it has, to rotten survivors without sums",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "unverified-pages-get-sums",
        "raidx_fuse/jobs/verify_rebuilt.py",
        "            found[target][index, page] = 0\n",
        "            pass\n",
        "wrong bytes are believed from then on",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "solved-for-absent-members-and-not-compared",
        "raidx_fuse/engine/read_cells.py",
        "                if is_absent and not context",
        "                if is_absent or not context",
        "a degraded read returns what rotten survivors without sums give back",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "nobody-is-left-out",
        "raidx_fuse/engine/contradictions.py",
        "        if sums.fits(role, begin + at, content.data):\n",
        "        if False:\n",
        "what other survivors give back is lost with those that lie",
        ABSENT,
        ABSENT_TESTS,
    ),
    Mutant(
        "unverified-bytes-get-sums",
        "raidx_fuse/store/overlay.py",
        "        self.unverified.update(places)\n",
        "        pass\n",
        "old bytes that nothing confirms are believed once a part of their page is written",
        ABSENT[:1],
        ABSENT_TESTS,
    ),
    Mutant(
        "part-of-a-page-written-beside-rot",
        "raidx_fuse/engine/write/write.py",
        "sums is None or await give_sum(context, sums, stripe, cell, low)",
        "True",
        "rot that the code could tell gets a sum with the new part of its page",
        ABSENT[:1],
        ABSENT_TESTS,
    ),
    Mutant(
        "discard-keeps-the-sums-of-absent-members",
        "raidx_fuse/engine/discard.py",
        "(*places, *absent)",
        "places",
        "what is not live any more has sums",
        ABSENT[:1],
        ABSENT_TESTS,
    ),
    Mutant(
        "judged-without-the-lock",
        MEND,
        "            await context.locks.acquire(found[0])\n            try:\n"
        "                if epoch == context.layout_epoch:\n"
        "                    await self.mend((found[0],))\n                    return\n"
        "            finally:\n                context.locks.release(found[0])\n",
        "            await self.mend((found[0],))\n            return\n",
        "a page is solved from a stripe that a write is changing",
        ("raid5+sums:none:rot", "rdp+sums:none:rot", "raid5+sums:partial:rot"),
        TESTS,
    ),
    Mutant(
        "sums-set-with-records",
        "raidx_fuse/journal/journal.py",
        "            overlay.put(role, offset, view[at : at + size])\n",
        "            overlay.put(role, offset, view[at : at + size])\n"
        "            sums, part = self.member_set.sums, [view[at : at + size]]\n"
        "            if sums is not None and sums.is_ready([(role, offset, part, size)]):\n"
        "                sums.note(role, offset, part, size)\n",
        "a table is saved with the sum of a record that a cut drops",
        LOGGED,
        TESTS,
    ),
    Mutant(
        "tail-begins-anew-before-its-table-is-durable",
        TABLES,
        "        await self.member_set.sync()  # before the first sector is overwritten\n",
        "",
        "a cut leaves old pages of the table, and the tail does not have their sums any more",
        LOGGED,
        TAIL_TESTS,
    ),
    Mutant(
        "tail-is-not-laid-over-its-table",
        TABLES,
        "        tail.lay_over(sums, newest, first)\n",
        "",
        "what was saved to the tail is forgotten by the next start",
        LOGGED,
        TAIL_TESTS,
    ),
    Mutant(
        "tail-counts-whatever-its-generation",
        "raidx_fuse/store/sum_tail.py",
        ">= newest[at // SUMS_PER_SECTOR]",
        ">= 0",
        "sums of an earlier turn come back over those of the table",
        LOGGED,
        TAIL_TESTS,
    ),
    Mutant(
        "table-is-saved-with-the-generation-of-the-tail",
        TABLES,
        "generations[at] = tail.new_generation()",
        "generations[at] = tail.generation",
        "older sums that the tail has come back over a page of the table that was saved whole",
        LOGGED,
        TAIL_TESTS,
    ),
    Mutant(
        "lost-part-of-a-tail-is-passed-over",
        TABLES,
        "        if tail.take(copies, others):\n            return\n",
        "        tail.take(copies, others)\n        return\n",
        "sums of the table count of which newer ones were lost",
        ROT,
        TAIL_TESTS,
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
    Mutant(
        "moved-chunk-loses-its-sums",
        "raidx_fuse/store/chunk_table.py",
        "        return {place for place in left if not self._has_content(place)}\n",
        "        return left\n",
        "rot of a chunk that has moved is read",
        MOVED,
        ("tests/jobs/test_rebundle.py",),
    ),
    Mutant(
        "places-that-chunks-left-keep-their-sums",
        "raidx_fuse/journal/journal.py",
        "        await self.chunk_table.forget_sums(left)\n",
        "",
        "what has moved away still says what lies there",
        MOVED,
        ("tests/jobs/test_rebundle.py",),
    ),
    Mutant(
        "moves-are-in-the-table-before-the-sums",
        "raidx_fuse/journal/journal.py",
        "        if left and self.member_set.sums is not None:\n"
        "            await self._barrier()\n",
        "",
        "after a cut nobody knows any more that a chunk has left a place, which keeps its sums",
        MOVED,
        ("tests/crash/test_moments.py",),
    ),
    Mutant(
        "replay-forgets-where-chunks-have-been",
        "raidx_fuse/store/chunk_table.py",
        "            self._left |= recovery.left\n",
        "",
        "a place that a redone move leaves keeps its sums",
        MOVED,
        ("tests/jobs/test_rebundle.py",),
    ),
    Mutant(
        "new-bundles-are-in-the-table-before-the-sums",
        "raidx_fuse/store/chunk_table.py",
        "        await self._end_left()  # the moves that these pages contain\n        while",
        "        await self.member_set.flush()\n        while",
        "after a cut nobody knows any more that a chunk has left a place, which keeps its sums",
        MOVED,
        ("tests/jobs/test_rebundle.py",),
    ),
    Mutant(
        "rebuilt-over-sums-of-before",
        "raidx_fuse/array/membership.py",
        "        await self.array.context.journal.chunk_table.forget_role(role, changed=changed)\n",
        "",
        "what had moved on or off a member that is lost keeps its sums at the former places",
        MOVED,
        ("tests/jobs/test_rebundle.py",),
    ),
    Mutant(
        "tables-stay-with-a-member-that-left",
        "raidx_fuse/jobs/rebundle/operation.py",
        "                    came_from=self._without,\n",
        "",
        "there is one copy less than the layout can lose members",
        MOVED,
        ("tests/jobs/test_rebundle.py",),
    ),
)
