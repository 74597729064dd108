"""The journal's mode: what the superblocks say of it must hold for whatever a crash may tear.

A start takes a stripe for torn by any write if they say "none", else only by one that was written
whole. So they say it before the first such write, and until what came of it is durable.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, RaidxError
from raidx_fuse.format.configuration.config import ArrayConfig

log = logging.getLogger(__name__)


async def change_mode(context: ArrayContext, mode: str) -> None:
    """Let *mode* be in force from now on, and after a remount.

    Raises BusyError while a resync is due after a crash without a journal.
    """
    member_set, journal, dirty = context.member_set, context.journal, context.dirty_bitmap

    def change(config: ArrayConfig) -> ArrayConfig:
        return replace(config, settings={**config.settings, "journal": mode})

    async with journal.changing:
        if mode == "none":
            await member_set.update(change)
            journal.mode = mode
        else:
            if dirty.unlogged and dirty.pending_regions():
                raise BusyError(
                    "the resync after a crash without a journal is not done",
                    action="wait for it: `raidx job ARRAY wait`",
                )
            journal.mode = mode
            for stripe in list(context.locks.held):  # who began without the log ends first
                await context.locks.take(stripe)
                context.locks.release(stripe)
            await member_set.flush()
            await member_set.update(change)
    try:
        await journal.drain()  # else what the log still has of a stripe keeps it in there
    except RaidxError as error:
        log.error("what the log has cannot be placed yet: %s", error)
