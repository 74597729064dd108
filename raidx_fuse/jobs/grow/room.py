"""Room on the members of an array that exists, for another region: free, or the end of its image.

    gate closed: what is behind the end reads as zeros, no region is marked dirty -> fewer stripes
                 -> superblocks -> gate open

Members of 64 MiB and more have room for checksums before their data, from `create` on. Where
nothing is free there nor behind the data, the data end earlier, if no volume has what is there.
Nothing moves. A cut leaves the array as it was, or with a shorter image; what needs the room takes
it later (array/switch_sums.py, array/log_size.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from raidx_fuse.errors import BusyError, Reason, UsageError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import usable_by_all
from raidx_fuse.format.pages import zero_range
from raidx_fuse.format.regions import NO_REGION, Region
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.jobs.grow.larger_members import take_data
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.restripe.space import require_space
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import ORDER_PARAM
from raidx_fuse.members.base import Member
from raidx_fuse.store.member_set import MemberSet

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What needs room: *words* for it, how many *length* bytes of each member, and *place*.

    That returns where they have it in an array as configured, None if nowhere. *elsewhere*: what to
    do where it can have none.
    """

    words: str
    length: Callable[[ArrayConfig], int]
    place: Callable[[ArrayConfig], Region | None]
    elsewhere: str


class Shorter(NamedTuple):
    """The array as it will be: *config* with a shorter data region, and its *layout*."""

    config: ArrayConfig
    layout: Layout


async def make_room(array: ArrayServices, need: Need) -> None:
    """Have room for *need* on all members of *array*.

    Raises UsageError, which names the bytes that are missing, if the end of the image is in use;
    BusyError, and as `reshape`.
    """
    if need.place(array.member_set.config) is None:
        await reshape(
            array,
            Change(
                plan=lambda: _plan(array, need),
                swap=lambda shorter, _: _take(array, shorter, need.words),
                tail=lambda shorter: shorter.layout.size_bytes,
                clean=True,
            ),
        )


def require_place(config: ArrayConfig, need: Need) -> Region:
    """Return where *need* has its place now, after `make_room`. Raises BusyError."""
    place = need.place(config)
    if place is None:
        raise BusyError("a change of the members or the layout has taken the room")
    return place


class Emptied:
    """Makes a *region* read as zeros on every member of *member_set*, durably.

    Nothing else uses it. *what* says what begins or moves there, with all members.
    """

    def __init__(self, member_set: MemberSet, region: Region, what: str) -> None:
        self._member_set = member_set
        self._region = region
        self._what = what
        self._done: list[Member] = []

    async def empty(self) -> None:
        """Do so on the members that joined since the last call. Raises BusyError, MemberError."""
        member_set = self._member_set
        if member_set.lost or member_set.watermarks:
            raise BusyError(
                f"{self._what} with all members, and some are missing",
                action="wait until they are rebuilt: `raidx job ARRAY wait`",
                reason=Reason.MEMBERS_MISSING,
            )
        for member in member_set.present().values():
            if not any(member is done for done in self._done):
                await zero_range(member, *self._region)
                await member.flush()
                self._done.append(member)


def _plan(array: ArrayServices, need: Need) -> Shorter:
    """Return *array* with as much data as leave room. Raises RaidxError."""
    config, layout = array.member_set.config, array.context.layout
    regions, needed = config.regions, need.length(config)
    lacks = f"array {config.name} has no room for {need.words}, {needed} bytes of each member"
    array.require_writable()
    if layout.has_table:
        raise UsageError(
            f"{lacks}, before the data, behind which {config.layout} has its table",
            action=need.elsewhere,
            reason=Reason.METADATA_FULL,
        )
    array.jobs.require_finished(f"gets no room for {need.words}")
    if layout.has_grown or ORDER_PARAM.keys() & config.params.keys():
        is_grown = layout.has_grown
        raise UsageError(
            f"{lacks}, and its chunks are numbered in several parts",
            action=f"make them alike: raidx reshape ARRAY --layout {config.layout}, then retry"
            if is_grown
            else need.elsewhere,
            reason=Reason.METADATA_FULL,
        )
    tile_bytes = layout.tile()[1] * config.chunk_bytes
    behind = [one.offset for one in (regions.log, regions.sums) if one.offset > regions.data.offset]
    end = min(behind, default=usable_by_all(config))
    length = (end - regions.data.offset - needed) // tile_bytes * tile_bytes
    if length < tile_bytes:
        raise UsageError(
            f"{lacks}: they are too small",
            action=need.elsewhere,
            reason=Reason.METADATA_FULL,
        )
    fewer = replace(regions, data=Region(regions.data.offset, length))
    if regions.sums != NO_REGION and fewer.sum_table_bytes != regions.sum_table_bytes:
        raise UsageError(  # a table begins where the one before it ends
            f"{lacks}, and the tables of checksums of fewer data lie elsewhere",
            action="without checksums it has: raidx set ARRAY sums=off, then this, then sums=on",
            reason=Reason.METADATA_FULL,
        )
    config = replace(config, regions=fewer)
    shorter = Shorter(config, layout_of(config))
    size_bytes = shorter.layout.size_bytes
    try:
        require_space(config, array.size_bytes, size_bytes, "an array with room for that")
    except UsageError as error:
        raise UsageError(
            f"{lacks}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return shorter


def _take(array: ArrayServices, shorter: Shorter, words: str) -> None:
    take_data(array.context, shorter.config, shorter.layout)
    log.warning("the image has %d bytes now: room for %s", array.size_bytes, words)
