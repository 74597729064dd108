"""Bugs of late writes, of members that fail before their resync, and of what a start believes."""

from __future__ import annotations

from tests.crash.mutants.mutant import (
    DISKS,
    HANGS,
    LOGGED,
    REFUSALS,
    REMOUNTS,
    SQUEEZE,
    UNLOGGED,
    Mutant,
)

BASE = "raidx_fuse/members/base.py"
NEWEST = "raidx_fuse/store/member_set.py"
QUEUE = "raidx_fuse/store/queue.py"
PAGESTORE = "raidx_fuse/store/page_store.py"
DIRTY = "raidx_fuse/store/dirty_bitmap.py"
RING = "raidx_fuse/journal/ring.py"
JOURNAL = "raidx_fuse/journal/journal.py"
RECOVERY = "raidx_fuse/journal/recovery.py"
RESYNC = "raidx_fuse/jobs/resync.py"
ROUND = "raidx_fuse/format/superblock.py"
LATE_TESTS = ("tests/store/test_late_writes.py", "tests/store/test_overdue.py")
FAILING_TESTS = ("tests/jobs/test_failing_resync.py", "tests/jobs/test_torn_stripes.py")
HEAD_TESTS = (
    "tests/journal/test_durable_order.py",
    "tests/journal/test_durable_pages.py",
    "tests/journal/test_head_page.py",
)
LIMIT_TESTS = ("tests/journal/test_replay_limits.py",)

LATE = (
    Mutant(
        "write-that-was-given-up-not-noted",
        QUEUE,
        "            self.member.note_overdue(operation.offset, operation.size_bytes)",
        "            operation.abandoned = None",
        "it lands later over a newer one that was acknowledged",
        HANGS,
        LATE_TESTS,
    ),
    Mutant(
        "overdue-range-one-sector-short",
        BASE,
        "begin < end and offset_bytes < stop for begin, stop",
        "begin < end and offset_bytes < stop - 512 for begin, stop",
        "a write to the last sector of an overdue one is overwritten by it",
        HANGS,
        LATE_TESTS,
    ),
    Mutant(
        "overdue-write-forgotten-while-another-lasts",
        BASE,
        "        self.overdue = tuple(rest)",
        "        self.overdue = ()",
        "of two that hang the second one lands over what came after the first one landed",
        HANGS,
        LATE_TESTS,
    ),
    Mutant(
        "superblock-over-an-overdue-one",
        ROUND,
        "            if any(member.is_overdue(",
        "            if False and any(member.is_overdue(",
        "the older configuration lands over the newer one, in the same slot",
        HANGS,
        ("tests/format/test_superblock.py", "tests/format/test_superblock_rounds.py", *LATE_TESTS),
    ),
    Mutant(
        "superblock-given-up-and-not-noted",
        ROUND,
        "                self._member.note_overdue(offset, len(content))",
        "                self._given_up = False",
        "the older configuration lands over the newer one, in the same slot",
        HANGS,
        ("tests/format/test_superblock.py", "tests/format/test_superblock_rounds.py", *LATE_TESTS),
    ),
    Mutant(
        "record-taken-back-and-not-wiped",
        JOURNAL,
        "        self._taken_back.append((offset, record[:SECTOR_BYTES]))\n",
        "",
        "a record that nobody was told of is replayed when the next one begins elsewhere",
        (*REFUSALS, *HANGS),
        (*LATE_TESTS, "tests/journal/test_taken_back.py"),
    ),
    Mutant(
        "records-behind-one-that-was-taken-back-stay",
        JOURNAL,
        "(self._owed or sequence >= self.ring.next_sequence):",
        "self._owed:",
        "what is acknowledged lies behind the end of the log",
        (*REFUSALS, *HANGS),
        ("tests/journal/test_taken_back.py",),
    ),
    Mutant(
        "tail-behind-a-record-that-was-taken-back",
        JOURNAL,
        "            first = min(first, *self.inflight.open.items())",
        "            first = min(self.inflight.open.items())",
        "the next record lies before the tail, and no replay finds it",
        (*REFUSALS, *HANGS),
        ("tests/journal/test_taken_back.py",),
    ),
    Mutant(
        "next-record-before-the-zeros-are-durable",
        JOURNAL,
        "            await self.member_set.flush()\n            self._owed",
        "            self._owed",
        "a cut leaves a record that was taken back where the next one is missing",
        (*REFUSALS, *HANGS),
        ("tests/journal/test_taken_back.py",),
    ),
    Mutant(
        "late-record-not-written-again",
        JOURNAL,
        "await self.member_set.write([*self._owed, *wiped])",
        "await self.member_set.write(wiped)",
        "what readers have seen is in no log, and goes to its place",
        REFUSALS,
        ("tests/journal/test_group_commit.py",),
    ),
    Mutant(
        "flush-while-what-readers-see-is-in-no-log",
        "raidx_fuse/array/array.py",
        "            await self.context.journal.mend_seen()\n",
        "",
        "what was read and flushed is the old content again after a cut",
        REFUSALS,
        ("tests/journal/test_torn_log.py",),
    ),
    Mutant(
        "rebuilt-under-a-record-that-was-taken-back",
        "raidx_fuse/jobs/job.py",
        "            if journal.torn is not None:  # recovery may redo what no reader sees\n",
        "            if False:\n",
        "recovery redoes a parity that the rebuilt member does not follow",
        DISKS,
        ("tests/journal/test_torn_log.py",),
    ),
)

FAILING = (
    Mutant(
        "torn-stripe-used-before-its-resync",
        DIRTY,
        "                await self._finish(stripe)\n",
        "",
        "what is read once differs when a member fails, and writes build on torn parity",
        (*UNLOGGED, "raid5:none:disks", "rdp:none"),
        FAILING_TESTS,
    ),
    Mutant(
        "stripe-finished-again-after-writes",
        DIRTY,
        "                self._finished.add(stripe)\n",
        "",
        "it counts as torn still: a member that fails takes its chunks along",
        UNLOGGED,
        FAILING_TESTS,
    ),
    Mutant(
        "torn-region-clean-when-quiet",
        DIRTY,
        "            for region in self._marked - torn\n",
        "            for region in self._marked\n",
        "a write that one member refused leaves parity wrong, and no resync looks there",
        ("raidx-copy:none:hangs", "raidx-parity:none:hangs"),
        ("tests/engine/test_torn_by_errors.py",),
    ),
    Mutant(
        "failing-member-gives-nothing-up-without-a-log",
        RESYNC,
        "        if is_undecidable(context, stripe, lost):",
        "        if False:",
        "content by the parity of a stripe that a crash has torn is called good",
        ("raid5:none:disks", "raid5:none", "raid4:none"),
        FAILING_TESTS,
    ),
    Mutant(
        "failing-member-gives-up-with-a-log-too",
        RESYNC,
        "    if not dirty.unlogged:\n        return\n",
        "",
        "flushed data is lost though the log knows all that was in flight",
        ("raid5:partial:disks", "raid5:full:disks"),
        FAILING_TESTS,
    ),
    Mutant(
        "regions-forgotten-before-what-was-lost-is-saved",
        RESYNC,
        "        await self._keep_lost()\n",
        "",
        "after another crash a lost chunk reads as good",
        ("raid5:none:disks", "raid5:none"),
        FAILING_TESTS,
    ),
    Mutant(
        "fitted-list-forgets-lost-chunks",
        "raidx_fuse/format/configuration/fitting.py",
        "        config = config.with_job(KEY, encode_chunks(decode_chunks(lost), left))",
        "        config = config.with_job(KEY, {})",
        "lost chunks read as good after a remount",
        ("raid5:none:disks",),
        ("tests/format/test_fitting.py", "tests/array/test_full_superblock.py"),
    ),
)

BELIEVED = (
    Mutant(
        "replay-believes-who-holds-no-log",
        RECOVERY,
        "                holders is None or holder_of(member_set.config.record(role).member_uuid)"
        " in holders\n",
        "                True\n",
        "one member outside the log can have any place overwritten",
        (*DISKS, "raid5:partial"),
        LIMIT_TESTS,
    ),
    Mutant(
        "impossible-record-believed",
        RECOVERY,
        "            problem = self._problem(record[0])",
        "            problem = None",
        "a replay writes wherever a record says, superblocks included",
        LOGGED,
        LIMIT_TESTS,
    ),
    Mutant(
        "next-holders-not-named-before-their-records",
        JOURNAL,
        "            await self.ring.believe_also(holders)\n            await "
        "self.member_set.flush()",
        "            pass",
        "a record on a member that became whole is not believed after a cut",
        DISKS,
        (*LIMIT_TESTS, "tests/jobs/test_rebuild.py"),
    ),
    Mutant(
        "next-holders-named-alone",
        JOURNAL,
        "            await self.ring.believe_also(holders)",
        "            await self.ring.believe_also(())",
        "the older head page counts after a cut, and names others",
        DISKS,
        LIMIT_TESTS,
    ),
    Mutant(
        "record-taken-back-wiped-on-those-whose-turn-it-is",
        JOURNAL,
        "                for role in self.log_members.roles\n",
        "                for role in self.log_members.at(offset)\n",
        "a record that was taken back lies on a member that has no turn any more",
        REFUSALS,
        ("tests/journal/test_taken_back.py",),
    ),
    Mutant(
        "log-on-a-role-that-is-leaving",
        "raidx_fuse/jobs/reshape.py",
        "                    left = change.swap(planned, records) or ()\n"
        "                    if change.renumbers:\n"
        "                        context.journal.choose_roles()\n",
        "                    if change.renumbers:\n"
        "                        context.journal.choose_roles()\n"
        "                    left = change.swap(planned, records) or ()\n",
        "a record lies on a member that is released",
        ("raidx-parity:partial:members", "raidx-copy:full:members", "raidx-zero:full:members"),
        ("tests/jobs/test_rebundle.py",),
    ),
    Mutant(
        "head-page-counted-before-its-save-ended",
        RING,
        "        self._saves = number = self._saves + 1\n",
        "        self._saves = self._saved = number = self._saves + 1\n",
        "space of records is given away whose head page may still be torn",
        (*LOGGED, *SQUEEZE),
        HEAD_TESTS,
    ),
    Mutant(
        "page-being-saved-counts-as-flushed",
        PAGESTORE,
        "        self._flushing = frozenset(self._loose - self._unsaved)",
        "        self._flushing = frozenset(self._loose)",
        "the next save overwrites the durable copy",
        (*LOGGED, *UNLOGGED),
        ("tests/store/test_page_saves.py", *HEAD_TESTS),
    ),
    Mutant(
        "old-copy-of-a-member-joins",
        PAGESTORE,
        "            if behind.any():",
        "            if False:",
        "a copy that was taken of a running array brings back what it had then",
        REMOUNTS,
        ("tests/array/test_old_copies.py",),
    ),
    Mutant(
        "read-takes-overdue-bytes-for-granted",
        NEWEST,
        "patched = queue.member.covers_overdue(self.overlay.covers, role, offset, size)",
        "patched = True",
        "parity is computed from bytes that change afterwards",
        HANGS,
        LATE_TESTS,
    ),
)

MUTANTS = (*LATE, *FAILING, *BELIEVED)
