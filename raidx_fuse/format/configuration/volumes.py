"""The volume table of an array: names, sizes and extents of its volumes, in the superblocks.

It is a field of the configuration, so that it has what the configuration has: a checksum, an event
counter as version, copies on every member, one valid version after any crash, and one commit point
for each change (superblock.py). The log could carry it, but a log record reaches only as many
members as may be lost and one more, and needs the log to be recovered before names are known. Maps
of pages are written page by page, so that a table of several pages could be torn.

    "volumes": {"table": [{"uuid": U, "name": N, "size": S, "extents": [[offset, length], ...]}],
                "wiping": [[offset, length], ...]}

A volume that is on its way to another array is in the tables of both, each with a "move"
(`MoveRecord`), and "arrived" lists the moves that have ended here (pool/transfer.py). Both keys are
absent where there is nothing to say.

An array without the field has one volume: the whole image, under the array's name. *size* null also
means the whole image, as large as it is; such a volume is alone and has no extents. All other
places are byte ranges of the image in multiples of 4096 that do not overlap. *wiping* are ranges
that deleted volumes have left: their old content is being overwritten with zeros, and until that is
durable no volume gets them. So every free byte of the image reads as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

from raidx_fuse.format.configuration.codec import Stored
from raidx_fuse.format.configuration.names import brief, is_uuid, name_problem
from raidx_fuse.format.regions import COUNTER_MAX

ALIGN_BYTES = 4096
VOLUMES_MAX = 128
"""So many fit a superblock beside the members and settings of an ordinary array."""

SOURCE, TARGET = "source", "target"


class Extent(NamedTuple):
    """A range of the image in bytes."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A volume is on its way between this array and another one, *array* (its UUID) or *name*.

    *uuid* names the move; *role* is what this array is, SOURCE or TARGET. Only the target's record
    says how far the move has come: the bytes below *watermark* are valid on the target, the others
    on the source. *back*: the move was cancelled, and the watermark falls.

    *first* of the source's record (None: it has all): the source has places only for the bytes from
    *first* on, the target only for those that its extents hold. Volumes that change places where no
    array has room move so.
    """

    UNKNOWN: ClassVar[str] = "the move of a volume has the field"

    uuid: str
    role: str
    array: str
    name: str
    watermark: Annotated[int, Stored(only=("role", TARGET))] = 0
    back: Annotated[bool, Stored(only=("role", TARGET))] = False
    first: Annotated[int | None, Stored(optional=True, only=("role", SOURCE))] = None

    def is_possible(self, size_bytes: int) -> bool:
        """Return whether a volume of *size_bytes* can move so."""
        at = self.watermark if self.role == TARGET else self.first or 0
        return (
            self.role in (SOURCE, TARGET)
            and is_uuid(self.uuid)
            and is_uuid(self.array)
            and not name_problem(self.name)
            and 0 <= at <= size_bytes
            and not at % ALIGN_BYTES
        )


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """One volume; *size_bytes* None: the whole image. Its *extents* hold at least its size.

    If it moves in pieces, they hold what `MoveRecord.first` says.
    """

    UNKNOWN: ClassVar[str] = "a volume has the field"

    uuid: str
    name: str
    size_bytes: Annotated[int | None, Stored(key="size")]
    extents: Annotated[
        tuple[Extent, ...], Stored(refused="the extents of {name} are not possible")
    ] = ()
    move: Annotated[
        MoveRecord | None, Stored(optional=True, refused="the move of {name} is not possible")
    ] = None

    def problem(self) -> str | None:
        """Return in words why this volume is impossible, or None."""
        if not is_uuid(self.uuid):
            return f"{brief(self.uuid)} is not a UUID"
        if volume_name_problem(self.name):
            return f"{brief(self.name)} cannot be a volume's name"
        size = self.size_bytes
        if not _are_ranges(self.extents):
            return f"the extents of {self.name} are not possible"
        if size is None:
            placed = self.extents or self.move is not None
            return f"{self.name} has a place but no size" if placed else None
        if size <= 0 or size % ALIGN_BYTES:
            return f"{self.name} cannot have {brief(size)} bytes"
        needed, held = size, _held(self.extents)
        if self.move is not None:
            if not self.move.is_possible(size):
                return f"the move of {self.name} is not possible"
            is_target = self.move.role == TARGET
            needed = self.move.watermark if is_target else size - (self.move.first or 0)
        if held < needed:
            return f"{self.name} cannot have {needed} bytes in {held} bytes of extents"
        return None


class Arrived(NamedTuple):
    """A move that has ended here, by UUID, from the array *source*, which may not know it yet."""

    move: str
    source: str


@dataclass(frozen=True, slots=True)
class VolumeTable:
    """The volumes of an array, the ranges that are being wiped, the moves that have ended here."""

    UNKNOWN: ClassVar[str] = "the volume table has the field"

    volumes: Annotated[tuple[VolumeRecord, ...], Stored(key="table")] = ()
    wiping: Annotated[
        tuple[Extent, ...], Stored(refused="the ranges to be wiped are not possible")
    ] = ()
    arrived: Annotated[
        tuple[Arrived, ...],
        Stored(optional=True, refused="the moves that have ended here are not possible"),
    ] = ()

    def find(self, uuid: str) -> VolumeRecord | None:
        return next((record for record in self.volumes if record.uuid == uuid), None)

    def taken(self) -> list[Extent]:
        """Return every range that is not free, ascending."""
        return sorted([*(e for record in self.volumes for e in record.extents), *self.wiping])

    @property
    def is_whole(self) -> bool:
        """Whether one volume takes the whole image, however large that becomes."""
        return any(record.size_bytes is None for record in self.volumes)

    @property
    def exchanges(self) -> bool:
        """Whether a volume moves in pieces: what is free is for it."""
        return any(
            record.move is not None
            and (record.move.first is not None or _held(record.extents) < (record.size_bytes or 0))
            for record in self.volumes
        )

    def problem(self) -> str | None:
        """Return in words why this table is impossible, or None."""
        if len(self.volumes) > VOLUMES_MAX:
            return f"it is no list of at most {VOLUMES_MAX} volumes"
        for record in self.volumes:
            problem = record.problem()
            if problem is not None:
                return problem
        for key, found in (
            ("uuid", {record.uuid for record in self.volumes}),
            ("name", {record.name for record in self.volumes}),
        ):
            if len(found) != len(self.volumes):
                return f"two volumes have the same {key}"
        if not _are_ranges(self.wiping):
            return "the ranges to be wiped are not possible"
        if not all(is_uuid(one.move) and is_uuid(one.source) for one in self.arrived):
            return "the moves that have ended here are not possible"
        if self.is_whole and (len(self.volumes) > 1 or self.wiping):
            return "a volume of the whole image is not alone"
        before = 0
        for offset, length in self.taken():
            if offset < before:
                return f"two ranges meet at byte {offset}"
            before = offset + length
        return None

    def end(self) -> int:
        """Return the first byte behind all ranges in use."""
        return max((extent.end for extent in self.taken()), default=0)


def image_end(table: VolumeTable | None, size_bytes: int) -> int:
    """Return how many bytes of an image of *size_bytes* are in use."""
    return size_bytes if table is None or table.is_whole else table.end()


def volume_at(
    array: str, table: VolumeTable | None, image_offset: int | None
) -> tuple[str | None, int | None]:
    """Return (name, offset in it) of the volume that has a byte of the image of *array*.

    Returns (None, None) if no volume has the byte.
    """
    if image_offset is None:
        return None, None
    if table is None:
        return array, image_offset
    for record in table.volumes:
        if record.size_bytes is None:
            return record.name, image_offset
        inside = record.move.first or 0 if record.move is not None else 0
        for extent in record.extents:
            if extent.offset <= image_offset < extent.offset + extent.length:
                return record.name, inside + image_offset - extent.offset
            inside += extent.length
    return None, None


def parts_by_volume(
    array: str, table: VolumeTable | None, begin: int, end: int
) -> Iterator[tuple[int, int, str | None, int | None]]:
    """Yield the parts of a range of the image of *array* that lie in one volume, or in none.

    Of each: its first byte, the first one behind it, and `volume_at` of its first byte.
    """
    edges = {begin, end}
    for record in () if table is None else table.volumes:
        for extent in record.extents:
            edges.update(edge for edge in (extent.offset, extent.end) if begin < edge < end)
    for low, high in pairwise(sorted(edges)):
        yield low, high, *volume_at(array, table, low)


def volume_name_problem(name: str) -> str | None:
    """Return in words why a volume cannot have *name*, or None."""
    return name_problem(name, "it must be a file name")


def _held(extents: Iterable[Extent]) -> int:
    return sum(extent.length for extent in extents)


def _are_ranges(extents: Iterable[Extent]) -> bool:
    return all(
        start >= 0
        and length > 0
        and not start % ALIGN_BYTES
        and not length % ALIGN_BYTES
        and start + length <= COUNTER_MAX
        for start, length in extents
    )
