"""Bugs of replacing a member in use: writes that miss its successor, a role given too early."""

from __future__ import annotations

from tests.crash.mutants.mutant import REPLACES, Mutant

REPLACE = "raidx_fuse/jobs/replace.py"
TWIN = "raidx_fuse/jobs/replace.py"
TESTS = ("tests/jobs/test_replace.py",)

MUTANTS = (
    Mutant(
        "write-misses-the-successor",
        TWIN,
        "        await self.copy(offset_bytes, buffers)\n\n    async def readv",
        "\n    async def readv",
        "what is written after its stripe was copied is old on the new member",
        REPLACES,
        TESTS,
    ),
    Mutant(
        "flush-misses-the-successor",
        TWIN,
        "                await self.successor.flush()\n",
        "                pass\n",
        "a cut after the new member has the role takes flushed data with it",
        REPLACES,
        TESTS,
    ),
    Mutant(
        "role-given-before-the-copy-is-durable",
        REPLACE,
        "        await member_set.update(lambda config: config)\n"
        "        await member_set.published()",
        "        await member_set.published()",
        "a cut after the new member has the role finds copies that are not there",
        REPLACES,
        TESTS,
    ),
    Mutant(
        "position-of-another-run-counts",
        REPLACE,
        'counts = value.get("starts") == starts',
        "counts = True",
        "what was written without the new member is old on it",
        ("raid5:none:replaces",),
        TESTS,
    ),
)
