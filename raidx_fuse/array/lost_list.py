"""The list of lost chunks in the superblocks: read at the start, saved when it changes."""

from __future__ import annotations

import logging

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.lost_chunks import KEY, decode_chunks, encode_chunks
from raidx_fuse.tasks import rest

log = logging.getLogger(__name__)

SAVE_EACH_S = 1.0


class LostList:
    """Keeps the lost chunks of one array in its superblocks."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        self._saved = 0  # the list's count of `changes` when it was last saved

    def load(self) -> None:
        """Read the list from the superblocks. Raises FormatError."""
        jobs = self.context.member_set.config.jobs
        lost = decode_chunks(jobs.get(KEY, {}), self.context.layout.chunks)
        self.context.take_lost_chunks(lost)

    async def run(self) -> None:
        """Save the list whenever it has changed (a background task)."""
        while True:
            await rest(SAVE_EACH_S)
            try:
                await self.save()
            except RaidxError as error:  # the list stays in memory, and is saved at the next try
                log.critical("%s", error)

    async def save(self) -> None:
        """Write the list into the superblocks if it has changed.

        A list that does not fit is rounded up (format/configuration/fitting.py). Raises RaidxError.
        """
        bad = self.context.bad_chunks
        changes = bad.changes
        if changes == self._saved:
            return
        encoded = encode_chunks(bad)
        await self.context.member_set.update(lambda config: config.with_job(KEY, encoded))
        self._saved = changes
