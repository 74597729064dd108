"""Larger members: what all of them have behind the data becomes data (mdadm: --grow --size=max).

    new ends -> gate closed: no region is marked dirty -> more stripes -> superblocks
             -> old ends erased -> gate open

The new stripes lie behind the others, at places that hold nothing: the written map says of none of
their chunks that it was written. So nothing is copied and no parity is computed. Every chunk keeps
its place, and a crash around the change leaves the array intact with either number of stripes.
Only a bit of the dirty bitmap may stand for other stripes afterwards.

The superblocks at the ends move with the size that the configuration has. So that a member which
loses its front meanwhile is found, whichever configuration the others have, its superblock is first
written to the new end as it is, durably. When the round is durable, and before there are data, the
old ends are erased. Between the two they are inside the data, and no configuration leads there.

Checksums of more data need larger tables. They get a region behind the new data, beyond all that is
used before the change, and are copied there as those of other roles are (jobs/move_sums.py). So
either configuration has its own tables, whole.

Arrays that have grown are refused: a growth numbers its chunks behind those of all stripes, so that
with more stripes they would be other chunks. A restripe onto the same members ends that.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import MemberError, Reason, TooSmallError, UsageError
from raidx_fuse.format.both_ends import read_copies
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.configuration.sums import sums_of
from raidx_fuse.format.create import reserve_metadata
from raidx_fuse.format.regions import (
    NO_REGION,
    PAYLOAD_BITS,
    SUPERBLOCK_BYTES,
    SUPERBLOCK_SLOT_BYTES,
    Region,
    Regions,
    has_room_for_sums,
)
from raidx_fuse.format.shapes import RESTRIPE, layout_of, sum_copies_of
from raidx_fuse.format.superblock import encode_superblock, end_on, write_superblock
from raidx_fuse.jobs.move_sums import SumsRoom, empty_former
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.numbers import Offset
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import Member

log = logging.getLogger(__name__)


class Larger(NamedTuple):
    """The array as it will be: *config* with a longer data region, and a place for the checksums of
    it, and its *layout*.

    *member_bytes*: how much more of each member is used; *size_bytes*: the size of the image;
    *copies*: of the tables of checksums, if there are any.
    """

    config: ArrayConfig
    layout: Layout
    member_bytes: int
    size_bytes: int
    copies: int


def take_data(context: ArrayContext, config: ArrayConfig, layout: Layout) -> None:
    """Change to *config*, whose data have another length, and its *layout*, without an await.

    The stripes that come or go hold nothing, and no region is marked dirty.
    """
    context.member_set.change(lambda _config: config)
    context.written.extend(layout.chunks)
    context.dirty_bitmap.reshape(layout.stripes, layout.initial_data_count * layout.chunk_bytes)
    context.take_layout(layout)
    context.member_set.refresh()


class LargerMembers:
    """Lets one running array use what its members have behind the data."""

    def __init__(self, array: ArrayServices) -> None:
        self.array = array
        self.member_set = array.member_set
        self.context = array.context
        self._old_ends: list[tuple[Member, Offset]] = []  # of the change under way

    # -- questions -----------------------------------------------------------------------------

    def unused_bytes(self) -> int:
        """Return how many bytes of each member are unused behind its data, in whole stripes.

        0 where they would not make the image larger, and for raidx layouts, which use each member
        to its end.
        """
        config, layout = self.member_set.config, self.context.layout
        limit = config.size_bytes
        if layout.has_table or RESTRIPE in config.params:
            return 0
        if limit is not None and limit <= layout.size_bytes:
            return 0
        tile_bytes = self._tile_bytes()
        return max(0, self._fits_bytes() // tile_bytes - self._tiles()) * tile_bytes

    def limited_bytes(self) -> int:
        """Return how much larger the image could be without the limit that it was made with."""
        return self.context.layout.size_bytes - self.array.size_bytes

    def require_no_limit(self) -> None:
        """Raise UsageError if the array has places for an image of a chosen size alone."""
        config = self.member_set.config
        if self.context.layout.has_table and config.size_bytes is not None:
            raise UsageError(
                f"array {config.name} was made for an image of {config.size_bytes} bytes "
                "(--image-size), and keeps the rest of its members free for moves of chunks",
                action="for a larger image make another array without that, mount it beside this "
                "one, then: raidx volume move",
                reason=Reason.ARRAY_FULL,
            )

    def usable_bytes(self) -> int:
        """Return how much of the unused bytes the written map has room for."""
        room = max(0, self._room() - self._tiles()) * self._tile_bytes()
        return min(self.unused_bytes(), room)

    def _tiles(self) -> int:
        return self.context.layout.stripes // self.context.layout.tile()[0]

    def _tile_bytes(self) -> int:
        """Return how much of a member a tile of the layout takes."""
        return self.context.layout.tile()[1] * self.context.chunk_bytes

    def _room(self) -> int:
        """Return for how many tiles the written map has room."""
        pages = self.member_set.config.regions.pages("written").pages
        data_count = self.context.code.data_count * self.context.layout.tile()[0]
        return pages * PAYLOAD_BITS // data_count

    def _fits_bytes(self) -> int:
        """Return how many bytes of whole chunks fit on each member, beside checksums of them."""
        return self._fits_beside(self._copies())

    def _fits_beside(self, copies: int) -> int:
        """Return how many bytes of whole chunks fit beside *copies* of the checksums of them."""
        regions, chunk_bytes = self.member_set.config.regions, self.context.chunk_bytes
        room = self._usable_bytes() - regions.data.offset
        data = regions.data._replace(length=room // chunk_bytes * chunk_bytes)
        if not copies or data.length <= regions.data.length:
            return data.length
        larger = replace(regions, data=data)
        place = self._place_for_sums(larger, copies)
        if place is None or place.offset > data.offset:
            length = (room - larger.sums_bytes(copies)) // chunk_bytes * chunk_bytes
            larger = replace(regions, data=data._replace(length=length))
            place = self._place_for_sums(larger, copies)
        if place is None:  # what is needed comes before what is only room
            return data.length if regions.sums == NO_REGION else regions.data.length
        return larger.data.length

    def _usable_bytes(self) -> int:
        """Return how much of every member with a role can be used."""
        usable = self._physical_bytes()
        log = self.member_set.config.regions.log
        return min(usable, log.offset) if self._log_is_behind() else usable

    def _physical_bytes(self) -> int:
        config = self.member_set.config
        return min(
            config.usable_bytes(self._size_of(record))
            for record in config.members
            if record.role >= 0
        )

    def _log_is_behind(self) -> bool:
        """Return whether the log lies behind the data, which cannot pass it."""
        regions = self.member_set.config.regions
        return regions.log.offset > regions.data.offset

    def is_behind_log(self) -> bool:
        """Return whether there are unused bytes that the data get when the log lies before them."""
        usable, regions = self._physical_bytes(), self.member_set.config.regions
        free = usable - regions.data.end - regions.log.length - regions.sums.length
        return self._log_is_behind() and free >= self._tile_bytes()

    def _copies(self) -> int:
        """Return for how many tables of checksums there is to be room on each member.

        As many as the layout wants, unless then no data come.
        """
        config = self.member_set.config
        kept = sums_of(config)
        if kept is None:
            sizes = [self._size_of(record) for record in config.members if record.role >= 0]
            return sum_copies_of(config) if has_room_for_sums(sizes) else 0
        wanted = max(kept.copies, sum_copies_of(config))
        more = self._fits_beside(wanted) > config.regions.data.length
        return wanted if more else kept.copies

    def _place_for_sums(self, regions: Regions, copies: int) -> Region | None:
        """Return where *copies* tables lie if *regions* has the longer data, None if nowhere.

        They stay where they are while that suffices; else nothing that is used now lies there.
        """
        config = self.member_set.config
        kept = sums_of(config)
        if (
            kept is not None
            and kept.copies == copies
            and regions.sums.end <= regions.data.offset
            and regions.sum_table_bytes == config.regions.sum_table_bytes
        ):
            return regions.sums
        used = max(config.regions.data.end, config.regions.sums.end)
        for record in config.members:
            if (end := config.end_of(record)) is not None:
                used = max(used, end + SUPERBLOCK_BYTES)
        return regions.place_for_sums(copies, used, self._usable_bytes())

    def _size_of(self, record: MemberRecord) -> int:
        queue = self.member_set.queues[record.role]
        return record.size_bytes if queue is None else queue.member.size_bytes

    def plan(self) -> Larger:
        """Return the array with all that its members have, as far as its written map has room.

        Raises RaidxError (UsageError, BusyError) if it cannot use more, or not now.
        """
        config, layout = self.member_set.config, self.context.layout
        self.array.require_writable()
        self.array.jobs.require_finished("cannot use more of its members")
        if self._log_is_behind():
            raise UsageError(
                f"the log of array {config.name} lies behind its data, which cannot pass it",
                action="let it lie before them: raidx set ARRAY "
                f"log.size={config.regions.log_bytes_before_data}, then retry",
                reason=Reason.METADATA_FULL,
            )
        if not self.unused_bytes():
            raise TooSmallError(
                f"not every member of array {config.name} has space behind its data",
                action="replace those that have none by larger ones: raidx replace-disk",
            )
        usable = self.usable_bytes()
        if not usable:
            raise UsageError(
                f"the written map of array {config.name} has no room for more chunks",
                action="make an array of these members beside it, then: raidx volume move",
                reason=Reason.METADATA_FULL,
            )
        if layout.has_grown:
            raise UsageError(
                f"array {config.name} has grown: it can use {usable} bytes more of each member "
                "when its stripes are alike",
                action=f"make them alike: raidx reshape ARRAY --layout {config.layout}, then retry",
            )
        length = min(self._fits_bytes(), self._room() * self._tile_bytes())
        copies = self._copies()
        larger = self._with_data(config, length, copies)
        layout = layout_of(larger)
        size = layout.size_bytes
        return Larger(
            larger,
            layout,
            usable,
            size if config.size_bytes is None else min(size, config.size_bytes),
            copies,
        )

    def _with_data(self, config: ArrayConfig, length: int, copies: int) -> ArrayConfig:
        """Return *config* with *length* bytes of data on each member, and *copies* of checksums.

        Space added to a member after it joined is not known to read as zero. Raises UsageError
        if a spare would be too small, or the checksums have no room.
        """
        regions = replace(config.regions, data=Region(config.regions.data.offset, length))
        place = self._place_for_sums(regions, copies) if copies else None
        if place is None and regions.sums != NO_REGION:
            raise TooSmallError(
                f"the checksums of array {config.name} would have no room behind the data",
                action="use larger members, or first: raidx set ARRAY sums=off",
            )
        needed = regions.data.end if place is None else max(regions.data.end, place.end)
        if place is not None and regions.sums != NO_REGION:
            regions = replace(regions, sums=place)
        members = []
        for record in config.members:
            usable = config.usable_bytes(record.size_bytes)
            if record.role >= 0 and usable < needed:
                size = self._size_of(record)
                record = replace(record, size_bytes=size, reads_zero=False)
            elif record.role >= 0 and config.regions.sums.offset > regions.data.offset:
                record = replace(record, reads_zero=False)  # tables were there
            elif record.state == "spare" and usable < regions.end:
                raise TooSmallError(
                    f"spare {record.path_hint} would be too small: it has {record.size_bytes} "
                    f"bytes, members would need {config.member_bytes_for(regions.end)}",
                    action=f"take it out: raidx remove-disk ARRAY {record.path_hint}",
                )
            members.append(record)
        return replace(config, regions=regions, members=tuple(members))

    # -- the change ----------------------------------------------------------------------------

    async def limit_image(self, size_bytes: int | None) -> None:
        """Let the image have *size_bytes*, or all that the layout has; no less than now.

        Nothing was written behind the former limit, so that reads as zeros. Raises RaidxError.
        """
        self.array.require_writable()
        self.array.jobs.require_finished("keeps the size of its image")
        assert size_bytes is None or size_bytes >= self.array.size_bytes
        await self.member_set.update(lambda config: replace(config, size_bytes=size_bytes))
        for hook in self.array.on_size:
            await hook()

    async def use(self) -> None:
        """Use all of `plan`; return when the image is larger.

        Raises as `plan`; BusyError if requests do not end in time, or a stripe awaits its repair;
        NoSpaceError, MemberError, ArrayFailedError.
        """
        former = self.member_set.config.regions.sums
        await reshape(
            self.array,
            Change(
                plan=self.plan,
                swap=lambda larger, _: self._take(larger),
                room=lambda larger: SumsRoom(larger.config.regions, larger.copies),
                chunks=lambda larger: larger.layout.chunks,
                prepare=self._reserve,
                settle=self._erase_old_ends,
                clean=True,
                drained=False,
            ),
        )
        await empty_former(self.array, former)

    async def _reserve(self, larger: Larger) -> None:
        for uuid, member in self.member_set.present().items():
            copies = await read_copies(member)
            if copies.from_end:  # the next round would not find its end
                raise UsageError(
                    f"{member.path} has no superblock in its front",
                    action="unmount, then: raidx check --repair-superblocks MEMBER...",
                    reason=Reason.DEGRADED,
                )
            record = larger.config.find(uuid)
            end = None if record is None else larger.config.end_of(record)
            reserve_metadata(member, larger.config.regions, larger.layout.chunks, end)
            superblock = copies.superblock
            if record is None or superblock is None or end in (None, end_on(member, superblock)):
                continue
            content = encode_superblock(superblock, end=end, size_bytes=record.size_bytes)
            place = end + superblock.slot * SUPERBLOCK_SLOT_BYTES
            await write_superblock(member, superblock, [(Offset(place), content)])

    async def _erase_old_ends(self) -> None:
        """Erase what the members have at their former ends; a stale one there would not count."""
        for member, end in self._old_ends:
            try:
                await member.writev(end, [bytes(SUPERBLOCK_BYTES)])
                await member.flush()
            except MemberError as error:
                log.warning("%s", error)

    def _take(self, larger: Larger) -> None:
        """Change to the array of *larger* in memory, without an await."""
        before = self.member_set.config
        self._old_ends = [
            (member, end)
            for uuid, member in self.member_set.present().items()
            if (old := before.find(uuid)) is not None
            and (new := larger.config.find(uuid)) is not None
            and (end := before.end_of(old)) is not None
            and end != larger.config.end_of(new)
        ]
        take_data(self.context, larger.config, larger.layout)
        log.warning("the image has %d bytes now", self.array.size_bytes)
