"""Changing the journal's mode (`journal=none|partial|full`) while the array runs.

The superblocks must describe every write that a crash may tear. If they say "none", the next start
resyncs each stripe in flight as one that any write may have torn (write hole); otherwise only
full-stripe writes can have torn it. So the superblocks say "none" before the first write without
the log, and until the effects of all such writes are durable.

The mode of the superblocks is the promise under which every marked region of the dirty bitmap was
marked. So it does not change while regions await a resync: those that a write with the log has left
would count as torn by any write, and a degraded array would not start. Nor while stripes are torn
by writes that have failed, whose regions stay marked, also by a clean end.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, JobRunningError, RaidxError, Reason
from raidx_fuse.format.configuration.config import ArrayConfig

log = logging.getLogger(__name__)


async def change_mode(context: ArrayContext, mode: str) -> None:
    """Put *mode* in force from now on, and after a remount.

    Raises BusyError while a resync is due or stripes are torn, or if requests do not end in time
    (`ArrayContext.closed`); RaidxError if a superblock cannot be written.
    """
    member_set, journal, dirty = context.member_set, context.journal, context.dirty_bitmap

    def change(config: ArrayConfig) -> ArrayConfig:
        return replace(config, settings={**config.settings, "journal": mode})

    async with context.closed(drained=False):  # no write that began under the other mode is left
        if "none" in (mode, journal.mode) and mode != journal.mode:
            if dirty.pending_regions():
                raise JobRunningError(
                    f"the resync of what was written with journal={journal.mode} is not finished",
                    action="wait for it: `raidx job ARRAY wait`",
                )
            if dirty.torn:
                raise BusyError(
                    "stripes are torn by writes that have failed",
                    action="repair them: `raidx scrub ARRAY --repair`, with all members",
                    reason=Reason.TORN,
                )
        if mode == "none":
            await member_set.update(change)
            journal.set_mode(mode)
        else:
            journal.set_mode(mode)
            await member_set.flush()
            await member_set.update(change)
    try:
        await journal.drain()  # otherwise logged content keeps its stripe in the log
    except RaidxError as error:
        log.error("the log cannot be emptied yet: %s", error)
