"""Bugs of the log: placing, committing, and the space of the ring."""

from __future__ import annotations

from tests.crash.mutants.mutant import (
    DEFERRAL,
    DISKS,
    GROWTH,
    LOGGED,
    REFUSALS,
    REMOUNTS,
    RESTRIPE,
    SQUEEZE,
    STREAMS,
    TWO_LOSSES,
    Mutant,
)

JOURNAL = "raidx_fuse/journal/journal.py"
RING = "raidx_fuse/journal/ring.py"
INFLIGHT = "raidx_fuse/journal/ring.py"
BEGUN = "raidx_fuse/engine/write/pending.py"
ORDER = (
    "tests/journal/test_durable_order.py",
    "tests/journal/test_durable_pages.py",
    "tests/journal/test_log_cost.py",
)
MOMENTS = ("tests/crash/test_moments.py", "tests/jobs/test_resync.py")
STREAM_TESTS = (
    "tests/crash/test_streams.py",
    "tests/engine/test_sequential_end.py",
    "tests/engine/test_sequential_begin.py",
)
TOGETHER = ("tests/crash/test_together.py", "tests/journal/test_group_commit.py")
FAILURES = (
    "tests/engine/test_failures.py",
    "tests/engine/test_beyond_redundancy.py",
    "tests/crash/test_refused_record.py",
)
RESIZED = ("raid5:partial:log", "raid1:full:log", "raid0:full:log")

PLACING = (
    Mutant(
        "placed-before-the-record-is-durable",
        JOURNAL,
        "            await self._barrier()  # the records are durable\n",
        "",
        "a cut may keep half of the places and drop the record that redoes them",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "tail-moved-before-the-places-are-durable",
        JOURNAL,
        "            await self._barrier()  # the home places are durable\n",
        "",
        "a cut may drop a place whose record is not replayed any more",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "later-commits-are-placed-too",
        JOURNAL,
        "            await self.place_frozen(",
        "            self.overlay.frozen |= self.overlay.current\n"
        "            self.overlay.current = {}\n"
        "            await self.place_frozen(",
        "what was committed during the flush goes to its place before its record is durable",
        (*LOGGED, *TWO_LOSSES),
        (*ORDER, *MOMENTS),
    ),
    Mutant(
        "tail-ahead-of-records-in-flight",
        JOURNAL,
        "            first = min(first, *self.inflight.open.items())",
        "            pass",
        "a record that readers do not see yet counts as placed",
        (*LOGGED, *TWO_LOSSES),
        (*ORDER, *MOMENTS),
    ),
    Mutant(
        "map-saved-with-bits-that-are-not-durable",
        JOURNAL,
        "await self.written.save_taken(pages)",
        "await self.written.save_taken(pages | self.written.take_unsaved())",
        "a chunk may be written after a cut that dropped the record of its first write",
        ("raid5:partial", "raid0:full", "raid0:partial", "raid4:full"),
        (*ORDER, *MOMENTS),
    ),
    Mutant(
        "map-not-saved-with-a-placement",
        JOURNAL,
        "await self.written.save_taken(pages)",
        "pass",
        "what was placed counts as never written once its record is gone",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "chunks-that-are-unwritten-again-stay-written",
        JOURNAL,
        "            self.written.clear_bits(unwritten)",
        "            pass",
        "a growth that goes back leaves blocks written that no stripe has any more",
        GROWTH,
        ("tests/jobs/test_growth_parity.py",),
    ),
    Mutant(
        "placed-before-a-late-record-is-written",
        JOURNAL,
        "                while self.is_late:\n",
        "                while False:\n",
        "what is shown, but not logged, goes to its place",
        DEFERRAL,
        TOGETHER,
    ),
    Mutant(
        "readers-do-not-hear-of-a-placement",
        JOURNAL,
        "            self.member_set.note_placed()",
        "            pass",
        "who read the place before it was written finds nothing in the overlay afterwards",
        LOGGED,
        (*ORDER, "tests/array/test_state_machine.py", "tests/crash/test_faults_running.py"),
    ),
    Mutant(
        "drained-before-the-tail-is-durable",
        JOURNAL,
        "while self.ring.open or self.ring.durable_tail[0] != self.ring.next_sequence:",
        "while self.ring.open:",
        "records of who had a role before are replayed onto the member that took it",
        (*DISKS, *GROWTH),
        (*ORDER, "tests/jobs/test_rebuild.py"),
    ),
    Mutant(
        "mark-of-a-restripe-not-flushed",
        JOURNAL,
        "            await self.ring.save_mark(mark)\n        await self.member_set.flush()",
        "            await self.ring.save_mark(mark)",
        "a restripe begins with a watermark that a cut takes back",
        RESTRIPE,
        ("tests/jobs/test_restripe.py",),
        equivalent="a start reads the mark only if the superblocks name both layouts, and the job"
        " begins only after that; before they are written, `RestripeOperation.begin` saves all"
        " pages once more, this one too, and flushes",
    ),
)

COMMITTING = (
    Mutant(
        "acknowledged-before-earlier-records",
        INFLIGHT,
        "        while any(s < sequence and s not in self._landed for s in self.open):",
        "        while False:",
        "a replay ends at the gap before an acknowledged record (law 1)",
        (*LOGGED, *TWO_LOSSES),
        (*ORDER, *FAILURES),
    ),
    Mutant(
        "plan-not-looked-at-after-the-wait-for-capacity",
        JOURNAL,
        "        if not still_valid():\n            return False\n        if moves:",
        "        if moves:",
        "what was planned for the old member of a role reaches the new one",
        DISKS,
        (*ORDER, "tests/jobs/test_rebuild_passes.py"),
    ),
    Mutant(
        "stream-not-told-of-other-records",
        JOURNAL,
        "        self.unsettled.whole_cells.note_others(stripes)\n"
        "        sequence, record = await self.append(stripes, body, role_epoch)\n",
        "        sequence, record = await self.append(stripes, body, role_epoch)\n",
        "a stripe is closed past the log over something older that a replay lays on top",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "stripe-of-a-small-record-not-held",
        JOURNAL,
        "        stripes[stripe] = sequence\n",
        "",
        "a write past the log is undone by the older record (law 3)",
        ("raid5:partial", "raid4:partial", "raid5:full", "raid5:partial:streams", *DEFERRAL),
        (*ORDER, *TOGETHER),
    ),
    Mutant(
        "stripes-of-a-record-not-held",
        RING,
        "            self.stripes[stripe] = sequence",
        "            pass",
        "a write past the log is undone by the older record (law 3)",
        (*LOGGED, *STREAMS),
        ORDER,
    ),
    Mutant(
        "log-on-as-many-members-as-may-be-lost",
        RING,
        "min(self._member_set.layout.code.tolerance + 1, len(roles))",
        "min(max(1, self._member_set.layout.code.tolerance), len(roles))",
        "the members lost in the cut take the log along",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "behind-a-record-that-no-member-has",
        JOURNAL,
        "(self._owed or sequence >= self.ring.next_sequence):",
        "sequence >= self.ring.next_sequence:",
        "acknowledged, though a replay ends before it",
        REFUSALS,
        (*TOGETHER, *FAILURES),
    ),
    Mutant(
        "late-record-leaves-its-stripes-free",
        JOURNAL,
        "batch.locked = self.locks.take_free(batch.stripes)",
        "batch.locked = ()",
        "others change, past the log, what it still lacks",
        DEFERRAL,
        TOGETHER,
    ),
    Mutant(
        "stripes-not-locked-while-the-rest-is-written",
        BEGUN,
        "PendingWrite(context.locks.take_free(stripes), left, arena)",
        "PendingWrite([], left, arena)",
        "another write plans by a stripe that is half old and half new",
        ("raid5:partial", "raid5:none", "raid4:none"),
        ("tests/engine/test_pending_writes.py", "tests/engine/test_full_stripes.py"),
    ),
)

SPACE = (
    Mutant(
        "space-given-before-the-tail-is-durable",
        RING,
        "self.capacity - (end - self.durable_tail[1])",
        "self.capacity - (end - self.noted_tail[1])",
        "records that a replay still needs are overwritten",
        ("raid5:full", *SQUEEZE),
        (*ORDER, *MOMENTS),
    ),
    Mutant(
        "tail-durable-by-a-flush-of-before",
        RING,
        "        self.durable_tail = self._flushing_tail\n",
        "        self.durable_tail = self.noted_tail\n",
        "a head page that was saved while the flush ran counts as durable",
        (*LOGGED, *TWO_LOSSES, *SQUEEZE),
        ORDER,
        equivalent="the noted tail changes only in the step that counts its save as done (`_save`"
        " in `save_tail`). Here as many saves have begun as were done when the flush began, so none"
        " has ended since, and the noted tail is still that of the flush's begin. `begin` and a"
        " replay, which set it otherwise, run while no flush does",
    ),
    Mutant(
        "tail-durable-though-saved-again",
        RING,
        "        if self._saves != self._saves_flushing:",
        "        if False:",
        "the head page is being overwritten: torn now, the older tail counts, whose space is given",
        (*LOGGED, *RESTRIPE, *SQUEEZE),
        ORDER,
    ),
    Mutant(
        "tail-off-by-one",
        RING,
        "        while self.open and self.open[0][0] < tail[0]:",
        "        while self.open and self.open[0][0] <= tail[0]:",
        "the first record that is not placed counts as placed",
        (*LOGGED, *TWO_LOSSES, *SQUEEZE),
        ORDER,
    ),
    Mutant(
        "stripe-let-go-one-record-early",
        RING,
        "for s, n in self.stripes.items() if n >= sequence}",
        "for s, n in self.stripes.items() if n > sequence}",
        "the record at the tail may still be replayed",
        (*LOGGED, *STREAMS),
        ORDER,
    ),
    Mutant(
        "record-runs-over-the-end-of-the-log",
        RING,
        "        if lap + size > self.capacity:",
        "        if lap + size > self.capacity + 4096:",
        "what lies behind the log is overwritten, and no replay finds the record",
        ("raid5:full", "raid4:partial", "raid0:full", *SQUEEZE),
        ORDER,
    ),
    Mutant(
        "new-epoch-used-before-it-is-durable",
        JOURNAL,
        "        await self.ring.begin(epoch, self.mark)\n        await self.member_set.flush()",
        "        await self.ring.begin(epoch, self.mark)",
        "after a cut the records of the new epoch do not count, or old ones count again",
        (*REMOUNTS, *LOGGED),
        (*ORDER, *MOMENTS),
    ),
)

RESIZING = (
    Mutant(
        "log-goes-on-where-it-was",
        JOURNAL,
        "            ring.take_region(region)\n            self._take_capacity()\n",
        "            self._take_capacity()\n",
        "records are where no superblock says that there is a log",
        RESIZED,
        ("tests/array/test_log_size.py",),
    ),
    Mutant(
        "log-is-used-before-the-superblocks-name-it",
        "raidx_fuse/array/log_size.py",
        "                await member_set.update(lambda config: with_log(config, region))",
        "                member_set.change(lambda config: with_log(config, region))",
        "after a cut the log of before is read, which is empty",
        RESIZED,
        ("tests/array/test_log_size.py",),
    ),
    Mutant(
        "log-begins-at-a-position-that-no-ring-has",
        RING,
        "        position = (sequence - 1) * SECTOR_BYTES\n",
        "        position = 0\n",
        "the head of the log counts as impossible, and nothing starts",
        RESIZED,
        ("tests/array/test_log_size.py",),
    ),
)

MUTANTS = (
    *PLACING,
    *COMMITTING,
    *SPACE,
    *RESIZING,
)
