"""Checksums of a running array: built at its start, switched off and on again.

Off: durable in the superblocks before the first write that sets no sums. Nothing of the checksums
is left in them then, so that any program may write the array; the place of the tables is free.

    on    room on all members (jobs/grow/room.py) -> tables empty there, durably
          -> superblocks: region, tables, "sums" in `needs` -> the first sum

Pages get their sums as they are written, or from a scrub, which begins at once. Members are emptied
while requests go on: as long as the sums are off, nothing reads or writes the tables. Whatever ends
that early leaves them off.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from raidx_fuse.array.services import RunningArray
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import (
    are_on,
    place_for_sums,
    sums_of,
    with_sums,
    without_sums,
)
from raidx_fuse.format.create import new_uuid
from raidx_fuse.format.shapes import sum_copies_of
from raidx_fuse.jobs.grow.room import Emptied, Need, make_room, require_place
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.sums import Sums

NEED = Need(
    words="checksums",
    length=lambda config: config.regions.sums_bytes(sum_copies_of(config)),
    place=lambda config: place_for_sums(config, sum_copies_of(config)),
    elsewhere="make an array with them beside it, then: raidx volume move",
)


def made_sums(member_set: MemberSet) -> Sums | None:
    """Return the sums of the array of *member_set*, None if it has none, or they are off."""
    config = member_set.config
    kept = sums_of(config)
    if kept is None or not are_on(config):
        return None
    return Sums(member_set, config.regions, kept)


async def switch_sums(array: RunningArray, value: str) -> None:
    """Switch the checksums of *array* "on" or "off". Raises RaidxError.

    UsageError if there is no room for them. BusyError if requests do not end in time
    (`ArrayContext.closed`), or if members are missing that could not be told that the sums begin
    anew, or change meanwhile.
    """
    if value == "on" and array.member_set.sums is None:
        await make_room(array, NEED)
    # An older request would empty the tables of a newer one, and a change of the members would
    # give tables of another seed their places (jobs/move_sums.py).
    async with array.membership.attaching:
        if (value == "on") == (array.member_set.sums is not None):
            return
        if value == "off":
            await _switch_off(array.context)
        else:
            await _switch_on(array.context)
    if value == "on":
        with suppress(BusyError):  # a scrub is running: it gives sums to what is left
            await array.start_scrub(repair=False)


async def _switch_off(context: ArrayContext) -> None:
    member_set = context.member_set
    async with context.closed():
        await context.journal.drain()
        if member_set.sums is not None:
            await member_set.sums.tables.save()  # no write of a table is under way then
        await member_set.update(without_sums)
        member_set.use_sums(None)
        context.note_sums()


async def _switch_on(context: ArrayContext) -> None:
    member_set, seed = context.member_set, new_uuid()

    def begun(config: ArrayConfig) -> ArrayConfig:
        place = require_place(config, NEED)
        config = replace(config, regions=replace(config.regions, sums=place))
        return with_sums(config, sum_copies_of(config), seed)

    region = begun(member_set.config).regions.sums
    emptied = Emptied(member_set, region, "checksums begin")
    await emptied.empty()
    async with context.closed():
        await emptied.empty()
        await context.journal.drain()  # what came until now may be parts of pages
        if begun(member_set.config).regions.sums != region:
            raise BusyError("a change of the members or the layout has taken the room")
        await member_set.update(begun)
        sums = made_sums(member_set)
        assert sums is not None
        sums.tables.begin_empty()
        member_set.use_sums(sums)
        context.note_sums()
