"""Bugs at the gate, and at those who pass it or close it: a change of places meets requests."""

from __future__ import annotations

from tests.crash.mutants.mutant import Mutant

DISCARD = "raidx_fuse/engine/discard.py"
GATE = "raidx_fuse/engine/gate.py"
JOB = "raidx_fuse/jobs/job.py"
MODE = "raidx_fuse/array/settings.py"
RESHAPER = "raidx_fuse/jobs/reshape.py"
TABLE = "raidx_fuse/pool/array_volumes.py"
TRANSFER = "raidx_fuse/pool/transfer.py"
VOLUME = "raidx_fuse/pool/volume.py"
WRITER = "raidx_fuse/engine/write/write.py"

ENGINE_TESTS = ("tests/engine/test_gate.py",)
VOLUME_TESTS = ("tests/pool/test_volume_gate.py",)

LOCKS = (
    "between its look at the open gate and its first stripe lock, held or waited for, nothing "
    "suspends; a lock is handed over without being free, and whoever closes the gate of a layout "
    "waits for all locks too (`ArrayContext.closed`). It looks up its places under these locks, so "
    "the two that only wait for those inside (`Gate.passed`: holes of a growth, windows of a "
    "restripe) do not need it inside either"
)

MUTANTS = (
    # who enters
    Mutant(
        "discard-outside-the-gate-of-its-volume",
        VOLUME,
        "        inside = await self.gate.enter()\n        try:\n"
        "            self.require_inside(offset, length)\n"
        "            if self._discard is not None:\n"
        "                await self._discard(offset, length, fast_only)\n"
        "                return\n        finally:\n            inside.leave()\n",
        "        await self.gate.opened()\n        self.require_inside(offset, length)\n"
        "        if self._discard is not None:\n"
        "            await self._discard(offset, length, fast_only)\n            return\n",
        "it goes on in places that another volume has by then",
        (
            "raid5:partial:pairs:trim:shrink",
            "raid5:partial:pairs:trim:delete",
            "raid5:partial:pairs:trim:move",
        ),
        VOLUME_TESTS,
    ),
    Mutant(
        "discard-outside-the-gate-of-the-layout",
        DISCARD,
        "        passage = await context.gate.enter()\n        try:\n"
        "            await self._drop_in(layout, stripes, choose)\n"
        "        finally:\n            passage.leave()\n",
        "        await context.gate.opened()\n"
        "        await self._drop_in(layout, stripes, choose)\n",
        "the layout changes between its look and its locks",
        (
            "raid5:partial:pairs:discard:restripe",
            "raid5:partial:pairs:restripe:discard",
            "raid5:partial:pairs:trim:restripe",
        ),
        (*ENGINE_TESTS, "tests/engine/test_discard.py"),
        LOCKS,
    ),
    Mutant(
        "parts-of-a-write-enter-one-by-one",
        VOLUME,
        "                await write(None, place, bytes(view[done : done + size]))\n",
        "                await write(gate, place, bytes(view[done : done + size]))\n",
        "a request that is inside enters again: it finds the gate closed that waits for it",
        (
            "raid5:partial:pairs:many:enlarge",
            "raid5:partial:pairs:many:move",
            "raid5:partial:pairs:enlarge:many",
        ),
        VOLUME_TESTS,
    ),
    Mutant(
        "write-over-extents-outside-the-gate",
        VOLUME,
        "    async def write_across(offset: int, data: ReadBuffer) -> None:\n"
        "        inside = None if gate is None else gate.enter_now()\n",
        "    async def write_across(offset: int, data: ReadBuffer) -> None:\n"
        "        inside = None\n",
        "the rest of a request lands where the volume was",
        ("raid5:partial:pairs:many:move", "raid5:partial:pairs:many:enlarge"),
        VOLUME_TESTS,
    ),
    Mutant(
        "outside-the-gate-after-a-resize",
        TABLE,
        "            write_of(array.write_for, extents, volume.gate),\n",
        "            write_of(array.write_for, extents),\n",
        "requests of a volume that has got other places are not waited for any more",
        ("raid5:partial:pairs:enlarge:move", "raid5:partial:pairs:move:many"),
        VOLUME_TESTS,
    ),
    Mutant(
        "window-of-a-job-outside-the-gate",
        JOB,
        "            inside = gate.enter_now() if stripes else None\n",
        "            inside = None\n",
        "stripes of another layout are worked on: the locks are taken after the look",
        ("raid5:partial:pairs:scrub:restripe", "raid5:partial:pairs:scrub:grow"),
        ENGINE_TESTS,
        LOCKS,
    ),
    Mutant(
        "fast-write-through-the-closed-gate",
        WRITER,
        "        return healthy and calm and not context.gate.is_closed\n",
        "        return healthy and calm\n",
        "a record, or a write past the log, comes while roles or places change",
        (
            "raid5:partial:pairs:restripe:small",
            "raid5:none:pairs:replace:stripe",
            "raid5:partial:pairs:mode:stripe",
        ),
        ENGINE_TESTS,
    ),
    # who leaves, and who is waited for
    Mutant(
        "inside-after-a-cancel",
        GATE,
        "    except BaseException:\n        if outer is not None:\n            outer.leave()\n",
        "    except Exception:\n        if outer is not None:\n            outer.leave()\n",
        "a request that is cancelled while it waits is inside for ever: nothing changes any more",
        ("raid5:partial:pairs:grow:part",),
        ENGINE_TESTS,
    ),
    Mutant(
        "those-who-came-before-are-forgotten",
        GATE,
        "        for generation in list(self._older):\n",
        "        for generation in self._older[-1:]:\n",
        "who is inside since before an earlier look is not waited for",
        ("raid5:partial:pairs:trim:move", "raid5:partial:pairs:many:swap"),
        (*ENGINE_TESTS, *VOLUME_TESTS),
    ),
    Mutant(
        "changed-though-requests-did-not-end",
        GATE,
        "                if wait.cancelled_caught:\n",
        "                if False:\n",
        "a limit in time lets the change go on under requests",
        ("raid5:partial:pairs:hangs:restripe", "raid5:partial:pairs:part:replace"),
        (*ENGINE_TESTS, *VOLUME_TESTS),
    ),
    # who closes
    Mutant(
        "resized-with-the-gate-open",
        TABLE,
        "        async with AsyncExitStack() as table_locked:\n"
        "            async with volume.gate.closed(self.array.member_set.io_timeout_s):\n",
        "        async with AsyncExitStack() as table_locked:\n            if True:\n",
        "places are given up under requests",
        ("raid5:partial:pairs:many:enlarge", "raid5:partial:pairs:trim:shrink"),
        VOLUME_TESTS,
    ),
    Mutant(
        "handed-over-with-the-gate-open",
        TRANSFER,
        "            async with self._closed():\n"
        "                self.source.volumes.remove(self.volume)\n",
        "            if True:\n                self.source.volumes.remove(self.volume)\n",
        "requests under way go to places that the volume has left",
        ("raid5:partial:pairs:move:many", "raid5:partial:pairs:move:part"),
        (*VOLUME_TESTS, "tests/pool/test_move.py"),
    ),
    Mutant(
        "mode-changed-with-the-gate-open",
        MODE,
        "    async with context.closed(drained=False):  # no write that began under the other mode "
        "is left\n",
        "    if True:\n",
        "a write past the log is under way that the superblocks promise not to have",
        (
            "raid5:none:pairs:mode:part",
            "raid5:none:pairs:part:mode",
            "raid5:full:pairs:stripe:mode",
        ),
        ("tests/array/test_mode_changes.py", "tests/jobs/test_failing_resync.py"),
    ),
    Mutant(
        "opened-before-the-end-of-a-restripe-is-published",
        RESHAPER,
        "                    await member_set.update(lambda config: config)\n"
        "                    if change.settle is not None:\n"
        "                        await change.settle()\n",
        "                await member_set.update(lambda config: config)\n",
        "records name roles and stripes that a mount after a cut does not have",
        ("raid5:partial:pairs:remove:small", "raid5:partial:pairs:remove:part"),
        ("tests/jobs/test_removal.py",),
    ),
)
