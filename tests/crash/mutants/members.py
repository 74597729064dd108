"""Bugs of members that join and leave: rebuild, assignment of roles, locks."""

from __future__ import annotations

from tests.crash.mutants.mutant import DISKS, GROWTH, LOGGED, UNLOGGED, Mutant

REBUILD = "raidx_fuse/jobs/rebuild.py"
MEMBERSHIP = "raidx_fuse/array/membership.py"
JOURNAL = "raidx_fuse/journal/journal.py"
WRITER = "raidx_fuse/engine/write/write.py"
READER = "raidx_fuse/engine/read.py"
REBUILD_TESTS = (
    "tests/jobs/test_rebuild.py",
    "tests/jobs/test_rebuild_passes.py",
    "tests/crash/test_passed_over.py",
    "tests/crash/test_moments.py",
)
PASSES = ("tests/jobs/test_rebuild_passes.py",)
WRITES = ("tests/store/test_stripe_locks.py", "tests/array/test_state_machine.py")

# The end of a rebuild: the log moves to the member, then the superblocks call it active.
LOG_MOVES = (
    "        try:  # before another member may be lost: until now records had a copy less\n"
    "            await self.context.journal.reform()\n"
    "        except RaidxError as error:\n"
    '            log.error("the log is not on the rebuilt members yet: %s", error)\n'
)
ACTIVATED = (
    "        # A member that failed meanwhile is not rebuilt.\n"
    "        done = [role for role in done if member_set.queues[role] is rebuilt[role]]\n"
    "        self.total_bytes = self.done_bytes  # with unlike bundles the total was an estimate\n"
    "\n"
    "        def activate(config: ArrayConfig) -> ArrayConfig:\n"
    "            jobs = {k: v for k, v in config.jobs.items()"
    " if k not in map(checkpoint_key, done)}\n"
    "            members = tuple(\n"
    '                replace(record, state="active") if record.role in done else record\n'
    "                for record in config.members\n"
    "            )\n"
    "            return replace(config, jobs=jobs, members=members)\n"
    "\n"
    "        try:\n"
    "            await member_set.update(activate)\n"
    "        finally:  # in force, though a member may lack it (law 3 of store/member_set.py)\n"
    "            for role in done:\n"
    '                is_active = member_set.config.record(role).state == "active"\n'
    "                if is_active and member_set.queues[role] is rebuilt[role]:\n"
    "                    member_set.watermarks.pop(role, None)\n"
    "            member_set.refresh()\n"
)

REBUILDING = (
    Mutant(
        "checkpoint-of-a-rebuild-not-flushed",
        REBUILD,
        "        await member_set.flush()\n\n        def note",
        "        def note",
        "below the durable watermark something is not durable",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "member-whole-before-the-log-has-its-copies",
        REBUILD,
        LOG_MOVES + ACTIVATED,
        ACTIVATED + LOG_MOVES,
        "what was logged while a member was lost has a copy less, and any other may be lost now",
        ("raid5:partial:disks", "raid1:full:disks", "raid4:full:disks", "rdp:full:disks"),
        ("tests/journal/test_log_after_rebuild.py",),
    ),
    Mutant(
        "rebuild-passes-what-came-written",
        REBUILD,
        "                end = min(first_written)",
        "                pass",
        "a stripe that was written first while its window was read is not rebuilt",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "watermark-of-a-rebuild-off-by-one",
        REBUILD,
        "                member_set.watermarks[role] = Stripe(max(end, start))",
        "                member_set.watermarks[role] = Stripe(max(end, start) + 1)",
        "the first stripe that is not rebuilt is read from the new member",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "rebuild-passes-locked-stripes",
        REBUILD,
        "        return [stripe for stripe in self.context.locks.held if start <= stripe < end]",
        "        return []",
        "a stripe is first written without the member that became whole meanwhile",
        (*DISKS, "raid4:none:disks"),
        REBUILD_TESTS,
    ),
    Mutant(
        "writes-do-not-see-another-member-in-a-role",
        WRITER,
        "            return epoch == context.member_set.role_epoch",
        "            return True",
        "what was planned for the old member is taken as written on the new one",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "checkpoint-of-a-rebuild-forgets-the-growth",
        REBUILD,
        "            await self.context.growth.save()",
        "            pass",
        "what was unwritten as the stripes lie now may be written as they lie after a cut",
        GROWTH,
        ("tests/jobs/test_growth_troubles.py",),
    ),
    Mutant(
        "log-not-formed-again-after-a-rebuild",
        REBUILD,
        "        await self.context.journal.reform()",
        "        pass",
        "the log stays on fewer members than may be lost and one more",
        ("raid1:partial:disks", "raid1:full:disks"),
        ("tests/journal/test_replay_limits.py", *REBUILD_TESTS),
    ),
    Mutant(
        "log-formed-again-with-records-in-it",
        JOURNAL,
        "        await self.drain(self.move)",
        "        await self.move()",
        "the older records are on fewer members than the log is said to be",
        DISKS,
        (
            "tests/journal/test_durable_order.py",
            "tests/journal/test_durable_pages.py",
            *REBUILD_TESTS,
        ),
    ),
    Mutant(
        "assign_role-without-an-empty-log",
        MEMBERSHIP,
        "        await self.array.context.journal.drain()\n"
        "        await self.array.context.journal.chunk_table.forget_role(role, changed=changed)\n"
        "        await self.array.context.journal.drain()\n",
        "        await self.array.context.journal.chunk_table.forget_role(role, changed=changed)\n",
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
        "        await member_set.flush()  # the maps before the superblock that makes it a member",
        "        pass",
        "after a cut it is a member whose maps are empty",
        DISKS,
        REBUILD_TESTS,
    ),
    Mutant(
        "job-without-locks",
        "raidx_fuse/jobs/job.py",
        "        await locks.acquire_all(stripes)\n"
        "        try:\n"
        "            return await self._done(stripes)\n"
        "        finally:\n"
        "            locks.release_all(stripes)",
        "        return await self._done(stripes)",
        "a write changes a stripe while a job reads it",
        ("raid5:none:pairs:part:rebuild", "raid5:none:pairs:rebuild:small"),
        ("tests/jobs/test_scrub.py", *REBUILD_TESTS),
    ),
    Mutant(
        "lock-let-go-while-a-write-runs",
        WRITER,
        "                await self._write_locked(direct, logged, view)",
        "                context.locks.release_all(stripes)\n"
        "                try:\n"
        "                    await self._write_locked(direct, logged, view)\n"
        "                finally:\n"
        "                    await context.locks.acquire_all(stripes)",
        "two writes plan by the same old parity",
        (*LOGGED, *UNLOGGED),
        WRITES,
    ),
    Mutant(
        "degraded-read-without-the-lock",
        READER,
        "        await context.locks.acquire(stripe)\n        try:",
        "        context.locks.held[stripe] = context.locks.held.get(stripe)\n        try:",
        "it solves by chains that a write is changing",
        DISKS,
        WRITES,
    ),
    Mutant(
        "read-repeated-on-a-member-that-took-a-role",
        "raidx_fuse/store/member_set.py",
        "                if role_epoch != self.role_epoch:\n"
        "                    raise MemberLostError  # a new",
        "                if False:\n                    raise MemberLostError  # a new",
        "the new member has nothing yet: its zeros are returned as data",
        DISKS,
        PASSES,
    ),
    Mutant(
        "window-read-from-a-member-that-took-a-role",
        "raidx_fuse/jobs/strips.py",
        "        if role_epoch != context.member_set.role_epoch:",
        "        if False:",
        "a scrub takes what is not rebuilt yet for wrong, and repairs parity by it",
        ("raid5:none:scrub", "raid5:none:disks"),
        PASSES,
    ),
)

MUTANTS = (*REBUILDING,)
