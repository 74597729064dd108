"""Bugs of members that were away and are caught up: regions that are not marked, or too late."""

from __future__ import annotations

from tests.crash.mutants.mutant import RETURNS, Mutant

CHANGES = "raidx_fuse/engine/changed_regions.py"
REBUILD = "raidx_fuse/jobs/rebuild.py"
UNSETTLED = "raidx_fuse/journal/unsettled.py"
JOURNAL = "raidx_fuse/journal/journal.py"
WRITER = "raidx_fuse/engine/write/write.py"
RETURNING = "raidx_fuse/array/membership.py"
TESTS = ("tests/jobs/test_catching_up.py", "tests/jobs/test_catching_up_limits.py")

MUTANTS = (
    Mutant(
        "marks-of-formats-cleared-in-content-that-stays",
        "raidx_fuse/format/create.py",
        "regions.data.offset if kept_bytes else member.size_bytes",
        "member.size_bytes",
        "bytes of a user that look like another format's mark become zeros on the member",
        ("raid4:none:returns", "raid1:none:returns", *RETURNS),
        TESTS,
    ),
    Mutant(
        "dirty-regions-not-marked-when-a-member-leaves",
        CHANGES,
        "        self._note_dirty()\n        self._add(self._logged())",
        "        self._add(self._logged())",
        "a write past the log that the member had not flushed is lost on it for ever",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "records-not-marked-when-a-member-leaves",
        CHANGES,
        "        self._add(self._logged())\n",
        "",
        "logged content that the member had not flushed, or not got, is lost on it for ever",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "degraded-write-not-marked",
        WRITER,
        "                context.changes.note_degraded(piece.stripe",
        "                list(piece.stripe",
        "the catching up passes what was written while the member was away",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "parity-logged-without-the-member-not-noted",
        UNSETTLED,
        "        self.before_parity(stripes)\n",
        "",
        "the catching up passes a stripe whose parity on the member is the old one",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "degraded-write-past-the-log-marked-in-memory-only",
        CHANGES,
        "            await self.save()\n            self.require_noted(degraded)",
        "            self.require_noted(degraded)",
        "after a cut the region counts as unchanged",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "checkpoint-places-what-is-not-marked",
        JOURNAL,
        "            await self.cells.absences.before_places()\n",
        "",
        "after a cut the region counts as unchanged, and the record is gone",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "catching-up-writes-what-is-not-marked",
        REBUILD,
        "        await context.changes.save()\n",
        "",
        "a cut drops the record, and the next catching up passes what it had written",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "start-does-not-mark-what-it-redoes",
        CHANGES,
        "        self._add(self._redone)\n        self._unsaved.clear()",
        "        self._unsaved.clear()",
        "a record that is redone without the member is lost on it for ever",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "last-region-of-a-run-not-visited",
        CHANGES,
        "            if region == high:\n                high += 1\n                continue\n",
        "            if region == high:\n                continue\n",
        "of neighbouring regions only the first is visited",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "old-copy-caught-up",
        RETURNING,
        "    if not left[0] <= superblock.events <= left[1]:",
        "    if False:",
        "a member that was restored from an old image lacks more than what is marked",
        RETURNS,
        TESTS,
    ),
    Mutant(
        "half-that-was-started-alone-caught-up",
        RETURNING,
        "    return past and own ==",
        "    return own ==",
        "what was written to it alone stays on it",
        RETURNS,
        TESTS,
    ),
)
