"""Bugs of discards."""

from __future__ import annotations

from tests.crash.mutants.mutant import DISCARDS, Mutant

DISCARD = "raidx_fuse/engine/discard.py"
TESTS = ("tests/engine/test_discard.py",)

MUTANTS = (
    Mutant(
        "chunk-dropped-though-a-parity-has-it",
        DISCARD,
        "                if protected & cells and protected & written & ~cells:",
        "                if not protected:",
        "it counts as zero now, but not in the parity: a lost neighbour is solved wrong",
        DISCARDS,
        TESTS,
    ),
    Mutant(
        "discarded-without-a-mark",
        DISCARD,
        "        trusted = bool(context.zeros.recorded())\n",
        "        trusted = False\n",
        "a cut leaves old content where first writes rely on zeros",
        DISCARDS,
        TESTS,
    ),
    Mutant(
        "holes-punched-before-the-log-is-placed",
        DISCARD,
        "await context.journal.place_before(context.journal.ring.next_sequence)",
        "pass",
        "the checkpoint places old content in the holes, where first writes rely on zeros",
        DISCARDS,
        TESTS,
    ),
    Mutant(
        "discarded-places-keep-their-content",
        DISCARD,
        "                await self._empty(before)\n",
        "",
        "first writes rely on zeros where the old content still is",
        DISCARDS,
        TESTS,
    ),
    Mutant(
        "holes-relied-on-before-they-are-durable",
        DISCARD,
        "            if zeroed:\n                await context.member_set.flush()\n",
        "",
        "a cut keeps a first write to a part of a chunk, and old content in the rest of it",
        (*DISCARDS, "raid4:full:discards"),
        TESTS,
    ),
    Mutant(
        "bits-cleared-past-the-log",
        DISCARD,
        "                await journal.commit(stripes, (), (), unwritten=chunks)\n",
        "                await context.written.mark((), chunks)\n",
        "older records are redone where the map says that nothing is, or parity of it is",
        DISCARDS,
        TESTS,
    ),
)
