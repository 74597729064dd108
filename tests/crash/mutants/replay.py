"""Bugs of recovery, of writes past the log, and of deferred parity."""

from __future__ import annotations

from tests.crash.mutants.mutant import GROWTH, LOGGED, REMOUNTS, RESTRIPE, STREAMS, UNLOGGED, Mutant

OVERLAY = "raidx_fuse/store/overlay.py"
REPLAY = "raidx_fuse/journal/recovery.py"
FOLLOWING = "raidx_fuse/journal/recovery.py"
RECORDS = "raidx_fuse/format/log_record.py"
UNSETTLED = "raidx_fuse/journal/unsettled.py"
WHOLE_CELLS = "raidx_fuse/journal/unsettled.py"
CLOSING = "raidx_fuse/engine/write/full_stripe.py"
UNLOGGED_FILE = "raidx_fuse/engine/traffic.py"
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
FAILURES = (
    "tests/engine/test_failures.py",
    "tests/engine/test_beyond_redundancy.py",
    "tests/crash/test_refused_record.py",
)

REPLAYING = (
    Mutant(
        "epoch-repeated",
        REPLAY,
        "    await journal.begin(epoch + 1)",
        "    await journal.begin(max(1, epoch))",
        "records of the mount before fit the new ring by epoch, number and place",
        REMOUNTS,
        MOMENTS,
    ),
    Mutant(
        "record-of-another-epoch-accepted",
        RECORDS,
        "found = (magic, its_epoch, its_sequence, its_position, its_array)",
        "found = (magic, epoch, its_sequence, its_position, its_array)",
        "what an earlier mount logged is laid over what came later",
        REMOUNTS,
        MOMENTS,
    ),
    Mutant(
        "record-of-another-number-accepted",
        RECORDS,
        "found = (magic, its_epoch, its_sequence, its_position, its_array)",
        "found = (magic, its_epoch, sequence, its_position, its_array)",
        "one that was taken back, and left on a member, counts as another one in its place",
        LOGGED,
        ("tests/journal/test_taken_back.py", "tests/crash/test_refused_record.py", *MOMENTS),
    ),
    Mutant(
        "checksum-of-records-unchecked",
        RECORDS,
        "    if crc32c(view[RECORD_HEADER_BYTES:end], crc32c(zeroed)) != crc:",
        "    if False:",
        "a torn record is replayed",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "replay-looks-at-one-member-only",
        REPLAY,
        "            if record is None:\n                continue\n            problem",
        "            if record is None:\n                return None\n            problem",
        "a record that only another member has whole is passed over",
        LOGGED,
        ("tests/journal/test_replay_limits.py", *MOMENTS),
    ),
    Mutant(
        "replay-ends-at-the-end-of-a-lap",
        REPLAY,
        "        if found is None and position % journal.capacity:",
        "        if False:",
        "records behind the wrap are not found",
        ("raid5:full", "raid4:partial", "raid0:full", "evenodd:full"),
        MOMENTS,
    ),
    Mutant(
        "replay-places-what-one-member-alone-has",
        REPLAY,
        "                for at, content in copies",
        "                for at, content in copies[:0]",
        "cut again, without the member that had the record, the places are half written",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "replay-places-before-its-records-are-durable",
        REPLAY,
        "        await member_set.flush()\n    await _place(journal, member_set)",
        "    await _place(journal, member_set)",
        "cut again, without the member that had the record, the places are half written",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "replay-ends-before-its-places-are-durable",
        REPLAY,
        "    await member_set.flush()\n    journal.overlay.drop_frozen()",
        "    journal.overlay.drop_frozen()",
        "the new epoch may be durable before what the old one's records stood for",
        LOGGED,
        MOMENTS,
    ),
    Mutant(
        "replay-forgets-a-bit",
        REPLAY,
        "journal.written.set_bits(chunk_range(first, first + count))",
        "journal.written.set_bits(chunk_range(first, first + count - 1))",
        "the last chunk of a run that was first written reads as zero",
        ("raid5:partial", "raid0:full", "raid0:partial"),
        MOMENTS,
    ),
    Mutant(
        "replay-keeps-what-is-unwritten-again",
        REPLAY,
        "            journal.written.clear_bits(chunk_range(first, first + count))",
        "            pass",
        "a growth that goes back leaves blocks written that no stripe has any more",
        GROWTH,
        ("tests/journal/test_durable_order.py", "tests/jobs/test_growth_parity.py"),
    ),
    Mutant(
        "replay-passes-over-the-mark",
        REPLAY,
        "        mark = mark if record.mark is None else record.mark\n",
        "",
        "chunks are looked for where they lay before the window",
        RESTRIPE,
        ("tests/jobs/test_restripe.py", "tests/jobs/test_restripe_troubles.py"),
    ),
    Mutant(
        "replay-lets-an-older-record-follow-its-own",
        REPLAY,
        "        await member_set.write(_wiped(journal, ends, log_found.tail[1]))\n",
        "",
        "cut again, a record behind one that the first cut took is redone over home places",
        ("raid5:partial:rewrites", "raid4:partial:rewrites"),
        ("tests/journal/test_recovery_cut.py",),
    ),
)

BESIDE = (
    Mutant(
        "closed-stripes-keep-no-space-for-parity",
        UNSETTLED,
        "        self.closed[stripe] = new\n",
        "        self.held_bytes -= new.reserve_bytes\n"
        "        self.closed_bytes -= new.reserve_bytes\n"
        "        new = NewData(new.sequence, (), 0)\n"
        "        self.closed[stripe] = new\n",
        "a recovery, which logs their parity, goes round the ring over records that it needs",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "stream-forgets-what-the-log-has",
        WHOLE_CELLS,
        "            cells[stripe] |= mask",
        "                pass",
        "a stripe is closed over cells that a replay lays on top",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "closing-over-an-older-record",
        WHOLE_CELLS,
        "        return not self.cells.get(stripe, -1) & ~mask",
        "        return True",
        "a replay lays the older record over what was closed past the log",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "closing-during-a-placement-under-way",
        CLOSING,
        "if overlay.frozen and any(overlay.is_placing(*at, context.chunk_bytes) for at in places):",
        "if False:",
        "the placement brings something older to its place after the closing write",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "stream-marked-in-memory-only",
        "raidx_fuse/engine/write/write.py",
        "                async with context.cells.marked([stripe]):\n                    pass\n",
        "                bitmap = context.dirty_bitmap\n"
        "                bitmap._marked.add(stripe // bitmap.per_region)\n"
        "                bitmap.enter_now([stripe])\n",
        "no resync mends the parity of a torn stripe whose first part a cut took from the log",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "closed-stripe-still-in-the-overlay",
        CLOSING,
        "            overlay.drop(*context.position(stripe, cell), context.chunk_bytes)",
        "            pass",
        "older parity is laid over the new one, in reads and by the next placement",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "closing-late-keeps-the-old-parity",
        CLOSING,
        "            self._keep(stripe, cells, known)",
        "            pass",
        "after the loss of a member, content is recovered from an older parity",
        STREAMS,
        STREAM_TESTS,
    ),
    Mutant(
        "torn-sector-after-a-flush-that-ran",
        UNLOGGED_FILE,
        "        self._covered = self._flushing",
        "        self._covered = self.past_log",
        "what was written while the flush ran is not durable: a sector of two halves",
        LOGGED,
        ORDER,
    ),
    Mutant(
        "overlay-layers-in-the-wrong-order",
        OVERLAY,
        "            for pages in (self.frozen, self.current):",
        "            for pages in (self.current, self.frozen):",
        "older content is laid over newer",
        LOGGED,
        ("tests/array/test_state_machine.py", *ORDER),
    ),
    Mutant(
        "failed-placement-forgets-its-layer",
        "raidx_fuse/journal/journal.py",
        "            if self._begun is None:\n",
        "            if self._begun is not None:\n"
        "                self.overlay.drop_frozen()\n"
        "            if True:\n",
        "what a placement that failed was to place is not seen any more",
        LOGGED,
        (*ORDER, *FAILURES),
    ),
    Mutant(
        "past-the-log-though-it-is-held",
        "raidx_fuse/engine/write/route.py",
        "    if state.in_log:",
        "    if False:",
        "the older record is replayed over it (law 3)",
        (*LOGGED, *UNLOGGED),
        ORDER,
    ),
    Mutant(
        "whole-stripes-past-the-log-though-it-is-held",
        "raidx_fuse/engine/write/full_stripe.py",
        "            if stripe in held or journal.holds(stripe):",
        "            if stripe in held:",
        "the older record is replayed over them (law 3)",
        (*LOGGED, "raid0:partial"),
        ("tests/engine/test_full_stripes.py", *ORDER),
    ),
    Mutant(
        "sector-of-two-halves",
        "raidx_fuse/engine/write/write.py",
        "        if through_log and context.traffic.may_tear(offset, len(view)):",
        "        if False:",
        "a record that ends inside a sector keeps a rest that a cut drops",
        LOGGED,
        ORDER,
    ),
)

MUTANTS = (
    *REPLAYING,
    *BESIDE,
)
