"""Bugs of superblocks and assembly: which members count, and in which state."""

from __future__ import annotations

from tests.crash.mutants.mutant import DISKS, ENDS, GROWTH, REMOUNTS, TWO_LOSSES, Mutant

ROUND = "raidx_fuse/format/superblock.py"
SUPERBLOCK = "raidx_fuse/format/superblock.py"
ASSEMBLE = "raidx_fuse/format/assemble.py"
RULING = "raidx_fuse/format/assemble.py"
CONFIG = "raidx_fuse/format/configuration/config.py"
ARRAY = "raidx_fuse/array/array.py"
FAILURES = (
    "tests/engine/test_failures.py",
    "tests/engine/test_beyond_redundancy.py",
    "tests/crash/test_faults_running.py",
)
SUPERBLOCKS = (
    "tests/format/test_superblock.py",
    "tests/format/test_superblock_rounds.py",
    "tests/format/test_assemble_crashes.py",
)
BOTH_ENDS = ("tests/format/test_both_ends.py",)
ASSEMBLY = ("tests/format/test_assemble.py", "tests/format/test_assemble_crashes.py")

MEMBERSHIP = (
    Mutant(
        "superblock-slot-repeated",
        ROUND,
        "(SUPERBLOCK_SLOTS if is_loose else 1)",
        "SUPERBLOCK_SLOTS",
        "a torn superblock leaves none",
        DISKS,
        SUPERBLOCKS,
    ),
    Mutant(
        "superblock-of-a-failed-round-stays",
        ROUND,
        "is_loose = taken_events is not None and old.events > taken_events",
        "is_loose = False",
        "the next round overwrites the only superblock that is durable",
        ("raid0:partial:errors", "raid0:full:errors", "raid1:none:errors"),
        ("tests/crash/test_refused_superblock.py",),
    ),
    Mutant(
        "superblock-at-the-end-after-the-flush",
        ROUND,
        "        await member.writev(offset, [content])\n    await member.flush()\n",
        "        if offset < SUPERBLOCK_BYTES:\n"
        "            await member.writev(offset, [content])\n"
        "    await member.flush()\n"
        "    for offset, content in places or ():\n"
        "        if offset >= SUPERBLOCK_BYTES:\n"
        "            await member.writev(offset, [content])\n",
        "a round counts as written, and the end of a member that loses its front lacks it",
        ENDS,
        BOTH_ENDS,
    ),
    Mutant(
        "superblock-at-the-end-not-written",
        ROUND,
        "    end = end_on(member, superblock)\n    at = ",
        "    end = None\n    at = ",
        "a front that is lost costs the member",
        ENDS,
        BOTH_ENDS,
    ),
    Mutant(
        "data-over-the-superblocks-at-the-end",
        "raidx_fuse/format/create.py",
        "            data_end=min(usable),\n            sums_copies",
        "            data_end=min(sizes),\n            sums_copies",
        "what users write there is overwritten by a round, or there is no end",
        ENDS,
        BOTH_ENDS,
    ),
    Mutant(
        "superblock-at-the-end-inside-the-data-counts",
        CONFIG,
        "return None if end is None or end < self._data_end(record.role) else end",
        "return end",
        "content of a user is overwritten by a superblock",
        ENDS,
        BOTH_ENDS,
    ),
    Mutant(
        "stale-superblock-at-another-end-counts",
        "raidx_fuse/format/both_ends.py",
        "if best is None or superblock.sequence > best[0].sequence:",
        "if best is None:",
        "after a change of the size that was cut, the member is taken for an old copy of itself",
        ENDS,
        BOTH_ENDS,
    ),
    Mutant(
        "superblock-at-the-end-left-on-a-removed-member",
        "raidx_fuse/jobs/attach.py",
        "            await erase_ends(member)\n",
        "",
        "a disk that left the array is found as its member when its front is cleared",
        ENDS,
        BOTH_ENDS,
    ),
    Mutant(
        "checksum-of-superblocks-unchecked",
        SUPERBLOCK,
        "    if crc32c.crc32c(body, crc32c.crc32c(zeroed)) != crc:",
        "    if False:",
        "a torn or rotten superblock is believed",
        DISKS,
        SUPERBLOCKS,
    ),
    Mutant(
        "stale-superblock-believed",
        SUPERBLOCK,
        "        return max(valid, key=lambda superblock: superblock.sequence)\n",
        "        return min(valid, key=lambda superblock: superblock.sequence)\n",
        "of two slots the older one counts",
        DISKS,
        SUPERBLOCKS,
    ),
    Mutant(
        "superblock-not-flushed",
        SUPERBLOCK,
        "[content])\n    await member.flush()",
        "[content])",
        "what was acknowledged on its strength is not durable",
        (*DISKS, *GROWTH),
        SUPERBLOCKS,
    ),
    Mutant(
        "members-that-did-not-answer-are-not-told",
        ROUND,
        "        self.done = False",
        "        self.done = True",
        "a superblock that could not be written counts as written",
        DISKS,
        SUPERBLOCKS,
    ),
    Mutant(
        "ways-part-without-a-trace",
        CONFIG,
        "        if older.reached() <= self.reached():",
        "        if True:",
        "two halves that both went on are joined",
        DISKS,
        (*ASSEMBLY, *SUPERBLOCKS),
    ),
    Mutant(
        "failed-member-joins-again",
        ASSEMBLE,
        "    if record.state == FAILED:",
        "    if False:",
        "it lacks what was written since it failed",
        DISKS,
        ASSEMBLY,
    ),
    Mutant(
        "missing-member-joins-again",
        ASSEMBLE,
        "    if record.state == MISSING:",
        "    if False:",
        "it lacks what was written since it was missing",
        DISKS,
        ASSEMBLY,
    ),
    Mutant(
        "copy-from-a-backup-joins",
        ASSEMBLE,
        "    if events < base_events:",
        "    if False:",
        "it lacks what was written since the copy was made",
        DISKS,
        ASSEMBLY,
    ),
    Mutant(
        "older-side-rules",
        RULING,
        "    best = max(side.rank() for side in valid)",
        "    best = min(side.rank() for side in valid)",
        "members are judged by what was true before the last round",
        DISKS,
        ASSEMBLY,
    ),
    Mutant(
        "split-not-refused",
        RULING,
        "        if not all(side.is_interrupted(given) for side in diverged):",
        "        if False:",
        "two halves that both acknowledged writes are joined",
        DISKS,
        ASSEMBLY,
    ),
    Mutant(
        "start-does-not-tell-who-is-out",
        ARRAY,
        "                config.started_with(member_set.present()), self.base_events, stripes\n",
        "                config, self.base_events, stripes\n",
        "a member that missed this mount joins the next one as if nothing had been written",
        (*DISKS, *REMOUNTS),
        ("tests/array/test_start.py", *FAILURES),
    ),
    Mutant(
        "log-with-records-of-a-former-life",
        "raidx_fuse/format/create.py",
        "    await erase_log(member, regions)",
        "    pass",
        "a disk that was in this array before brings records that fit the running log",
        (*DISKS, *TWO_LOSSES),
        ("tests/format/test_create.py", "tests/format/test_pages.py"),
    ),
    Mutant(
        "pages-of-a-former-life",
        "raidx_fuse/format/create.py",
        "    await erase_pages(member, regions)",
        "    pass",
        "a disk that was in this array before brings newer generations of its maps",
        DISKS,
        ("tests/format/test_create.py", "tests/format/test_pages.py"),
    ),
)

MUTANTS = (*MEMBERSHIP,)
