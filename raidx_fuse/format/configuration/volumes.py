"""The volume table of an array: names, sizes and extents of its volumes, in the superblocks.

It is a field of the configuration, so that it has what the configuration has: a checksum, an event
counter as version, copies on every member, one valid version after any crash, and one commit point
for each change (superblock.py). The log could carry it, but a log record reaches only as many
members as may be lost and one more, and needs the log to be recovered before names are known. Maps
of pages are written page by page, so that a table of several pages could be torn.

    "volumes": {"table": [{"uuid": U, "name": N, "size": S, "extents": [[offset, length], ...]}],
                "wiping": [[offset, length], ...]}

A volume that is on its way to another array is in the tables of both, each with a "move"
(`MoveMark`), and "arrived" lists the moves that have ended here (pool/transfer.py). Both keys are
absent where there is nothing to say.

An array without the field has one volume: the whole image, under the array's name. *size* null also
means the whole image, as large as it is; such a volume is alone and has no extents. All other
places are byte ranges of the image in multiples of 4096 that do not overlap. *wiping* are ranges
that deleted volumes have left: their old content is being overwritten with zeros, and until that is
durable no volume gets them. So every free byte of the image reads as zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from raidx_fuse.format.configuration.names import brief, is_clean, name_problem
from raidx_fuse.format.regions import COUNTER_MAX

ALIGN_BYTES = 4096
VOLUMES_MAX = 128
"""So many fit a superblock beside the members and settings of an ordinary array."""

_KEYS = {"uuid", "name", "size", "extents"}
SOURCE, TARGET = "source", "target"
_MARK_KEYS = {"uuid", "role", "array", "name"}
_TARGET_KEYS = {*_MARK_KEYS, "watermark", "back"}


class Extent(NamedTuple):
    """A range of the image in bytes."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class MoveMark:
    """A volume is on its way between this array and another one, *array* (its UUID) or *name*.

    *uuid* names the move; *role* is what this array is, SOURCE or TARGET. Only the target's mark
    says how far the move has come: the bytes below *watermark* are valid on the target, the others
    on the source. *back*: the move was cancelled, and the watermark falls.

    *first* of a source's mark (None: it has all): the source has places only for the bytes from
    *first* on, the target only for those that its extents hold. Volumes that change places where no
    array has room move so.
    """

    uuid: str
    role: str
    array: str
    name: str
    watermark: int = 0
    back: bool = False
    first: int | None = None


@dataclass(frozen=True, slots=True)
class VolumeRecord:
    """One volume; *size_bytes* None: the whole image. Its *extents* hold at least its size.

    If it moves in pieces, they hold what `MoveMark.first` says.
    """

    uuid: str
    name: str
    size_bytes: int | None
    extents: tuple[Extent, ...] = ()
    move: MoveMark | None = None


class Arrived(NamedTuple):
    """A move that has ended here, by UUID, from the array *source*, which may not know it yet."""

    move: str
    source: str


@dataclass(frozen=True, slots=True)
class VolumeTable:
    """The volumes of an array, the ranges that are being wiped, the moves that have ended here."""

    volumes: tuple[VolumeRecord, ...] = ()
    wiping: tuple[Extent, ...] = ()
    arrived: tuple[Arrived, ...] = ()

    def find(self, uuid: str) -> VolumeRecord | None:
        """Return the volume with that UUID, None if there is none."""
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

    def end(self) -> int:
        """Return the first byte behind all ranges in use."""
        return max((extent.end for extent in self.taken()), default=0)


def encode_table(table: VolumeTable) -> dict[str, Any]:
    """Return *table* as JSON values."""
    values: dict[str, Any] = {
        "table": [_encode_record(record) for record in table.volumes],
        "wiping": [list(extent) for extent in table.wiping],
    }
    if table.arrived:
        values["arrived"] = [list(one) for one in table.arrived]
    return values


def _encode_record(record: VolumeRecord) -> dict[str, Any]:
    values: dict[str, Any] = {
        "uuid": record.uuid,
        "name": record.name,
        "size": record.size_bytes,
        "extents": [list(extent) for extent in record.extents],
    }
    if record.move is not None:
        keys = _TARGET_KEYS if record.move.role == TARGET else _MARK_KEYS
        values["move"] = {key: getattr(record.move, key) for key in keys}
        if record.move.first is not None:
            values["move"]["first"] = record.move.first
    return values


def decode_table(values: dict[str, Any]) -> VolumeTable:
    """Return the table in *values*, of which `table_problem` has found nothing."""
    return VolumeTable(
        tuple(
            VolumeRecord(
                *(v["uuid"], v["name"], v["size"], _extents(v["extents"])),
                move=MoveMark(**v["move"]) if "move" in v else None,
            )
            for v in values["table"]
        ),
        _extents(values["wiping"]),
        tuple(Arrived(*one) for one in values.get("arrived", ())),
    )


def image_end(values: dict[str, Any] | None, size_bytes: int) -> int:
    """Return how many bytes of an image of *size_bytes* are in use, given the table *values*."""
    table = None if values is None else decode_table(values)
    return size_bytes if table is None or table.is_whole else table.end()


def volume_at(
    array: str, values: dict[str, Any] | None, image_offset: int | None
) -> tuple[str | None, int | None]:
    """Return (name, offset in it) of the volume that has a byte of the image of *array*.

    *values* is the table as JSON values, or None. Returns (None, None) if no volume has the byte.
    """
    if image_offset is None:
        return None, None
    if values is None:
        return array, image_offset
    for record in decode_table(values).volumes:
        if record.size_bytes is None:
            return record.name, image_offset
        inside = record.move.first or 0 if record.move is not None else 0
        for extent in record.extents:
            if extent.offset <= image_offset < extent.offset + extent.length:
                return record.name, inside + image_offset - extent.offset
            inside += extent.length
    return None, None


def table_problem(values: Any, is_uuid: Any) -> str | None:
    """Return in words why the JSON *values* are no volume table, or None."""
    if not isinstance(values, dict) or values.keys() - {"arrived"} != {"table", "wiping"}:
        return "it has other fields than table, wiping and arrived"
    listed, wiping = values["table"], values["wiping"]
    if not isinstance(listed, list) or len(listed) > VOLUMES_MAX:
        return f"it is no list of at most {VOLUMES_MAX} volumes"
    for one in listed:
        problem = _record_problem(one, is_uuid)
        if problem is not None:
            return problem
    for key in ("uuid", "name"):
        if len({one[key] for one in listed}) != len(listed):
            return f"two volumes have the same {key}"
    if not _are_ranges(wiping):
        return "the ranges to be wiped are not possible"
    arrived = values.get("arrived", [])
    if not isinstance(arrived, list) or not all(
        isinstance(one, list) and len(one) == 2 and all(map(is_uuid, one)) for one in arrived
    ):
        return "the moves that have ended here are not possible"
    if any(one["size"] is None for one in listed) and (len(listed) > 1 or wiping):
        return "a volume of the whole image is not alone"
    ranges = sorted([*(tuple(e) for one in listed for e in one["extents"]), *map(tuple, wiping)])
    before = 0
    for offset, length in ranges:
        if offset < before:
            return f"two ranges meet at byte {offset}"
        before = offset + length
    return None


def volume_name_problem(name: str) -> str | None:
    """Return in words why a volume cannot have *name*, or None."""
    if not is_clean(name):
        return "it has characters that no terminal can show"
    if name in ("", ".", "..") or "/" in name:
        return "it must be a file name"
    return name_problem(name)


def _record_problem(one: Any, is_uuid: Any) -> str | None:
    if not isinstance(one, dict) or one.keys() - {"move"} != _KEYS:
        return "a volume has other fields than uuid, name, size, extents and move"
    if not is_uuid(one["uuid"]):
        return f"{brief(one['uuid'])} is not a UUID"
    if not isinstance(one["name"], str) or volume_name_problem(one["name"]):
        return f"{brief(one['name'])} cannot be a volume's name"
    size, extents = one["size"], one["extents"]
    if not _are_ranges(extents):
        return f"the extents of {one['name']} are not possible"
    if size is None:
        placed = extents or "move" in one
        return f"{one['name']} has a place but no size" if placed else None
    held = _held(extents)
    if type(size) is not int or size <= 0 or size % ALIGN_BYTES:
        return f"{one['name']} cannot have {brief(size)} bytes"
    needed = size
    if "move" in one:
        mark = one["move"]
        if not _is_mark(mark, size, is_uuid):
            return f"the move of {one['name']} is not possible"
        needed = mark["watermark"] if mark["role"] == TARGET else size - mark.get("first", 0)
    if held < needed:
        return f"{one['name']} cannot have {needed} bytes in {held} bytes of extents"
    return None


def _is_mark(mark: Any, size: int, is_uuid: Any) -> bool:
    if not isinstance(mark, dict) or not isinstance(mark.get("role"), str):
        return False
    role = mark["role"]
    keys = mark.keys() - {"first"} if role == SOURCE else mark.keys()
    if keys != {SOURCE: _MARK_KEYS, TARGET: _TARGET_KEYS}.get(role):
        return False
    at = mark.get("watermark", mark.get("first", 0))
    return (
        is_uuid(mark["uuid"])
        and is_uuid(mark["array"])
        and isinstance(mark["name"], str)
        and is_clean(mark["name"])
        and not name_problem(mark["name"])
        and isinstance(mark.get("back", False), bool)
        and type(at) is int
        and 0 <= at <= size
        and not at % ALIGN_BYTES
    )


def _held(extents: Iterable[Iterable[int]]) -> int:
    return sum(length for _, length in extents)


def _are_ranges(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(one, list)
        and len(one) == 2
        and all(type(n) is int and n >= 0 and n % ALIGN_BYTES == 0 for n in one)
        and one[1] > 0
        and sum(one) <= COUNTER_MAX
        for one in values
    )


def _extents(values: Iterable[list[int]]) -> tuple[Extent, ...]:
    return tuple(Extent(offset, length) for offset, length in values)
