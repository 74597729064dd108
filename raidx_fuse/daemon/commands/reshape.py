"""The command `reshape`: another layout, more members, or both, by moving all chunks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from raidx_fuse.array.array import Array
from raidx_fuse.array.estimate import of_restriping
from raidx_fuse.daemon.commands.arguments import check_newcomers
from raidx_fuse.daemon.member_files import Own
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.members.base import Member


class Newcomers(Protocol):
    """Opens new members for a command, and closes them when the mount ends."""

    async def open(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        create_bytes: int | None,
        own: Own | None = None,
    ) -> Member:
        """Return the member at *path*; create a missing file of *create_bytes* (None: refuse).

        A member whose superblock is *own* may have it: it returns. Raises SignatureFoundError,
        MemberError, BusyError, UsageError.
        """
        ...

    async def check(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        may_create: bool,
        own: Own | None = None,
        look: Callable[[Member], Awaitable[None]] | None = None,
    ) -> int | None:
        """Raise what `open` would raise, without changing anything; *look* at a member there is.

        Returns the size in bytes, None for a missing file whose size the other members decide.
        """
        ...

    async def release(self, member: Member) -> None:
        """Close a member that did not join the array."""


class ReshapeCommand:
    """Restripes *array* onto members that *newcomers* opens."""

    def __init__(self, array: Array, newcomers: Newcomers) -> None:
        self._array = array
        self._newcomers = newcomers

    async def reshape(
        self,
        members: list[str],
        layout: str | None = None,
        rotate: bool | None = None,
        overwrite_signature: bool = False,
        create: bool = False,
        lose_redundancy: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Move all chunks to *layout* (None: unchanged) over *members* more.

        A layout that tolerates fewer losses is taken only with *lose_redundancy*. Raises UsageError
        if the change is impossible, BusyError if it is not possible now.
        """
        array = self._array
        check_newcomers(members, array.member_set.config.members)
        params = {} if rotate is None else {"rotate": rotate}
        shape = array.restripe_operation.target(len(members), layout, params)
        moving = array.restripe_operation.moving(shape)
        if dry_run:
            for path in members:
                await self._newcomers.check(
                    path, overwrite_signature=overwrite_signature, may_create=create
                )
            config = array.member_set.config
            does = (
                f"moves all chunks from {config.layout} on {config.width} members to "
                f"{shape.layout} on {shape.width}"
            )
            return await of_restriping(array, moving, does)
        array.require_writable()
        before, after = array.context.code.tolerance, _after(moving)
        if after < before and not lose_redundancy:
            raise UsageError(
                f"{shape.layout} on {shape.width} members tolerates fewer lost members: {after}, "
                f"not {before}",
                action="accept this with --lose-redundancy",
            )
        records = [record for record in array.member_set.config.members if record.role >= 0]
        size_bytes = min(record.size_bytes for record in records) if create else None
        opened: list[Member] = []
        try:
            for path in members:
                member = await self._newcomers.open(
                    path, overwrite_signature=overwrite_signature, create_bytes=size_bytes
                )
                opened.append(member)
            return await array.restripe(opened, layout, params)
        except RaidxError:
            for member in opened:
                await self._release(member)
            raise

    async def _release(self, member: Member) -> None:
        """Close *member* unless it joined the array."""
        if member not in self._array.member_set.present().values():
            await self._newcomers.release(member)


def _after(moving: RestripeLayout) -> int:
    """Return how many losses the array tolerates after the restripe of *moving*."""
    return (moving.below if moving.rises else moving.above).code.tolerance
