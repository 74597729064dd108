"""Changing the journal's mode (`journal=none|partial|full`) while the array runs.

The superblocks must describe every write that a crash may tear. If they say "none", the next start
resyncs each stripe in flight as one that any write may have torn (write hole); otherwise only
full-stripe writes can have torn it. So the superblocks say "none" before the first write without
the log, and until the effects of all such writes are durable.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, RaidxError
from raidx_fuse.format.configuration.config import ArrayConfig

log = logging.getLogger(__name__)


async def change_mode(context: ArrayContext, mode: str) -> None:
    """Put *mode* in force from now on, and after a remount.

    Raises BusyError while a resync is due after a crash without a journal, or if requests do not
    end in time (`ArrayContext.closed`); RaidxError if a superblock cannot be written.
    """
    member_set, journal, dirty = context.member_set, context.journal, context.dirty_bitmap

    def change(config: ArrayConfig) -> ArrayConfig:
        return replace(config, settings={**config.settings, "journal": mode})

    async with context.closed(drained=False):  # no write that began under the other mode is left
        if mode == "none":
            await member_set.update(change)
            journal.set_mode(mode)
        else:
            if dirty.unlogged and dirty.pending_regions():
                raise BusyError(
                    "the resync after a crash without a journal is not finished",
                    action="wait for it: `raidx job ARRAY wait`",
                )
            journal.set_mode(mode)
            await member_set.flush()
            await member_set.update(change)
    try:
        await journal.drain()  # otherwise logged content keeps its stripe in the log
    except RaidxError as error:
        log.error("the log cannot be emptied yet: %s", error)
