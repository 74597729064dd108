"""Whether what is in use of an image fits an array of another shape."""

from __future__ import annotations

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import BusyError, JobRunningError, Reason, UsageError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.volumes import ALIGN_BYTES, VolumeRecord, image_end


def require_space(config: ArrayConfig, size_bytes: int, after_bytes: int, holder: str) -> None:
    """Raise UsageError if more than *after_bytes* of an image of *size_bytes* are in use.

    The error names the volume that is in the way. *holder* holds so much: "raid5 on 4 members".
    BusyError: it is on its way to another array, volumes are changing places in pieces, or the
    space of a deleted one is being wiped.
    """
    table = config.volumes
    if table is not None and table.exchanges:  # through the free space that would go
        raise JobRunningError(
            "volumes are changing places through free space of the array",
            action="wait for them: `raidx job ARRAY wait`",
        )
    end = image_end(config.volumes, size_bytes)
    if end <= after_bytes:
        return
    name, fits = config.name, after_bytes
    if table is not None and table.is_whole:
        name = table.volumes[0].name
    elif table is not None:
        found = [r for r in table.volumes if any(e.end == end for e in r.extents)]
        if not found:
            raise BusyError(
                f"the space of a deleted volume behind byte {after_bytes} is being wiped",
                action="try again a little later",
            )
        if found[0].move is not None:
            raise JobRunningError(
                f"volume {found[0].name} behind byte {after_bytes} is on its way",
                action="wait for it: `raidx job ARRAY wait`",
            )
        name, fits = found[0].name, _kept(found[0], after_bytes)
    fits = fits // ALIGN_BYTES * ALIGN_BYTES
    action = f"delete volume {name}, or move it to another array: raidx volume move"
    if fits:
        action = f"shrink what is on it, then the volume: raidx volume resize MOUNT {name} {fits}"
    raise UsageError(
        f"volume {name} ends at byte {end} of the image, and {holder} holds {after_bytes} bytes",
        action=action,
        reason=Reason.ARRAY_FULL,
    )


def require_unwritten(context: ArrayContext, size_bytes: int) -> None:
    """Raise BusyError if a chunk of the array behind *size_bytes* of its image is written."""
    first, end = -(-size_bytes // context.chunk_bytes), context.layout.chunks
    if first < end and not context.written.none_written(first, end):
        raise BusyError("free space of the array is being written", action="try again")


def _kept(record: VolumeRecord, after_bytes: int) -> int:
    """Return how large *record* may be so that none of it is behind byte *after_bytes*."""
    kept = 0
    for extent in record.extents:
        kept += max(0, min(extent.end, after_bytes) - extent.offset)
        if extent.end > after_bytes:
            break
    return kept
