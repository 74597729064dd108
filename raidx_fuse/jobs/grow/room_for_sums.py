"""Room for the checksums of an array that was made without: the end of its image.

    gate closed: what is behind the end reads as zeros, no region is marked dirty -> fewer stripes
                 -> superblocks -> gate open

Members of 64 MiB and more have room before their data, from `create` on. Where that is not so, and
nothing is free behind the data, the data end earlier, if no volume has what is there. Nothing
moves. A cut leaves the array as it was, or with a shorter image; the sums begin later
(array/switch_sums.py).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import place_for_sums, usable_by_all
from raidx_fuse.format.regions import Region
from raidx_fuse.format.shapes import layout_of, sum_copies_of
from raidx_fuse.jobs.grow.larger_members import take_data
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.restripe.space import require_space
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import ORDER_PARAM

log = logging.getLogger(__name__)
ELSEWHERE = "make an array with them beside it, then: raidx volume move"


class Shorter(NamedTuple):
    """The array as it will be: *config* with a shorter data region, and its *layout*."""

    config: ArrayConfig
    layout: Layout


async def make_room(array: ArrayServices) -> None:
    """Have room for checksums on all members of *array*, which keeps none.

    Raises UsageError, which names the bytes that are missing, if the end of the image is in use;
    BusyError, and as `reshape`.
    """
    config = array.member_set.config
    if place_for_sums(config, sum_copies_of(config)) is None:
        await reshape(
            array,
            Change(
                plan=lambda: _plan(array),
                swap=lambda shorter, _: _take(array, shorter),
                tail=lambda shorter: shorter.layout.size_bytes,
                clean=True,
            ),
        )


def _plan(array: ArrayServices) -> Shorter:
    """Return *array* with as much data as leave room. Raises RaidxError."""
    config, layout = array.member_set.config, array.context.layout
    regions, copies = config.regions, sum_copies_of(config)
    needed = regions.sums_bytes(copies)
    lacks = f"array {config.name} has no room for checksums, {needed} bytes of each member"
    array.require_writable()
    if layout.has_table:
        raise UsageError(
            f"{lacks}, before the data, behind which {config.layout} has its table",
            action=ELSEWHERE,
            reason=Reason.METADATA_FULL,
        )
    array.jobs.require_finished("gets no room for checksums")
    if layout.has_grown or ORDER_PARAM.keys() & config.params.keys():
        is_grown = layout.has_grown
        raise UsageError(
            f"{lacks}, and its chunks are numbered in several parts",
            action=f"make them alike: raidx reshape ARRAY --layout {config.layout}, then retry"
            if is_grown
            else ELSEWHERE,
            reason=Reason.METADATA_FULL,
        )
    tile_bytes = layout.tile()[1] * config.chunk_bytes
    length = (usable_by_all(config) - regions.data.offset - needed) // tile_bytes * tile_bytes
    if length < tile_bytes:
        raise UsageError(
            f"{lacks}: they are too small",
            action=ELSEWHERE,
            reason=Reason.METADATA_FULL,
        )
    data = Region(regions.data.offset, length)
    config = replace(config, regions=replace(regions, data=data))
    shorter = Shorter(config, layout_of(config))
    size_bytes = shorter.layout.size_bytes
    try:
        require_space(config, array.size_bytes, size_bytes, "an array with room for them")
    except UsageError as error:
        raise UsageError(
            f"{lacks}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return shorter


def _take(array: ArrayServices, shorter: Shorter) -> None:
    take_data(array.context, shorter.config, shorter.layout)
    log.warning("the image has %d bytes now: room for checksums", array.size_bytes)
