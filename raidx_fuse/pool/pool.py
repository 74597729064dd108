"""The arrays of one mount with their volumes."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.errors import UsageError
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes


class Pool:
    """The arrays of one mount, each with its volumes."""

    def __init__(self, arrays: Sequence[ArrayVolumes]) -> None:
        self.arrays = list(arrays)

    def array(self, ref: str) -> ArrayVolumes:
        """Return the array with that name or UUID. Raises UsageError."""
        for volumes in self.arrays:
            if ref in (volumes.array.name, volumes.array.uuid):
                return volumes
        names = ", ".join(volumes.array.name for volumes in self.arrays)
        raise UsageError(f"there is no array {ref[:100]} here; there is {names}")

    def find(self, ref: str) -> tuple[ArrayVolumes, Volume]:
        """Return the volume with that name or UUID, and its array. Raises UsageError."""
        for volumes in self.arrays:
            for volume in volumes.volumes:
                if ref in (volume.name, volume.uuid):
                    return volumes, volume
        names = [volume.name for volumes in self.arrays for volume in volumes.volumes]
        raise UsageError(f"there is no volume {ref[:100]}; there is {', '.join(names) or 'none'}")
