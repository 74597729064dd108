"""Bugs of volumes that move between two arrays."""

from __future__ import annotations

from tests.crash.mutants.mutant import POOL, Mutant

TRANSFER = "raidx_fuse/pool/transfer.py"
POOLS = "raidx_fuse/pool/pool.py"
JOB = "raidx_fuse/pool/move.py"
BEGIN = "raidx_fuse/pool/transfer.py"
MOVE_TESTS = (
    "tests/pool/test_move.py",
    "tests/pool/test_swap.py",
    "tests/pool/test_move_troubles.py",
    "tests/pool/test_move_settled.py",
    "tests/pool/test_volume_gate.py",
)

MUTANTS = (
    Mutant(
        "handed-over-before-the-copies-are-durable",
        TRANSFER,
        "                await self.target.array.flush()\n",
        "",
        "a cut keeps the record that ends the move and drops what it is about (law 2)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "given-up-before-it-is-handed-over",
        TRANSFER,
        "                await self.target.change(self._arrived)\n",
        "                await give_up(self.source, self.volume_uuid)\n"
        "                await self.target.change(self._arrived)\n",
        "a cut between the two finds the volume on neither array (law 1)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "arrival-forgotten-before-the-source-gives-up",
        TRANSFER,
        "        await give_up(self.source, self.volume_uuid)\n"
        "        await forget_arrival(self.target, self.uuid)\n",
        "        await forget_arrival(self.target, self.uuid)\n"
        "        await give_up(self.source, self.volume_uuid)\n",
        "nothing says any more what the source's move record is about",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "watermark-before-the-copies-are-durable",
        TRANSFER,
        "            await (self.source if self.back else self.target).array.flush()\n",
        "",
        "a start reads copies that a cut has dropped (law 2)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "write-behind-a-watermark-that-is-not-durable",
        TRANSFER,
        "                await self.save()\n                continue\n",
        "                self.saved = self.position\n                continue\n",
        "a cut takes the watermark back and with it what was written below it (law 3)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "window-copied-under-writes-in-flight",
        TRANSFER,
        "            await self.volume.gate.passed()\n",
        "",
        "a write reaches the source when its place has been copied (law 4)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "first-window-copied-under-older-writes",
        BEGIN,
        "        async with volume.gate.closed(limit_s):\n",
        "        if True:\n",
        "a write from before the move reaches the source when its place has been copied",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "places-wiped-under-reads-in-flight",
        TRANSFER,
        "            async with self._closed():\n"
        "                self.source.volumes.remove(self.volume)\n",
        "            if True:\n                self.source.volumes.remove(self.volume)\n",
        "a read from before the move returns zeros (law 5)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "copy-of-what-a-cut-took-back-stays",
        TRANSFER,
        "        if self.resumed:\n",
        "        if False:\n",
        "what read as zeros after a cut becomes what was written before it",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "target-given-up-before-the-source-is-whole",
        TRANSFER,
        "                await self.source.change(self._without_move)\n",
        "                await give_up(self.target, self.volume_uuid)\n"
        "                await self.source.change(self._without_move)\n",
        "a cut between the two finds a move that the other array does not know (law 1)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "pieces-given-up-before-the-watermark-is-durable",
        TRANSFER,
        "        await self.save()\n        async with self._closed(), self._saving:\n",
        "        self.saved = self.position\n        async with self._closed(), self._saving:\n",
        "a cut finds bytes that the source has given up and the target does not count yet",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "pieces-wiped-under-reads-in-flight",
        TRANSFER,
        "        async with self._closed(), self._saving:\n",
        "        async with self._saving:\n",
        "a read from before the move returns zeros (law 5)",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "one-of-several-handed-over-before-all-are-copied-durably",
        JOB,
        "            await transfer.save()  # all of them, before one cannot go back any more\n",
        "            pass\n",
        "after a cut the other ones can be cancelled, but have nowhere to go back to",
        POOL,
        MOVE_TESTS,
    ),
    Mutant(
        "target-of-another-time-given-up",
        POOLS,
        "        if not move.watermark:\n",
        "        if True:\n",
        "outdated members of the source make the target lose what only it has",
        POOL,
        MOVE_TESTS,
    ),
)
