"""Arrays that break one ordering rule on purpose, to show that the campaign notices (`--broken`).

The product has no switch for it. A subclass leaves out or swaps the step that the rule is about,
and `break_order` makes it the class of the mounted array's object.
"""

from __future__ import annotations

from raidx_fuse.array.array import Array
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.journal.journal import Journal
from raidx_fuse.journal.unsettled import Unsettled


class UnorderedJournal(Journal):
    """A log whose checkpoint does not wait for flushes between its steps."""

    async def _barrier(self) -> None:
        pass


class ParitylessLog(Unsettled):
    """A log whose checkpoint does not log the parities first."""

    async def settle_frozen(self) -> list[int]:
        """Settle nothing."""
        self.frozen.clear()
        return []


class UnorderedRebundle(RebundleOperation):
    """Counts new bundles before their places are durable, and retires a role with its records."""

    async def _announce(self, cells: range, bundles: int) -> None:
        await self._count_bundles(bundles)
        await self.context.journal.chunk_table.save_places(cells)

    async def _clear_log(self) -> None:
        pass


def break_order(array: Array, theme: str) -> None:
    """Make *array* break the rule that the workloads of *theme* depend on."""
    if theme == "members" and array.rebundle is not None:
        array.rebundle.__class__ = UnorderedRebundle
    elif theme == "streams":
        array.context.journal.unsettled.__class__ = ParitylessLog
    else:
        array.context.journal.__class__ = UnorderedJournal
