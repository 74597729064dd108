"""Bugs of changes of shape: growth and restripe."""

from __future__ import annotations

from tests.crash.mutants.mutant import GROWTH, RESTRIPE, Mutant

CONTEXT = "raidx_fuse/engine/context.py"
GROWTH_FILE = "raidx_fuse/engine/growth_position.py"
GROWER = "raidx_fuse/jobs/grow/operation.py"
RESHAPER = "raidx_fuse/jobs/reshape.py"
GROW = "raidx_fuse/jobs/grow/job.py"
GROW_COPY = "raidx_fuse/jobs/grow/copy.py"
LARGER = "raidx_fuse/jobs/grow/larger_members.py"
RESTRIPER = "raidx_fuse/jobs/restripe/operation.py"
RESTRIPE_FILE = "raidx_fuse/jobs/restripe/job.py"
GROWTH_TESTS = (
    "tests/jobs/test_growth_troubles.py",
    "tests/jobs/test_growth_parity.py",
    "tests/jobs/test_growth.py",
)
RESTRIPE_TESTS = (
    "tests/crash/test_restripe_cuts.py",
    "tests/jobs/test_restripe.py",
    "tests/jobs/test_restripe_troubles.py",
)

MUTANTS = (
    Mutant(
        "position-durable-before-the-copies",
        GROWTH_FILE,
        "            await self._member_set.flush()\n",
        "",
        "a crash looks for blocks where their copies are not yet (law 2)",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "write-without-a-durable-position",
        GROWTH_FILE,
        "        if stripe not in self.unsaved:\n            return False",
        "        return False",
        "a crash goes back to the old copy, which the write does not have (law 1)",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "parity-that-moved-changes-without-a-save",
        GROWTH_FILE,
        "            moved >> code.data_count + parity & 1 and support & cells\n",
        "            False and support & cells\n",
        "a crash goes back to the old copy of a parity, which the write does not have (law 1)",
        ("raid5:partial:growth", "rdp:partial:growth"),
        ("tests/jobs/test_growth_codes.py",),
    ),
    Mutant(
        "data-alone-at-places-that-are-not-durable",
        GROWTH_FILE,
        "        return self.parity == LIVE and stripe not in self.unsaved\n",
        "        return self.parity == LIVE\n",
        "a crash goes back to old places, where the parity of the data is not (law 5)",
        ("raid5:partial:growth", "rdp:partial:growth"),
        ("tests/crash/test_growth_data_only.py",),
    ),
    Mutant(
        "data-alone-while-cells-change-their-numbers",
        CONTEXT,
        "            unsettled.pause(True)\n",
        "",
        "what the log has of a stripe is counted by cells that the narrower code does not have",
        ("raid5:partial:growth", "rdp:partial:growth"),
        ("tests/crash/test_growth_data_only.py",),
    ),
    Mutant(
        "old-copies-given-back-early",
        GROW,
        "            await self._vacated.give_back(self.growth.saved)",
        "            await self._vacated.give_back(self.layout.stripes)",
        "a crash goes back to copies that are holes by now",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "parity-names-copies-that-are-not-durable",
        GROW_COPY,
        "        await self.context.member_set.flush()\n",
        "        pass\n",
        "piggyback: a record that is replayed finds no copies",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "parity-changed-in-place-while-a-member-is-lost",
        GROW_COPY,
        'journal.mode == "none" and not lost and',
        'journal.mode == "none" and',
        "piggyback: a copy that is refused takes the chunks of the lost member along",
        GROWTH,
        ("tests/jobs/test_growth_parity.py",),
    ),
    Mutant(
        "copy-under-an-older-record",
        GROW_COPY,
        "            if holds(stripe):",
        "            if False:",
        "the record undoes the copy (law 4)",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "block-moves-before-the-resync",
        GROW,
        "    turns = needs_resync = pauses = True",
        "    turns = pauses = True",
        "the resync fills the place with zeros that the block has left or come to (law 3)",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "wider-with-records-of-before",
        RESHAPER,
        "closed(drained=change.drained):",
        "closed(drained=not records or change.clean):",
        "a record of a role's former member is replayed onto the newcomer",
        GROWTH,
        GROWTH_TESTS,
        equivalent="a record of before names only roles and stripes of the narrower shape, and both"
        " mean the same in the wider one while nothing has migrated; its new cells are unwritten,"
        " zero in every chain. None names a role that is new here: whatever takes roles away (a"
        " cancelled growth, a surrogate's hand-over, the end of a restripe) drains the log first."
        " `join` has erased the newcomers' logs, and later a copy goes through the log where a"
        " record is held (law 4)",
    ),
    Mutant(
        "role-before-its-maps-are-durable",
        RESHAPER,
        "            await pages.save_all()\n    await context.member_set.flush()\n",
        "            await pages.save_all()\n",
        "after a cut newcomers are members whose maps are empty",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "left-places-taken-to-read-as-zero",
        GROWER,
        "                replace(r, reads_zero=False) if 0 <= r.role < before else r"
        " for r in config.members",
        "                r for r in config.members",
        "what blocks have left shows behind the old end of the image",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "log-not-chosen-again-when-the-surrogate-takes-over",
        RESHAPER,
        "                        context.journal.choose_roles()\n",
        "                        pass\n",
        "the log counts on a role that another member has now",
        GROWTH,
        GROWTH_TESTS,
    ),
    Mutant(
        "window-from-a-mark-that-is-not-durable",
        RESTRIPE_FILE,
        "        return self.context.journal.durable_mark",
        "        return self.context.journal.mark",
        "a crash goes back to rows that are overwritten (law 2)",
        ("raid5:partial:restripe",),
        RESTRIPE_TESTS,
    ),
    Mutant(
        "window-counts-before-it-is-durable",
        RESTRIPE_FILE,
        "            await context.member_set.flush()\n            if self.blocked()",
        "            if self.blocked()",
        "the record makes stripes count that a cut drops (law 3)",
        RESTRIPE,
        RESTRIPE_TESTS,
    ),
    Mutant(
        "watermark-of-a-restripe-off-by-one",
        RESTRIPE_FILE,
        "            mark=window.mark,\n            unverified=prepared.unverified,",
        "            mark=window.mark + 1,\n            unverified=prepared.unverified,",
        "one chunk is looked for on the side where it does not lie",
        RESTRIPE,
        RESTRIPE_TESTS,
    ),
    Mutant(
        "restripe-begins-without-its-mark",
        RESTRIPER,
        "        await context.journal.save_mark(layout.start)\n",
        "",
        "after a cut the watermark is that of an earlier restripe, or none",
        RESTRIPE,
        RESTRIPE_TESTS,
    ),
    Mutant(
        "restripe-begins-with-stripes-in-flight",
        RESTRIPER,
        "                start=lambda _: self._start(back=False),\n                clean=True,\n",
        "                start=lambda _: self._start(back=False),\n",
        "marks speak of stripes of the layout before",
        RESTRIPE,
        RESTRIPE_TESTS,
    ),
    Mutant(
        "restripe-ends-with-records-of-both-layouts",
        RESHAPER,
        "                async with context.closed(drained=change.drained):\n"
        "                    while True:\n"
        "                        await quiesce(context, renumbers=change.renumbers, clean=",
        "                async with context.closed(drained=not change.renumbers):\n"
        "                    while True:\n"
        "                        await quiesce(context, renumbers=False, clean=",
        "a replay under the new layout redoes a change of stripes of the old one",
        RESTRIPE,
        RESTRIPE_TESTS,
    ),
    Mutant(
        "roles-move-up-under-records",
        RESHAPER,
        "quiesce(context, renumbers=change.renumbers, clean=",
        "quiesce(context, renumbers=False, clean=",
        "a replay redoes a record on the member that has the role by then",
        ("raid5:partial:leave",),
        ("tests/jobs/test_removal.py",),
    ),
    Mutant(
        "log-not-emptied-before-the-new-code",
        RESHAPER,
        "quiesce(context, renumbers=change.renumbers, clean=",
        "quiesce(context, renumbers=change.renumbers and bool(planned), clean=",
        "records that came since the log was emptied have too few copies for the new code",
        ("raid0:full:restripe", "raid1:partial:restripe", "raid5:full:restripe"),
        ("tests/jobs/test_restripe_copies.py",),
    ),
    Mutant(
        "newcomers-stay-when-the-change-is-cancelled",
        RESHAPER,
        "            except BaseException:\n",
        "            except Exception:\n",
        "what joined for a growth is a spare of the array from then on",
        GROWTH,
        ("tests/jobs/test_reshape.py",),
    ),
    Mutant(
        "stripes-get-other-numbers-while-some-are-torn",
        "raidx_fuse/store/dirty_bitmap.py",
        "        if self._torn:\n            raise BusyError(",
        "        if False:\n            raise BusyError(",
        "after a crash their marks mean other stripes, and the resync leaves them torn",
        RESTRIPE,
        ("tests/jobs/test_restripe_troubles.py", "tests/jobs/test_larger_members.py"),
    ),
    Mutant(
        "restripe-turns-back-with-a-mark-that-is-not-durable",
        RESTRIPE_FILE,
        "        await context.journal.drain()\n        await context.member_set.update",
        "        await context.member_set.update",
        "a record of the way forth is replayed on the way back",
        RESTRIPE,
        RESTRIPE_TESTS,
    ),
    Mutant(
        "marks-that-stand-for-other-stripes-after-a-start",
        LARGER,
        "    context.dirty_bitmap.reshape(layout.stripes, "
        "layout.initial_data_count * layout.chunk_bytes)\n",
        "    context.dirty_bitmap.extend(layout.stripes)\n",
        "the next start takes a region for more stripes than this one does, and resyncs others",
        ("raid5:none:pairs:larger:stripe", "raid5:partial:pairs:larger:stripe"),
        ("tests/jobs/test_larger_members.py",),
    ),
    Mutant(
        "what-was-added-to-a-member-taken-to-read-as-zero",
        LARGER,
        "size_bytes=size, reads_zero=False)",
        "size_bytes=size)",
        "what lay there shows around a first write",
        ("raid5:partial:pairs:larger:small",),
        ("tests/jobs/test_larger_members.py",),
    ),
)
