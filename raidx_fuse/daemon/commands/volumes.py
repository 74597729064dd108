"""The commands `volume-...` and `array-list` of a running mount."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from raidx_fuse.array.status import redundancy_left, state
from raidx_fuse.daemon.commands.arguments import check_arguments
from raidx_fuse.daemon.commands.commands import Commands
from raidx_fuse.errors import BusyError
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes

Result = dict[str, Any]


class VolumeCommands:
    """Creates, lists and changes *volumes*. *users* names the loop devices on a file of the mount.

    `handle` is the `control_server.Handler` of the mount: it adds these commands to *others*, those
    of the array.
    """

    def __init__(
        self, volumes: ArrayVolumes, others: Commands, users: Callable[[str], list[str]]
    ) -> None:
        self._volumes = volumes
        self._others = others
        self._users = users
        self._handlers: dict[str, Callable[..., Awaitable[Result]]] = {
            "volume-create": self.create,
            "volume-list": self.list,
            "volume-resize": self.resize,
            "volume-rename": self.rename,
            "volume-delete": self.delete,
            "array-list": self.array_list,
        }

    async def handle(self, name: str, arguments: dict[str, Any]) -> Result:
        """Run command *name*. Raises UsageError for a bad request, or as the command does."""
        handler = self._handlers.get(name)
        if handler is None:
            return await self._others.handle(name, arguments)
        check_arguments(name, handler, arguments)
        return await handler(**arguments)

    async def create(self, name: str, size: int, on: str | None = None) -> Result:
        """Create a volume of *size* bytes; *on* names the array that it shall lie on."""
        if on is not None:
            self._volumes.require_array(on)
        volume = await self._volumes.create(name, size)
        return self._described(volume)

    async def list(self) -> Result:
        """Return the volumes."""
        return {"volumes": [self._described(volume) for volume in self._volumes.volumes]}

    async def rename(self, volume: str, name: str) -> Result:
        """Give a volume another name."""
        found = self._volumes.find(volume)
        await self._volumes.rename(found, name)
        return self._described(found)

    async def resize(
        self, volume: str, size: int, lose_data: bool = False, dry_run: bool = False
    ) -> Result:
        """Give a volume another size; *lose_data* permits to cut off what was written."""
        found = self._volumes.find(volume)
        lost = 0
        if size < found.size_bytes:
            lost = self._volumes.require_loss(found, size, lose_data=lose_data)
        if dry_run:
            verb = "shrinks" if size < found.size_bytes else "enlarges"
            return self._dry_run(f"{verb} volume {found.name} to {size} bytes", lost)
        try:
            await self._volumes.resize(found, size, lose_data=lose_data)
        except BusyError as error:
            raise self._named(found, error) from None
        return self._described(found)

    async def delete(self, volume: str, lose_data: bool = False, dry_run: bool = False) -> Result:
        """Delete a volume; *lose_data* permits it even if it was written to."""
        found = self._volumes.find(volume)
        lost = self._volumes.require_loss(found, 0, lose_data=lose_data)
        if dry_run:
            return self._dry_run(f"deletes volume {found.name}", lost)
        try:
            await self._volumes.delete(found, lose_data=lose_data)
        except BusyError as error:
            raise self._named(found, error) from None
        return {"deleted": found.name, "free": self._volumes.free_bytes(), "loses": lost}

    async def array_list(self) -> Result:
        """Return the arrays of the mount, with their free space."""
        volumes, array = self._volumes, self._volumes.array
        return {
            "arrays": [
                {
                    "name": array.name,
                    "uuid": array.uuid,
                    "layout": array.member_set.config.layout,
                    "state": state(array),
                    "redundancy_left": redundancy_left(array),
                    "size": array.size_bytes,
                    "free": volumes.free_bytes(),
                    "wiping": volumes.wiping_bytes(),
                    "volumes": [volume.name for volume in volumes.volumes],
                }
            ]
        }

    def _described(self, volume: Volume) -> Result:
        where = self._others.report().get("mountpoint")
        return {
            **self._volumes.describe(volume),
            "array": self._volumes.array.name,
            "path": f"{where.rstrip('/')}/{volume.name}" if where else None,
        }

    def _named(self, volume: Volume, error: BusyError) -> BusyError:
        """Return *error*, naming the loop devices on *volume* if there are any."""
        where = self._others.report().get("mountpoint")
        devices = self._users(f"{where.rstrip('/')}/{volume.name}") if where else []
        if not devices:
            return error
        return BusyError(
            f"volume {volume.name} is in use by {', '.join(devices)}",
            action=f"detach it: losetup -d {devices[0]}",
        )

    def _dry_run(self, does: str, lost: int) -> Result:
        left = redundancy_left(self._volumes.array)
        return {
            "dry_run": True,
            "does": does,
            "loses": lost,
            **{"bytes_read": 0, "bytes_written": lost, "bytes_moved": 0, "seconds": 0.0},
            "redundancy_left": left,
            "redundancy_reduced": False,
            "redundancy_reduced_seconds": 0.0,
        }
