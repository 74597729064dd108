"""Bugs of parity that follows at the checkpoint (journal/unsettled.py)."""

from __future__ import annotations

from tests.crash.mutants.mutant import Mutant

UNSETTLED = "raidx_fuse/journal/unsettled.py"
CELLS = (
    "raid5:partial:checkpoints",
    "rdp:full:checkpoints",
    "raidx-parity:partial:checkpoints",
    "upc:partial:checkpoints",
)
TESTS = ("tests/crash/test_checkpoints.py", "tests/journal/test_unsettled.py")

MUTANTS = (
    Mutant(
        "tail-behind-records-of-new-data",
        "raidx_fuse/journal/journal.py",
        "            if number == sequence:\n                sequence += 1\n",
        "            sequence = number + 1\n",
        "the ring is given away with data that is in no home place",
        CELLS,
        TESTS,
    ),
    Mutant(
        "base-with-the-new-data-in-it",
        UNSETTLED,
        "            await member_set.read_base(reads, frozen=not is_frozen)",
        "            await member_set.read([(r, *read) for r in reads for read in reads[r]])",
        "read-modify-write XORs the new data with itself: the parity stays as it was",
        CELLS,
        TESTS,
    ),
    Mutant(
        "base-without-the-frozen-layer",
        UNSETTLED,
        "            await member_set.read_base(reads, frozen=not is_frozen)",
        "            await member_set.read_base(reads, frozen=False)",
        "parity is computed from home places that are about to be overwritten",
        CELLS,
        TESTS,
    ),
    Mutant(
        "placed-without-being-settled",
        "raidx_fuse/journal/journal.py",
        "            tail = self._behind(tail, await self.unsettled.settle_frozen())\n",
        "            self.unsettled.frozen.clear()\n",
        "data goes to its home place and its parity never does (law 1)",
        CELLS,
        TESTS,
    ),
    Mutant(
        "data-without-parity-over-data-with-parity",
        UNSETTLED,
        "        if stripe in self.with_parity and stripe not in self.current:\n",
        "        if False:\n",
        "the parity lacks a change that the base does not show (law 2)",
        CELLS,
        TESTS,
    ),
    Mutant(
        "degraded-read-of-an-unsettled-stripe",
        "raidx_fuse/engine/read.py",
        "            await context.journal.settle((stripe,))\n",
        "",
        "it solves by chains that do not hold (law 3)",
        CELLS,
        TESTS,
    ),
    Mutant(
        "job-in-unsettled-stripes",
        "raidx_fuse/jobs/job.py",
        "        await self.context.journal.settle(stripes)\n",
        "",
        "a rebuild writes what chains give that do not hold (law 3)",
        CELLS,
        TESTS,
    ),
    Mutant(
        "replay-settles-and-does-not-log-it",
        "raidx_fuse/journal/recovery.py",
        "        copies.append((offset, encode_record(epoch, number, at, ring.array, body)))\n",
        "",
        "cut again and with a member lost, it computes parity from places that it has half written",
        ("raid5:partial:checkpoints",),
        TESTS,
    ),
    Mutant(
        "replay-takes-newer-data-for-settled",
        "raidx_fuse/journal/recovery.py",
        "        later = [entry for entry in waiting if entry[0] > last]",
        "        later: list[Data] = []",
        "data that came while the stripe was settled is lost",
        CELLS,
        TESTS,
    ),
    Mutant(
        "settled-over-a-closing-that-is-not-durable",
        UNSETTLED,
        "        await self._member_set.flush()\n        closed = [",
        "        closed = [",
        "the log says that a stripe is settled whose parity lies in no record and in no place",
        ("raid5:partial:streams", "rdp:partial:streams"),
        ("tests/crash/test_streams.py",),
    ),
    Mutant(
        "no-space-kept-for-the-parity-that-follows",
        UNSETTLED,
        "        self.held_bytes += space_bytes\n",
        "",
        "the ring is full when the parities have to be logged",
        CELLS,
        TESTS,
    ),
)
