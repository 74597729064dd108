"""What was done to each volume when, and what a cut may therefore leave of it.

Numbers of events of the disks' record are the time. A version of something (a sector, a size) may
be there from the event on at which it began; when it is *sure*, no older one may be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raidx_fuse.lab.crash.history import fill
from raidx_fuse.members.base import SECTOR_BYTES

T = TypeVar("T")
ZEROS = bytes(SECTOR_BYTES)
SECTORS_OF_A_VOLUME = 1 << 16  # more than any has: sectors of two volumes have unlike content


@dataclass(slots=True)
class Version(Generic[T]):
    """*value*, begun before event *begun*, and sure from event *sure* on."""

    value: T
    begun: int
    sure: float = math.inf

    def confirm(self, event: int) -> None:
        """Note that the version is sure from *event* on."""
        self.sure = min(self.sure, event)


def allowed(versions: Sequence[Version[T]], moment: int) -> list[T]:
    """Return the values that a cut before event *moment* may leave, the newest last."""
    first = max(i for i, version in enumerate(versions) if version.sure <= moment)
    return [version.value for version in versions[first:] if version.begun < moment]


@dataclass(slots=True)
class Tracked:
    """One volume: whether it is *there*, its *sizes* in bytes, the versions of its *sectors*."""

    number: int
    name: str
    there: list[Version[bool]]
    sizes: list[Version[int]] = field(default_factory=list)
    sectors: list[list[Version[bytes]]] = field(default_factory=list)
    uuid: str = ""

    def name_uuid(self, uuid: str) -> None:
        """Note the UUID that the volume got."""
        self.uuid = uuid

    @property
    def is_there(self) -> bool:
        """Whether it is there now."""
        return self.there[-1].value

    @property
    def size(self) -> int:
        """Its size now."""
        return self.sizes[-1].value

    def write(self, seed: int, first: int, count: int, event: int) -> bytes:
        """Note a write of *count* sectors; return their new content."""
        data = []
        for sector in range(first, first + count):
            versions = self.sectors[sector]
            place = self.number * SECTORS_OF_A_VOLUME + sector
            data.append(fill(seed, place, len(versions)))
            versions.append(Version(data[-1], event))
        return b"".join(data)

    def newest(self) -> list[tuple[int, Version[bytes]]]:
        """Return (sector, newest version) of all sectors whose newest one is not sure."""
        found = ((sector, versions[-1]) for sector, versions in enumerate(self.sectors))
        return [(sector, version) for sector, version in found if version.sure == math.inf]

    def resize(self, size: int, event: int) -> list[Version[bytes]]:
        """Note that it takes another size; return the zeros of the sectors that it loses."""
        self.sizes.append(Version(size, event))
        count = size // SECTOR_BYTES
        while len(self.sectors) < count:
            self.sectors.append([Version(ZEROS, -1, -1)])
        lost = [Version(ZEROS, event) for _ in self.sectors[count:]]
        for versions, zeros in zip(self.sectors[count:], lost, strict=True):
            versions.append(zeros)
        return lost

    def undo_resize(self, zeros: Sequence[Version[bytes]]) -> None:
        """Note that the last resize was refused, which would have lost the sectors of *zeros*."""
        self.sizes.pop()
        for versions in self.sectors:
            if any(versions[-1] is one for one in zeros):
                versions.pop()

    def content(self) -> bytes:
        """Return its newest content."""
        return b"".join(v[-1].value for v in self.sectors[: self.size // SECTOR_BYTES])

    def problem(self, found: bytes, moment: int) -> str | None:
        """Return in words why the volume cannot be *found* after a cut before *moment*, or None."""
        sizes = allowed(self.sizes, moment)
        if len(found) not in sizes:
            return f"volume {self.name} has {len(found)} bytes, allowed: {sizes}"
        for sector in range(len(found) // SECTOR_BYTES):
            part = found[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
            if part not in allowed(self.sectors[sector], moment):
                return f"volume {self.name}, sector {sector} holds {self._origin(sector, part)}"
        return None

    def _origin(self, sector: int, part: bytes) -> str:
        if part == ZEROS:
            return "zeros"
        for number, version in enumerate(self.sectors[sector]):
            if version.value == part:
                return f"write {number} of {len(self.sectors[sector]) - 1}"
        return f"content that nobody wrote there ({part[:8].hex()}...)"


@dataclass(slots=True)
class Deed:
    """An action of the workload, *verb*, from event *begin* to event *end*."""

    verb: str
    begin: int
    end: float = math.inf

    def finish(self, event: int) -> None:
        """Note that it ended before event *event*."""
        self.end = event
