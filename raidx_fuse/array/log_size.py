"""The size of the log of a running array, changed while it is in use.

    room on all members (jobs/grow/room.py) -> zeros there, durably
    -> gate closed, log empty: a new epoch in the former region, then in the new one, durably
    -> superblocks: the region, and "log.moved" in `needs` if it is not behind the written map
    -> gate open; the head in the former region is erased

A smaller log stays where it begins. So does a larger one that has room there; its head is the same
page for either size, and no record follows it before the superblocks say which one it is. Another
region is clear of the former one: whichever the superblocks name after a cut has an empty log.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from raidx_fuse.array.services import RunningArray
from raidx_fuse.errors import BusyError, MemberError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.features import LOG_MOVED
from raidx_fuse.format.configuration.sums import usable_by_all
from raidx_fuse.format.pages import zero_range
from raidx_fuse.format.regions import Region, log_bytes
from raidx_fuse.jobs.grow.room import Emptied, Need, make_room, require_place
from raidx_fuse.journal.ring import HEAD_BYTES

log = logging.getLogger(__name__)
MOVES = "the log changes its size"


async def change_log_size(array: RunningArray, size_bytes: int | None) -> None:
    """Have a log of *size_bytes* on each member of *array*, rounded up to whole pages.

    None: as `create` makes it.

    Raises UsageError if no log can be so large, or has room; BusyError if requests do not end in
    time, members are missing, or the layout changes; and what the members raise.
    """
    context, member_set = array.context, array.member_set
    array.require_writable()
    array.jobs.require_finished("keeps the size of its log")
    length = log_bytes(
        min(record.size_bytes for record in member_set.config.members if record.role >= 0),
        len(context.code.cells) * context.chunk_bytes,
        size_bytes,
    )

    def place(config: ArrayConfig) -> Region | None:
        end = 0 if context.layout.has_table else usable_by_all(config)
        return config.regions.place_for_log(length, end)

    need = Need(
        words="a log of that size",
        length=lambda _config: length,
        place=place,
        elsewhere="choose a smaller one, or make an array with it beside this one, then: "
        "raidx volume move",
    )
    former = member_set.config.regions.log
    if length == former.length:
        return
    await make_room(array, need)
    async with array.membership.attaching:  # no member joins, and no checksums take the room
        former = member_set.config.regions.log
        region = require_place(member_set.config, need)
        added = region
        if region.offset == former.offset:
            added = Region(former.end, max(0, region.length - former.length))
        emptied = Emptied(member_set, added, MOVES)
        await emptied.empty()
        async with context.closed():
            await emptied.empty()
            array.jobs.require_finished("keeps the size of its log")
            if require_place(member_set.config, need) != region:
                raise BusyError("a change of the members or the layout has taken the room")

            async def publish() -> None:
                await member_set.update(lambda config: with_log(config, region))

            async def relocate() -> None:
                await context.journal.relocate(region, publish)

            await context.journal.drain(relocate)
            if region.offset != former.offset:
                await _erase_head(array, former)
    log.info("the log has %d bytes of each member now", region.length)


def with_log(config: ArrayConfig, region: Region) -> ArrayConfig:
    """Return *config* with the log in *region*.

    Where it lay behind the data, these do not read as zeros any more if they become longer.
    """
    members, regions = config.members, config.regions.with_log(region)
    if config.regions.log.offset > config.regions.data.offset:
        members = tuple(replace(record, reads_zero=False) for record in members)
    needs = {*config.needs} - {LOG_MOVED} | ({LOG_MOVED} if regions.has_moved_log else {*()})
    return replace(config, regions=regions, members=members, needs=tuple(sorted(needs)))


async def _erase_head(array: RunningArray, former: Region) -> None:
    """Let no configuration of before, from a file say, find its log in the *former* region."""
    for member in array.member_set.present().values():
        try:
            if not await member.punch(*former):
                await zero_range(member, former.offset, HEAD_BYTES)
        except MemberError as error:  # it has the epoch of now: such a file is refused as older
            log.warning("%s", error)
