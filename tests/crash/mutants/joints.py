"""Bugs where two operations meet: one goes on with what the other has changed meanwhile."""

from __future__ import annotations

from tests.crash.mutants.mutant import (
    DEFERRAL,
    DISCARDS,
    DISKS,
    GROWTH,
    HANGS,
    LATENT,
    LOGGED,
    REMOUNTS,
    REPLACES,
    RESTRIPE,
    RETURNS,
    STREAMS,
    UNLOGGED,
    Mutant,
)

CHANGES = "raidx_fuse/engine/changed_regions.py"
GATE = "raidx_fuse/engine/gate.py"
DIRTY = "raidx_fuse/store/dirty_bitmap.py"
DISCARD = "raidx_fuse/engine/discard.py"
JOURNAL = "raidx_fuse/journal/journal.py"
MEMBERSHIP = "raidx_fuse/array/membership.py"
MEND = "raidx_fuse/engine/write/mend.py"
QUEUE = "raidx_fuse/store/queue.py"
REBUILD = "raidx_fuse/jobs/rebuild.py"
SMALL = "raidx_fuse/engine/write/small.py"
TWIN = "raidx_fuse/jobs/replace.py"
UNSETTLED = "raidx_fuse/journal/unsettled.py"
WRITER = "raidx_fuse/engine/write/write.py"

CHECKPOINTS = ("raid5:partial:checkpoints", "rdp:full:checkpoints", "upc:partial:checkpoints")
TORN = ("raid5:none:disks", "raid4:none", "evenodd:none", "rdp:none:disks")
CATCHING_UP = ("tests/jobs/test_catching_up.py", "tests/jobs/test_catching_up_limits.py")
FAILURES = ("tests/engine/test_failures.py", "tests/journal/test_unsettled.py")
REPLACING = ("tests/jobs/test_replace.py", "tests/jobs/test_replace_failures.py")
RESYNCS = ("tests/jobs/test_resync.py", "tests/jobs/test_failing_resync.py")
GATES = ("tests/engine/test_gate.py", "tests/pool/test_volume_gate.py")
LATENT_TESTS = ("tests/engine/test_latent_errors.py", "tests/engine/test_latent_losses.py")

MUTANTS = (
    # a member fails while the log is written
    Mutant(
        "record-before-the-exclusion-is-published",
        JOURNAL,
        "        if self.member_set.unpublished:\n"
        "            await self.member_set.published()  # law 4\n",
        "",
        "a mount that takes the member for whole redoes a record that was planned without it",
        (
            "raid5:full:pairs:part:fails",
            "raid5:full:pairs:stripe:fails",
            "rdp:full:pairs:part:fails",
            *DISKS,
            *HANGS,
        ),
        ("tests/journal/test_exclusions.py",),
    ),
    Mutant(
        "parity-before-the-exclusion-is-published",
        UNSETTLED,
        "        if member_set.unpublished:\n"
        "            await member_set.published()  # law 4 of journal.py\n",
        "",
        "a mount that takes the member for whole has no parity for it",
        (
            "raid5:partial:pairs:checkpoint:fails",
            "rdp:partial:pairs:checkpoint:fails",
            *CHECKPOINTS,
            *DISKS,
        ),
        ("tests/journal/test_exclusions.py",),
    ),
    # a commit meets a checkpoint, or another commit
    Mutant(
        "parity-of-a-small-write-not-in-the-layer",
        JOURNAL,
        "        else:\n            unsettled.with_parity.add(stripe)\n",
        "",
        "data without parity joins a layer that has parity of the stripe (law 2 of unsettled.py)",
        (
            "raid5:partial:pairs:small:checkpoint",
            "raid5:partial:pairs:checkpoint:small",
            *DEFERRAL,
            *CHECKPOINTS,
        ),
        ("tests/journal/test_unsettled.py",),
    ),
    Mutant(
        "parity-that-follows-early-not-in-the-layer",
        UNSETTLED,
        "            if layer is self.current:\n                self.with_parity.update(stripes)\n",
        "",
        "data without parity joins a layer that has parity of the stripe (law 2 of unsettled.py)",
        (
            "raid5:partial:pairs:scrub:small",
            "raid5:partial:pairs:checkpoint:small",
            *CHECKPOINTS,
            "raid5:partial:disks",
            "raid5:partial:scrub",
        ),
        (*FAILURES, "tests/crash/test_checkpoints.py"),
    ),
    Mutant(
        "frozen-while-a-batch-is-late",
        JOURNAL,
        "                    if self.is_late:\n                        continue\n"
        "                    self._freeze_now()",
        "                    self._freeze_now()",
        "what readers see goes home while its record is not written",
        (
            "raid5:partial:pairs:small:checkpoint",
            "raid5:partial:pairs:late:checkpoint",
            *DEFERRAL,
            *STREAMS,
        ),
        ("tests/journal/test_durable_order.py", "tests/journal/test_group_commit.py"),
        "only `commit_now` collects batches or lets them be late, and it does nothing while "
        "`freezing` is set: no batch becomes late between the loop before and this look",
    ),
    Mutant(
        "small-write-during-a-drain",
        JOURNAL,
        "        if self.gate is not None or self.inflight.open or self.torn is not None",
        "        if self.inflight.open or self.torn is not None",
        "a record is in the log that is said to be empty, as roles or places change",
        ("raid5:partial:pairs:replace:small", "raid5:partial:pairs:grow:small", *REPLACES, *GROWTH),
        ("tests/journal/test_durable_order.py",),
    ),
    Mutant(
        "data-without-parity-while-the-layout-is-about-to-change",
        JOURNAL,
        "        if not self.parity_may_follow:\n"
        "            return False\n        unsettled.expect",
        "        unsettled.expect",
        "parity of it is computed by stripes of another layout",
        (
            "raid5:partial:pairs:grow:part",
            "raid5:partial:pairs:part:grow",
            "raid5:partial:pairs:restripe:part",
            *GROWTH,
            *RESTRIPE,
        ),
        ("tests/journal/test_unsettled.py",),
    ),
    # a member leaves, or comes back
    Mutant(
        "failed-save-of-changes-counts",
        CHANGES,
        "                self._unsaved |= unsaved if same_size else self._map.regions\n"
        "                raise",
        "                raise",
        "the next write past the log finds nothing to save, and a cut forgets the region",
        (
            "rdp:none:pairs:leave:deaf",
            "raid5:none:pairs:return:deaf",
            "rdp:none:pairs:deaf:leave",
            *RETURNS,
            *DISKS,
        ),
        CATCHING_UP,
    ),
    Mutant(
        "two-cleanings-at-a-time",
        DIRTY,
        "        async with self._cleaning:\n            await self._clean_quiet(all_regions)",
        "        await self._clean_quiet(all_regions)",
        "the first clears the bit of a write that only the flush of the second makes durable",
        ("rdp:none:pairs:clean:clean", "raid5:none:pairs:clean:clean"),
        ("tests/store/test_dirty_order.py",),
    ),
    Mutant(
        "exact-stripes-of-a-region-whose-bit-stands",
        DIRTY,
        "                    begun = wanted.difference(self._set_bits())\n",
        "                    begun = wanted\n",
        "a member that leaves lacks what was written before the region was marked again",
        RETURNS,
        (*CATCHING_UP, "tests/store/test_dirty_order.py"),
    ),
    Mutant(
        "redone-records-forgotten-for-who-leaves",
        CHANGES,
        "        self._add(self._redone)\n        size = ",
        "        size = ",
        "what a start redid and had not flushed is lost on a member that leaves then",
        (*RETURNS, *REMOUNTS),
        CATCHING_UP,
    ),
    Mutant(
        "full-stripe-not-noted-in-its-region",
        DIRTY,
        "        self._touched.add(region)\n        if region in self._written:\n"
        "            self._written[region].add(stripe)\n        return True",
        "        self._touched.add(region)\n        return True",
        "a member that leaves before the flush lacks a stripe that is not marked for it",
        (
            "raid5:partial:pairs:stripe:unflushed",
            "raid5:partial:pairs:clean:stripe",
            "raid5:partial:pairs:stripe:fails",
            *RETURNS,
        ),
        CATCHING_UP,
    ),
    Mutant(
        "write-past-the-log-not-noted-in-its-region",
        DIRTY,
        "            if region in written:\n                written[region].add(stripe)\n",
        "",
        "a member that leaves before the flush lacks a stripe that is not marked for it",
        RETURNS,
        CATCHING_UP,
    ),
    Mutant(
        "returned-member-relied-on-to-read-as-zero",
        MEMBERSHIP,
        'replace(record_of(member, role, "rebuilding"), reads_zero=False)',
        'replace(record_of(member, role, "rebuilding"), reads_zero=True)',
        "what was discarded while it was away still lies there, and counts as zero",
        (*RETURNS, *DISCARDS),
        CATCHING_UP,
    ),
    Mutant(
        "old-copy-of-who-failed-caught-up",
        CHANGES,
        "        self._map.left[record.member_uuid] = member_set.published_events, config.events",
        "        self._map.left[record.member_uuid] = 0, config.events",
        "an old copy of it lacks more than what is marked",
        RETURNS,
        (*CATCHING_UP, "tests/array/test_old_copies.py"),
    ),
    # a rebuild meets torn stripes, writes and a member that fails
    Mutant(
        "torn-stripes-rebuilt",
        REBUILD,
        "        if context.dirty_bitmap.guarded:  # a torn stripe would give two contents of "
        "one cell\n"
        "            await context.dirty_bitmap.finish(stripes)\n",
        "",
        "the new member gets content by parity that a crash has torn",
        TORN,
        (*RESYNCS, "tests/jobs/test_rebuild_passes.py"),
    ),
    Mutant(
        "watermark-passes-a-stripe-whose-lock-is-held",
        REBUILD,
        "            held = set(self._held(start, end)) - set(stripes)",
        "            held: set[Stripe] = set()",
        "a first write under way was planned without the new member",
        ("raid5:none:pairs:first:rebuild", "raid5:partial:pairs:first:rebuild", *DISKS),
        ("tests/jobs/test_rebuild_passes.py",),
    ),
    Mutant(
        "position-of-a-rebuild-ahead-of-that-of-a-growth",
        REBUILD,
        "            await self.context.growth.save()\n        await self.context.cells.save",
        "            pass\n        await self.context.cells.save",
        "a cut brings back a shape in which cells that the rebuild passed are written",
        (*GROWTH, "raid5:partial:disks"),
        ("tests/jobs/test_rebuild_passes.py", "tests/jobs/test_growth_troubles.py"),
    ),
    Mutant(
        "position-of-a-member-that-failed-meanwhile",
        REBUILD,
        "                if member_set.queues[role] is queue:  # it has not failed meanwhile",
        "                if True:",
        "the next member of the role is taken for rebuilt up to there",
        ("rdp:partial:pairs:rebuild:fails", *DISKS),
        ("tests/jobs/test_rebuild_passes.py",),
    ),
    Mutant(
        "role-called-whole-though-its-member-failed-meanwhile",
        REBUILD,
        "        done = [role for role in done if member_set.queues[role] is rebuilt[role]]\n",
        "",
        "a member that failed while the log moved is called active in the superblocks",
        ("rdp:partial:pairs:rebuild:fails", *DISKS),
        ("tests/jobs/test_rebuild_passes.py",),
    ),
    # a discard meets torn stripes, a change of places and members that cannot punch
    Mutant(
        "torn-stripes-discarded",
        DISCARD,
        "            if context.dirty_bitmap.guarded:\n"
        "                await context.dirty_bitmap.finish(stripes)\n            found = await",
        "            found = await",
        "cells become unwritten in a stripe whose parity a crash has torn",
        ("raid5:none:discards", "evenodd:none:discards", "raid4:none:discards"),
        ("tests/engine/test_discard.py", *RESYNCS),
        "a discard takes all written cells that share a parity with one of its own, or none of "
        "them: no parity is left that depends on what it drops, and those of the other cells are "
        "as torn as before and still await the resync. Whoever needs the stripe next has it "
        "finished first, which zeroes the places of the dropped cells again. Chunks that hold "
        "zeros are dropped alone only before a change of the shape, which is refused while a "
        "resync is due",
    ),
    Mutant(
        "discarded-in-a-layout-that-has-changed",
        DISCARD,
        "            if layout is not context.layout or context.growth",
        "            if context.growth",
        "the locks of stripes of another layout protect nothing",
        (
            "raid5:partial:pairs:discard:restripe",
            "raid5:partial:pairs:discard:grow",
            *GROWTH,
            *RESTRIPE,
        ),
        ("tests/jobs/test_restripe_after_growth.py", "tests/jobs/test_growth.py"),
        "a batch chooses and drops in the present layout, by the numbers whose locks it holds, and "
        "only chunks of its range: other numbers only make it drop less, and zeros are written "
        "instead. A number behind the layout's end could name chunks only in a grown shape, and "
        "only numbers of a restripe's union are larger than those; what was looked up in a union "
        "drops nothing. What was looked up before a restripe may be dropped during it: the "
        "watermark moves by records of the log, so a crash that forgets a move forgets the "
        "discard after it, too",
    ),
    Mutant(
        "discarded-by-the-stripes-of-a-union",
        DISCARD,
        "layout is not context.layout or context.growth is not None or layout.restriping:",
        "context.growth is not None or context.layout.restriping:",
        "chunks become unwritten whose stripe, with its parity, is another one",
        ("raid5:partial:pairs:restripe:discard", *RESTRIPE),
        ("tests/jobs/test_restripe_after_growth.py",),
    ),
    Mutant(
        "places-dropped-while-an-array-grows",
        DISCARD,
        "            if layout is not context.layout or context.growth is not None or layout",
        "            if layout is not context.layout or layout",
        "a crash takes the position back, and old places of chunks count again",
        ("raid5:partial:pairs:grow:discard", *GROWTH),
        ("tests/engine/test_discard.py", "tests/jobs/test_growth.py"),
    ),
    Mutant(
        "holes-that-failed-relied-on",
        DISCARD,
        "            context.zeros.distrust()\n\n    async def _punch_all",
        "\n    async def _punch_all",
        "first writes rely on zeros where the old content still is",
        ("raid5:partial:pairs:discard:fails", "raid5:partial:pairs:trim:full", *DISCARDS),
        ("tests/engine/test_discard.py",),
    ),
    # mending meets a crash and a checkpoint
    Mutant(
        "page-mended-by-a-torn-stripe",
        MEND,
        "        if context.dirty_bitmap.guarded:  # until then its chains may not hold\n"
        "            await context.dirty_bitmap.finish((stripe,))\n",
        "",
        "the page gets content by parity that a crash has torn",
        LATENT,
        (*LATENT_TESTS, *RESYNCS),
    ),
    Mutant(
        "page-mended-before-its-parity-follows",
        MEND,
        "        await context.journal.settle((stripe,))\n        return marked",
        "        return marked",
        "the page gets content by chains that do not hold yet",
        ("raid5:partial:pairs:mend:small", "raid5:partial:pairs:mend:part", *LATENT),
        LATENT_TESTS,
    ),
    # writes of a queue, and of a member that is being replaced
    Mutant(
        "write-overtakes-those-that-wait",
        QUEUE,
        "        if self.writes_waiting:\n"
        "            return False  # never overtake a queued write: its range may overlap\n",
        "",
        "of two writes of one range the older one lands last",
        ("raid5:none:pairs:small:small", "raid5:none:pairs:part:small", *HANGS, *UNLOGGED),
        ("tests/store/test_overtaking.py",),
    ),
    Mutant(
        "batch-overtakes-writes-that-wait",
        QUEUE,
        "        if self.writes_waiting or self._wary:\n            return 0\n",
        "        if self._wary:\n            return 0\n",
        "a checkpoint's content lands before an older write of the same range",
        (
            "raid5:partial:pairs:stripe:checkpoint",
            "raid5:partial:pairs:checkpoint:stripe",
            *HANGS,
            *LOGGED,
        ),
        ("tests/store/test_overtaking.py",),
    ),
    Mutant(
        "successor-without-holes",
        TWIN,
        "        done = False\n        if self._mirrors:\n            self._copies += 1",
        "        done = True\n        if False:\n            self._copies += 1",
        "what was discarded still lies on the new member, which is relied on to read as zero",
        ("raid5:partial:pairs:replace:discard", "raid5:partial:pairs:replace:trim", *REPLACES),
        ("tests/jobs/test_twin_holes.py",),
    ),
    Mutant(
        "late-write-copied-to-the-successor",
        TWIN,
        "        if self.has_passed_on and "
        "self.is_overdue(offset_bytes, sum(map(len, buffers))):\n"
        "            return  # it was given up, and the successor may have something newer\n",
        "",
        "older content lands on the member that has the role",
        ("raid5:partial:pairs:replace:hangs", "raid5:none:pairs:hangs:replace", *REPLACES),
        REPLACING,
    ),
    # a write meets locks, growths and members that fail
    Mutant(
        "small-write-into-a-locked-stripe",
        SMALL,
        "        if stripe in context.locks.held:\n            return None\n",
        "",
        "parity is computed from a stripe that another request is changing",
        ("raid5:none:pairs:part:small", "raid5:none:pairs:scrub:small", *DISKS, *DEFERRAL),
        ("tests/store/test_stripe_locks.py",),
    ),
    Mutant(
        "small-write-behind-a-position-that-is-not-durable",
        SMALL,
        "        if context.growth is not None and stripe in context.growth.unsaved:\n"
        "            return None\n",
        "",
        "a cut takes the position back, and the write is where nobody looks",
        ("raid0:full:growth",),  # with parity, what awaits its move keeps such writes away
        ("tests/jobs/test_growth_troubles.py",),
    ),
    Mutant(
        "general-write-behind-a-position-that-is-not-durable",
        WRITER,
        "            await growth.save()\n",
        "            pass\n",
        "a cut takes the position back, and the write is where nobody looks",
        ("raid5:none:pairs:grow:part", *GROWTH),
        ("tests/jobs/test_growth_troubles.py", "tests/crash/test_growth_data_only.py"),
    ),
    Mutant(
        "fast-write-after-one-that-a-member-refused",
        WRITER,
        "                    fast = False  # a member may have failed meanwhile\n",
        "                    pass\n",
        "the rest of a request is written as if the member were there",
        ("raid5:none:pairs:end:fails", "raid5:partial:pairs:stripe:fails", *STREAMS, *HANGS),
        ("tests/engine/test_sequential_end.py", "tests/engine/test_pending_writes.py"),
    ),
    Mutant(
        "fast-write-before-an-exclusion-is-published",
        WRITER,
        "not member_set.lost and not member_set.unpublished and not",
        "not member_set.lost and not",
        "a write is acknowledged that a member lacks which rejoins after a crash",
        ("raid5:none:pairs:fails:small", "rdp:none:pairs:fails:small", *DISKS),
        ("tests/journal/test_exclusions.py",),
    ),
    Mutant(
        "write-that-failed-leaves-no-torn-stripe",
        "raidx_fuse/store/cells.py",
        "                self.note_torn(stripes)\n",
        "                pass\n",
        "the mark of the region is cleared, and no resync makes its chains hold",
        TORN,
        ("tests/engine/test_torn_by_errors.py", "tests/store/test_cells.py"),
    ),
    Mutant(
        "torn-first-write-relied-on-to-read-as-zero",
        WRITER,
        "                context.zeros.distrust()\n            raise",
        "            raise",
        "what an error left of a first write shows beside the next one",
        (
            "raid0:none:pairs:first:fails",
            "raid5:none:pairs:first:full",
            "raid0:partial:pairs:first:full",
            *DISKS,
            *HANGS,
        ),
        ("tests/engine/test_failures.py", "tests/engine/test_torn_by_errors.py"),
    ),
    # a change of places meets requests
    Mutant(
        "changed-under-those-who-are-inside",
        GATE,
        "                    await self.passed()\n                    if quiet is not None:",
        "                    if quiet is not None:",
        "places change under requests that entered while the log was drained",
        (*GROWTH, *RESTRIPE),
        GATES,
    ),
    Mutant(
        "changed-under-locks-that-are-held",
        GATE,
        "                    if quiet is not None:\n                        await quiet()\n",
        "",
        "places change under mending and other work that is not inside the gate",
        (*GROWTH, *RESTRIPE),
        GATES,
    ),
)
