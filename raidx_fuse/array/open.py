"""Opening an array: assembly, start and close; and the conditions under which it may not start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.switch_sums import made_sums
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import AssemblyError, FormatError, RaidxError, Reason
from raidx_fuse.format.assemble import Assembly, assemble, tolerates
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.saved_jobs import check_progress
from raidx_fuse.format.configuration.volumes import image_end
from raidx_fuse.format.regions import PAYLOAD_BYTES
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.jobs.rebuild import checkpoint_key
from raidx_fuse.journal.journal import Journal
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.loop.tasks import Tasks
from raidx_fuse.members.base import Member
from raidx_fuse.store.cells import Cells
from raidx_fuse.store.chunk_table import ChunkTable, scan_table
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.page_store import load_page_store
from raidx_fuse.store.written_map import WrittenMap


def runs_unlogged(config: ArrayConfig) -> bool:
    """Return True if the superblocks say that writes without a log may be in flight (mode none).

    That is so while the mode is none, and after a change of the mode until the next flush.
    """
    return bool(config.settings.get("journal", "partial") == "none")


def check_startable(
    assembly: Assembly, rebuilding: Iterable[int], pending_regions: int, start_degraded: bool
) -> None:
    """Refuse to start where data could be silently wrong (write hole). Raises AssemblyError.

    A role that is being rebuilt counts as lost: above its watermark it has no content yet.
    """
    lost = sorted({*assembly.missing_roles, *rebuilding})
    if assembly.logs_lost and not start_degraded:
        gone = assembly.logs_lost | frozenset(map(Role, lost))
        if not tolerates(assembly.config, gone):
            paths = ", ".join(assembly.by_role[role].path for role in sorted(assembly.logs_lost))
            raise AssemblyError(
                f"the array was writing when it stopped, and the log on {paths} was overwritten "
                "with the front: data that was written then may be lost",
                action="accept the risk with --start-degraded",
                reason=Reason.WRITE_HOLE,
            )
    if lost and pending_regions and not start_degraded and runs_unlogged(assembly.config):
        missing = ", ".join(str(role) for role in lost)
        raise AssemblyError(
            f"the array was writing when it stopped, and role {missing} is not complete: "
            "data that was being written then may read back wrong (the write hole)",
            action="attach the missing member, or accept the risk with --start-degraded",
            reason=Reason.WRITE_HOLE,
        )


def _check_volumes(config: ArrayConfig, layout: Layout) -> None:
    """Raise FormatError if the volumes of *config* end beyond its image."""
    size_bytes = min(layout.size_bytes, config.size_bytes or layout.size_bytes)
    end = image_end(config.volumes, size_bytes)
    if end > size_bytes:
        raise FormatError(
            f"array {config.name!r}: its volumes end at byte {end}, the image at {size_bytes}"
        )


# Everything that belongs to one array is built here in order, in one nursery, and closed in
# reverse: assembly, chunk table, member set (queues), written map, dirty bitmap, journal, array
# context, reader and writer, jobs and background tasks.


@asynccontextmanager
async def open_array(
    members: Sequence[Member],
    *,
    read_only: bool = False,
    start_degraded: bool = False,
    unix_s: Callable[[], int] = lambda: 0,
    left_out: Sequence[str] = (),
) -> AsyncIterator[Array]:
    """Assemble *members* and run their array until the block ends; then close it cleanly.

    The members stay open: their owner closes them. *unix_s* returns the seconds since 1970, for the
    date of a scrub; 0 where they are not known. *left_out* says why other members were not opened.
    Raises AssemblyError or FormatError if the array cannot start.
    """
    try:
        assembly = await assemble(members)
    except AssemblyError as refused:
        message = "; ".join([refused.message, *left_out])
        raise AssemblyError(message, action=refused.action, reason=refused.reason) from None
    assembly.warnings[:0] = [f"not used: {text}" for text in left_out]
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        try:
            array = await _build(assembly, tasks, read_only, start_degraded, unix_s)
            try:
                with tasks.scope:
                    yield array
            finally:
                with trio.CancelScope(shield=True):
                    await tasks.end(array.close, array.member_set.flush, array.abandon)
        except MemoryError:
            error = RaidxError(
                f"array {assembly.config.name!r} needs more memory than is available",
                action="close other programs, or use a machine with more memory",
                reason=Reason.SHORTAGE,
            )
        except BaseException as caught:  # raised below as it is, not inside an exception group
            error = caught
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def _build(
    assembly: Assembly,
    nursery: Tasks,
    read_only: bool,
    start_degraded: bool,
    unix_s: Callable[[], int],
) -> Array:
    """Build and start the array of *assembly*, with its tasks in *nursery*."""
    config = assembly.config
    layout = layout_of(config)
    check_progress(config, layout.stripes)
    _check_volumes(config, layout)
    scan = await scan_table(assembly, layout)
    overlay = Overlay()
    member_set = MemberSet(
        config, layout, assembly.by_role, assembly.spares, nursery, overlay, read_only=read_only
    )
    for record in config.members:
        if record.state == "rebuilding" and record.role >= 0 and member_set.queues[record.role]:
            saved = config.jobs.get(checkpoint_key(record.role), {})
            member_set.watermarks[record.role] = Stripe(int(saved.get("next_stripe", 0)))
    member_set.refresh()
    pages = await load_page_store(member_set, "written", layout.chunks)
    written = WrittenMap(layout.chunks, pages)
    region = config.regions.pages("bitmap")
    pages = await load_page_store(member_set, "bitmap", region.pages * PAYLOAD_BYTES * 8)
    stripe_bytes = layout.initial_data_count * layout.chunk_bytes
    dirty = DirtyBitmap(
        layout.stripes,
        stripe_bytes,
        pages,
        member_set.flush,
        layout.initial_stripes,
        unlogged=runs_unlogged(config),
    )
    check_startable(assembly, member_set.watermarks, dirty.pending_regions(), start_degraded)
    head = await load_page_store(member_set, "journal", PAYLOAD_BYTES * 8)
    member_set.use_sums(made_sums(member_set))
    cells = Cells(member_set, dirty)
    journal = Journal(cells, written, head, ChunkTable(member_set, scan), overlay)
    context = ArrayContext(layout, member_set, written, dirty, journal)
    array = Array(context, assembly, nursery, unix_s)
    await array.start(head, start_degraded)
    return array
