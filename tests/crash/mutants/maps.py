"""Bugs of flushes, pages, written map and dirty bitmap."""

from __future__ import annotations

from tests.crash.mutants.mutant import DISKS, GROWTH, HUGE, LOGGED, SCRUB, UNLOGGED, Mutant

RESYNC_FILE = "raidx_fuse/jobs/resync.py"
STORE = "raidx_fuse/store/member_set.py"
QUEUES = "raidx_fuse/store/queue.py"
PAGESTORE = "raidx_fuse/store/page_store.py"
PAGES = "raidx_fuse/format/pages.py"
WRITTEN = "raidx_fuse/store/written_map.py"
WRITER = "raidx_fuse/engine/write/write.py"
DIRTY = "raidx_fuse/store/dirty_bitmap.py"
FLUSHES = (
    "tests/journal/test_durable_order.py",
    "tests/journal/test_durable_pages.py",
    "tests/journal/test_log_cost.py",
)
FAILURES = (
    "tests/engine/test_failures.py",
    "tests/engine/test_beyond_redundancy.py",
    "tests/crash/test_faults_running.py",
)
MOMENTS = ("tests/crash/test_moments.py",)
RESYNC = (
    "tests/store/test_dirty_order.py",
    "tests/jobs/test_resync.py",
    "tests/crash/test_moments.py",
)
PAGE_TESTS = (
    "tests/journal/test_durable_order.py",
    "tests/journal/test_durable_pages.py",
    "tests/format/test_pages.py",
    "tests/store/test_page_saves.py",
    *MOMENTS,
)
ALL_MODES = ("raid5:none", "raid5:partial", "raid5:full", "raid0:none", "raid0:partial")
PAGED_MODES = (*HUGE, *ALL_MODES)

FLUSHING = (
    Mutant(
        "flush-joins-one-under-way",
        STORE,
        "                async with self._flushing:\n                    self._next_round = None",
        "                async with self._flushing:\n                    pass",
        "group commit: the flush that runs does not cover what was written since it began",
        ALL_MODES,
        FLUSHES,
    ),
    Mutant(
        "flush-acknowledged-before-the-superblocks-tell",
        STORE,
        '        await self.published()\n        self.require_published("a flush")\n',
        "",
        "a member that failed the flush rejoins after a crash, with less than was flushed",
        (*DISKS, *LOGGED),
        FAILURES,
    ),
    Mutant(
        "durable-before-the-superblocks-exclude-who-failed",
        STORE,
        '        await self.published()\n        self.require_published("a flush")\n',
        "        for observer in self.flush_observers:\n            observer.flush_ends()\n"
        '        await self.published()\n        self.require_published("a flush")\n',
        "what a member had that superblocks still count on is overwritten: it is an old copy then",
        (*DISKS, *LOGGED),
        ("tests/array/test_old_copies.py", *FAILURES),
    ),
    Mutant(
        "write-during-a-flush-counts-as-flushed",
        QUEUES,
        "            self.unflushed = True  # only now:",
        "            pass  # only now:",
        "the next flush passes over a member that has something to flush",
        (*LOGGED, *UNLOGGED),
        FLUSHES,
    ),
    Mutant(
        "placed-at-once-counts-as-flushed",
        QUEUES,
        "            return 0\n        self.unflushed = True\n",
        "            return 0\n",
        "the next flush passes over a member whose places were written in one go",
        LOGGED,
        FLUSHES,
    ),
    Mutant(
        "failed-flush-counts-as-done",
        STORE,
        "                operation.queue.flush_failed()\n",
        "                pass\n",
        "a member that stays, for it cannot be spared, is not flushed again",
        ("raid0:none",),
        FAILURES,
    ),
    Mutant(
        "failed-member-not-published",
        STORE,
        "        self.publish_soon()\n        return True\n",
        "        return True\n",
        "after a crash it rejoins and reads as it was before",
        DISKS,
        FAILURES,
    ),
    Mutant(
        "superblocks-miss-what-changed-meanwhile",
        STORE,
        "                if events == self.config.events and tries != 1:",
        "                if tries != 1:",
        "a change that comes while the superblocks are written is acknowledged without them",
        (*DISKS, *GROWTH),
        FAILURES,
    ),
    Mutant(
        "read-not-repeated-after-a-placement",
        "raidx_fuse/store/member_set.py",
        "        while epoch != self.place_epoch:  # what we read may be from before the placement",
        "        while False:",
        "what was read before the placement is not in the overlay any more",
        LOGGED,
        (*FLUSHES, "tests/array/test_state_machine.py"),
    ),
    Mutant(
        "failure-acknowledged-before-the-superblocks-tell",
        WRITER,
        "        if context.member_set.unpublished:\n            await "
        "context.member_set.published()",
        "        pass",
        "a write that one member lacks is acknowledged, and that one rejoins after a crash",
        DISKS,
        FAILURES,
    ),
)

PAGED = (
    Mutant(
        "page-slot-repeated",
        PAGESTORE,
        "                slot = 1 - slot\n",
        "                pass\n",
        "a page that tears takes the durable copy along",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "page-slots-in-turn-however-durable",
        PAGESTORE,
        "            if page not in self._loose:",
        "            if True:",
        "two saves without a flush between them: the second one overwrites the durable copy",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "page-saved-during-a-flush-counts-as-durable",
        PAGESTORE,
        "        self._loose -= self._flushing - self._saved_since",
        "        self._loose -= self._flushing",
        "the next save overwrites the copy that was durable",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "pages-not-healed",
        PAGESTORE,
        "            await self.member_set.write(requests)\n"
        "            await self.member_set.flush()",
        "            pass",
        "what one member alone has is believed, and gone with that member",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "checksum-of-pages-unchecked",
        PAGES,
        "        if not _crc_holds(content, crc):\n            self.result.damaged",
        "        if False:\n            self.result.damaged",
        "a torn page is believed",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "older-page-believed",
        PAGES,
        "            if generation > self.result.generations[page]:\n"
        "                self._keep(page, slot, generation, content)\n\n"
        "    def _keep(self, page: int, slot: int, generation: int, content: memoryview) -> None:\n"
        "        for pages in (self.result, self._newest):\n"
        "            if generation > pages.generations[page]:",
        "            if generation:\n"
        "                self._keep(page, slot, generation, content)\n\n"
        "    def _keep(self, page: int, slot: int, generation: int, content: memoryview) -> None:\n"
        "        for pages in (self.result, self._newest):\n"
        "            if generation:",
        "of two slots the second one counts, whichever is newer",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "older-copy-of-a-page-believed",
        PAGES,
        "            if generation > pages.generations[page]:",
        "            if generation:",
        "of several members the last one is believed, whoever has the newest copy",
        PAGED_MODES,
        PAGE_TESTS,
    ),
    Mutant(
        "bit-set-and-never-saved",
        WRITTEN,
        "            self._unsaved.add(chunk // page_bits)\n            put_bit",
        "            put_bit",
        "what was written reads as zero after a remount",
        PAGED_MODES,
        MOMENTS,
    ),
    Mutant(
        "first-bit-of-several-forgotten",
        WRITER,
        "            await context.written.mark(fresh)",
        "            await context.written.mark(fresh[:1] if fresh[1:] else fresh)",
        "only one of the chunks that a write touches first becomes written",
        UNLOGGED,
        ("tests/array/test_state_machine.py",),
    ),
    Mutant(
        "bit-durable-before-the-data",
        WRITER,
        "        if fresh and not context.zeros.all_roles:",
        "        if False:",
        "a chunk becomes written with what lay there before",
        UNLOGGED,
        MOMENTS,
    ),
    Mutant(
        "pages-of-a-larger-map-outlive-those-of-the-map-that-grows-again",
        PAGESTORE,
        "                if page >= first and generation > self.generations.get(page, 0):\n",
        "                if False:\n",
        "what is written behind the former end counts as never written after the next start",
        ("raid5:partial:leave",),
        ("tests/jobs/test_removal.py",),
    ),
)

MARKED = (
    Mutant(
        "written-before-the-mark-is-durable",
        DIRTY,
        "                    await self._save(wanted)\n                    await self._flush()",
        "                    await self._save(wanted)",
        "a cut leaves a torn stripe that no resync visits",
        (*UNLOGGED, "raid5:partial"),
        RESYNC,
    ),
    Mutant(
        "marked-before-the-mark-is-durable",
        DIRTY,
        "                    self._put(wanted, True)",
        "                    self._put(wanted, True)\n                    self._marked |= wanted",
        "a second write to the region does not wait for the mark",
        (*UNLOGGED, "raid5:partial", "rdp:none", "xcode:none"),
        RESYNC,
    ),
    Mutant(
        "mark-cleared-before-its-flush",
        DIRTY,
        "            await self._flush()  # the writes that the bits stood for are durable now",
        "            pass",
        "the cleared mark may be durable before the writes that it stood for",
        (*UNLOGGED, "raid5:partial", "rdp:none"),
        RESYNC,
    ),
    Mutant(
        "mark-of-writes-under-way-cleared",
        DIRTY,
        "if region not in self._inflight and (all_regions or region not in self._touched)",
        "if all_regions or region not in self._touched",
        "a write that takes long loses its mark",
        (*UNLOGGED, "rdp:none", "xcode:none"),
        RESYNC,
    ),
    Mutant(
        "mark-set-again-is-cleared",
        DIRTY,
        "            clear = quiet - self._marked - self._resync",
        "            clear = quiet - self._resync",
        "a write that came while the flush ran loses its mark",
        (*UNLOGGED, "rdp:none", "xcode:none"),
        RESYNC,
    ),
    Mutant(
        "mark-cleared-before-the-resync",
        DIRTY,
        "            clear = quiet - self._marked - self._resync",
        "            clear = quiet - self._marked",
        "a second crash finds nothing to resync",
        (*UNLOGGED, "rdp:none"),
        RESYNC,
    ),
    Mutant(
        "resync-forgets-marks-of-today",
        DIRTY,
        "            clear = done - self._marked",
        "            clear = done",
        "a write that runs while the resync ends loses its mark",
        (*UNLOGGED, "raid5:none:remounts", "rdp:none"),
        RESYNC,
    ),
    Mutant(
        "last-stripe-of-a-region-not-resynced",
        DIRTY,
        "        return range(start, min(start + self.per_region, self.stripes))",
        "        return range(start, min(start + self.per_region, self.stripes) - 1)",
        "its parity stays stale",
        UNLOGGED,
        RESYNC,
    ),
    Mutant(
        "resync-forgotten-before-its-repairs-are-durable",
        RESYNC_FILE,
        "        await self.context.member_set.flush()\n",
        "",
        "a second cut drops the repair and keeps the cleared mark",
        (*UNLOGGED, "evenodd:none"),
        RESYNC,
    ),
    Mutant(
        "resync-leaves-what-was-never-acknowledged",
        RESYNC_FILE,
        "            await _clean(context, stripe, cell)",
        "            pass",
        "an unwritten cell that is taken to read as zero does not",
        (*UNLOGGED, "rdp:none"),
        RESYNC,
    ),
    Mutant(
        "torn-stripe-trusted-by-a-scrub",
        "raidx_fuse/jobs/scrub.py",
        "{} if self.context.dirty_bitmap.awaits_resync(stripe) else locate(chains, syndromes)",
        "locate(chains, syndromes)",
        "parities of content that was never acknowledged outvote data",
        SCRUB,
        ("tests/jobs/test_scrub_locates.py", *RESYNC),
    ),
    Mutant(
        "repair-past-the-log-though-it-is-held",
        "raidx_fuse/engine/context.py",
        'if self.journal.mode != "none" or self.journal.holds(stripe):',
        'if self.journal.mode != "none":',
        "an older record undoes it after the log was switched off",
        SCRUB,
        ("tests/jobs/test_scrub.py", "tests/journal/test_log_cost.py"),
    ),
)

MUTANTS = (
    *FLUSHING,
    *PAGED,
    *MARKED,
)
