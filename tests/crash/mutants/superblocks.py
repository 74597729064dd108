"""Bugs of superblocks and assembly: which members count, and in which state."""

from __future__ import annotations

from tests.crash.mutants.mutant import DISKS, GROWTH, REMOUNTS, TWO_LOSSES, Mutant

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
        "SUPERBLOCK_SLOT_BYTES, [content])\n    await member.flush()",
        "SUPERBLOCK_SLOT_BYTES, [content])",
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
