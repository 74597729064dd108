"""Checksums of a running array: built at its start, switched off and on again.

Off: durable in the superblocks before the first write that sets no sums. On: the tables become
empty on all members, durably, before the superblocks say so; pages get their sums as they are
written, or from a scrub, which begins at once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from raidx_fuse.array.services import RunningArray
from raidx_fuse.errors import BusyError, Reason
from raidx_fuse.format.configuration.codec import encode
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import KEY, are_on, seed_from, sums_of
from raidx_fuse.format.create import new_uuid
from raidx_fuse.format.pages import zero_range
from raidx_fuse.settings import SUMS
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.sums import Sums


def made_sums(member_set: MemberSet) -> Sums | None:
    """Return the sums of the array of *member_set*, None if it has none, or they are off."""
    config = member_set.config
    kept = sums_of(config)
    if kept is None or not are_on(config):
        return None
    return Sums(member_set, config.regions, kept)


async def switch_sums(array: RunningArray, value: str) -> None:
    """Switch the checksums of *array* "on" or "off". Raises RaidxError.

    BusyError if requests do not end in time (`ArrayContext.closed`), or if members are missing that
    could not be told that the sums begin anew.
    """
    context, member_set = array.context, array.member_set
    if (value == "on") == (member_set.sums is not None):
        return
    if value == "on" and (member_set.lost or member_set.watermarks):
        raise BusyError(
            "checksums begin with all members, and some are missing",
            action="wait until they are rebuilt: `raidx job ARRAY wait`",
            reason=Reason.MEMBERS_MISSING,
        )
    async with context.closed():
        if (value == "on") == (member_set.sums is not None):
            return  # another request was first
        await context.journal.drain()  # what came until now may be parts of pages
        if member_set.sums is not None:
            await member_set.sums.save()  # no write of a table is under way then
        if value == "off":
            await member_set.update(_ended)
            member_set.use_sums(None)
        else:
            for member in member_set.present().values():
                await zero_range(member, *member_set.config.regions.sums)
                await member.flush()
            await member_set.update(_begun)
            sums = made_sums(member_set)
            assert sums is not None
            sums.begin_empty()
            member_set.use_sums(sums)
        context.note_sums()
    if value == "on":
        with suppress(BusyError):  # a scrub is running: it gives sums to what is left
            await array.start_scrub(repair=False)


def _ended(config: ArrayConfig) -> ArrayConfig:
    return replace(config, settings={**config.settings, SUMS: "off"})


def _begun(config: ArrayConfig) -> ArrayConfig:
    """Return *config* with sums that begin anew: with another seed, older ones do not fit."""
    kept = sums_of(config)
    assert kept is not None
    config = config.with_job(KEY, encode(replace(kept, seed=seed_from(new_uuid()))))
    return replace(config, settings={**config.settings, SUMS: "on"})
