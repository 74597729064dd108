"""Bugs of mending: sectors that cannot be read, recomputed, written again, or given up."""

from __future__ import annotations

from tests.crash.mutants.mutant import LATENT, Mutant

MEND = "raidx_fuse/engine/write/mend.py"
TESTS = ("tests/engine/test_latent_errors.py", "tests/engine/test_latent_losses.py")
GIVEN_UP = ("tests/crash/test_given_up.py",)

MUTANTS = (
    Mutant(
        "page-mended-in-memory-only",
        MEND,
        "        await context.write_cells(stripe, requests, epoch, cover)\n",
        "",
        "the place stays unreadable, and its member is failed for it",
        LATENT,
        TESTS,
    ),
    Mutant(
        "unreadable-page-read-all-the-same",
        "raidx_fuse/store/member_set.py",
        "        if self.unreadable:\n            size =",
        "        if False:\n            size =",
        "a reader that does not plan around the page costs the member",
        LATENT,
        TESTS,
    ),
    Mutant(
        "page-younger-than-the-plan-costs-its-member",
        "raidx_fuse/store/member_set.py",
        "            if unreadable.asked_again(role, begin, end):\n",
        "            if True:\n",
        "a job that planned before a user came across the page has its member failed",
        LATENT,
        TESTS,
    ),
    Mutant(
        "write-does-not-mend-what-it-must-read",
        "raidx_fuse/engine/write/write.py",
        "                        raise _UnreadableError from None\n",
        "                        pass\n",
        "a pre-read that meets the page a second time costs the member",
        LATENT,
        TESTS,
    ),
    Mutant(
        "given-up-before-the-list-says-so",
        MEND,
        "        await self.keep_lost()\n",
        "        pass\n",
        "a cut leaves zeros under a chunk that nobody calls lost",
        LATENT,
        GIVEN_UP,
    ),
    Mutant(
        "parity-not-computed-when-a-page-is-given-up",
        MEND,
        "            contents[cell] = np.zeros(PAGE_BYTES, np.uint8)\n            combine(",
        "            np.zeros(PAGE_BYTES, np.uint8)\n            (lambda *_: 0)(",
        "the chains of the stripe do not hold, and the next rebuild makes other content of them",
        LATENT,
        (*TESTS, *GIVEN_UP),
    ),
    Mutant(
        "given-up-while-a-reader-waits",
        "raidx_fuse/engine/read.py",
        "                if context.bad_chunks:  # perhaps given up meanwhile\n",
        "                if False:\n",
        "a read that began before gets the zeros of the place as content",
        LATENT,
        GIVEN_UP,
    ),
    Mutant(
        "written-page-not-read-again",
        MEND,
        "            error = await member_set.probe(role, page)\n",
        "            error = None\n",
        "a disk that takes writes of the sector and cannot read it stays in use",
        LATENT,
        TESTS,
    ),
)
