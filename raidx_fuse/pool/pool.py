"""The arrays of one mount with their volumes, and those that are on their way between two of them.

How a volume is created, resized, renamed and deleted: array_volumes.py; how it moves: move.py.

When arrays are opened, what their tables say of moves is settled (transfer.py, law 1):

    source's table  target's table           what it means
    this move       this move                under way: shown, as far as the watermark says
    this move       the move has arrived     the source gives its places up
    this move       nothing of it            these tables are not of one time: not shown
    no such move    a move, watermark 0      never begun, or given back: the target gives up
    no such move    a move, watermark > 0    not of one time: shown from neither array
    array absent    -                        not shown

Nothing is given up but for a record that says so, so that outdated members of one array cannot make
the other one lose anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.errors import (
    AmbiguousError,
    AssemblyError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.both_ends import readable_superblock
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.remembered import RememberedArray
from raidx_fuse.format.configuration.saved_jobs import refuse_half_renamed
from raidx_fuse.format.configuration.volumes import SOURCE, TARGET, MoveRecord, VolumeRecord
from raidx_fuse.members.base import Member
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.transfer import Transfer, forget_arrival, give_up
from raidx_fuse.pool.volume import Volume


async def by_array(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members of each array, in the order in which the arrays are named first.

    Each array of several can be started, or AssemblyError names them all: a member of another
    array that was given by mistake must not look like an array of its own. Of one array nothing is
    checked here. Members without a readable superblock are in the first group, whose assembly
    leaves them out and says what is wrong with them.
    """
    groups: dict[str, list[Member]] = {}
    names: dict[str, str] = {}
    configs: dict[str, ArrayConfig] = {}  # of the first member of each
    unread: list[Member] = []
    for member in members:
        superblock = await readable_superblock(member)
        if superblock is None:
            unread.append(member)
            continue
        uuid = superblock.array_uuid
        groups.setdefault(uuid, []).append(member)
        names[uuid] = superblock.config.name
        configs.setdefault(uuid, superblock.config)
    refuse_half_renamed(list(configs.values()))
    if len(groups) < 2:
        return [list(members)]
    for group in groups.values():
        try:
            await assemble(group)
        except RaidxError as error:
            parts = "; ".join(
                f"{', '.join(member.path for member in group)} of array {names[uuid]!r} "
                f"({uuid[:8]})"
                for uuid, group in groups.items()
            )
            raise AssemblyError(
                f"these are members of {len(groups)} arrays: {parts}; {error.message}",
                action="give the members of one array, or all of each",
                reason=Reason.SEVERAL_ARRAYS,
            ) from None
    first, *others = groups.values()
    return [[*first, *unread], *others]


def check_names(pool: Sequence[ArrayVolumes]) -> None:
    """Raise UsageError if two arrays of *pool*, or two of their volumes, have the same name.

    Or if two of their volumes are the same one: members of one of the arrays are outdated then.
    """
    arrays: dict[str, ArrayVolumes] = {}
    held: dict[str, ArrayVolumes] = {}
    uuids: dict[str, ArrayVolumes] = {}
    for volumes in pool:
        array = volumes.array
        other = arrays.setdefault(array.name, volumes)
        if other is not volumes:
            raise UsageError(
                f"two arrays are called {array.name}: {other.array.uuid} and {array.uuid}",
                action="mount each on a mount point of its own",
                reason=Reason.EXISTS,
            )
        for volume in volumes.volumes:
            if uuids.setdefault(volume.uuid, volumes) is not volumes:
                raise UsageError(
                    f"arrays {uuids[volume.uuid].array.name} and {array.name} both say that volume "
                    f"{volume.name} is theirs",
                    action="mount one alone, and delete the volume on the outdated one",
                )
            first = held.setdefault(volume.name, volumes)
            if first is not volumes:
                raise UsageError(
                    f"arrays {first.array.name} and {array.name} both have a volume {volume.name}",
                    action="mount one alone, then type: raidx volume rename MOUNT "
                    f"{volume.name} NEW",
                    reason=Reason.EXISTS,
                )


class Unshown(NamedTuple):
    """A volume of which *volumes* has a *record*, and *why* it is not shown."""

    volumes: ArrayVolumes
    record: VolumeRecord
    why: str

    @property
    def text(self) -> str:
        """What is missing, in one sentence."""
        return f"volume {self.record.name} is not shown: {self.why}"


class Pool:
    """The *arrays* of one mount; *transfers*: moves under way, by the UUID of the volume.

    *unshown* are volumes that cannot be shown now, *absent* arrays that were mounted with these.
    """

    def __init__(self, arrays: Sequence[ArrayVolumes]) -> None:
        self.arrays = list(arrays)
        self.transfers: dict[str, Transfer] = {}
        self.unshown: list[Unshown] = []
        self.absent: list[RememberedArray] = []
        self.starting = trio.Lock()  # moves start one after the other
        self.closing = False  # whether no move may start any more
        self._by_uuid = {volumes.array.uuid: volumes for volumes in self.arrays}

    # -- questions -------------------------------------------------------------------------------

    def array(self, ref: str) -> ArrayVolumes:
        """Return the array with that name or UUID. Raises UsageError."""
        return self._by_uuid[array_named([one.array for one in self.arrays], ref).uuid]

    def find(self, ref: str) -> tuple[ArrayVolumes, Volume]:
        """Return the volume with that name or UUID, and its array. Raises UsageError."""
        for volumes in self.arrays:
            for volume in volumes.volumes:
                if ref in (volume.name, volume.uuid):
                    return volumes, volume
        unshown = self.find_unshown(ref)
        if unshown is not None:
            raise UsageError(unshown.text, reason=Reason.MEMBERS_MISSING)
        for absent in self.absent:
            if ref in absent.volumes:
                raise UsageError(
                    f"volume {ref} is on array {absent.name}, which is absent",
                    reason=Reason.MEMBERS_MISSING,
                )
        names = [volume.name for volumes in self.arrays for volume in volumes.volumes]
        raise UsageError(
            f"there is no volume {ref[:100]}; there is {', '.join(names) or 'none'}",
            reason=Reason.NO_SUCH_VOLUME,
        )

    def find_unshown(self, ref: str) -> Unshown | None:
        """Return the volume that is not shown with that name or UUID, None if there is none."""
        for one in self.unshown:
            if ref in (one.record.name, one.record.uuid):
                return one
        return None

    # -- changes ---------------------------------------------------------------------------------

    async def forget(self, unshown: Unshown) -> None:
        """Delete what the arrays here have of a volume that is not shown. Raises RaidxError."""
        unshown.volumes.array.require_writable()
        await give_up(unshown.volumes, unshown.record.uuid)
        self.unshown.remove(unshown)
        unshown.volumes.array.warnings.remove(unshown.text)

    async def settle(self) -> None:
        """Find the moves under way, and end what only the record of the other array has ended.

        See the module. Raises RaidxError.
        """
        for volumes in self.arrays:
            for record in volumes.table().volumes:
                if record.move is None:
                    continue
                other = self._by_uuid.get(record.move.array)
                if other is None or other is volumes:
                    self._withhold(
                        volumes,
                        record,
                        f"it is on its way {'to' if record.move.role == SOURCE else 'from'} array "
                        f"{record.move.name} ({record.move.array[:8]}), which is absent",
                    )
                elif record.move.role == SOURCE:
                    await self._settle_source(volumes, other, record, record.move)
                else:
                    await self._settle_target(other, volumes, record, record.move)
        for volumes in self.arrays:
            await self._forget_arrivals(volumes)

    async def _settle_source(
        self, source: ArrayVolumes, target: ArrayVolumes, record: VolumeRecord, move: MoveRecord
    ) -> None:
        there = target.table().find(record.uuid)
        if any(one.move == move.uuid for one in target.table().arrived):
            if not source.array.read_only:
                await give_up(source, record.uuid)
        elif _is_same(there, record, move):
            assert there is not None
            transfer = Transfer(source, target, record, there, resumed=True)
            source.volumes.append(transfer.volume)
            self.transfers[record.uuid] = transfer
        else:
            self._withhold(source, record, _disagreement(source.array, target.array))

    async def _settle_target(
        self, source: ArrayVolumes, target: ArrayVolumes, record: VolumeRecord, move: MoveRecord
    ) -> None:
        here = source.table().find(record.uuid)
        if here is not None and here.move is not None and here.move.uuid == move.uuid:
            return  # under way, see `_settle_source`
        if not move.watermark:
            if not target.array.read_only:
                await give_up(target, record.uuid)
            return
        why = _disagreement(target.array, source.array)
        self._withhold(target, record, why)
        for volume in [one for one in source.volumes if one.uuid == record.uuid]:
            source.volumes.remove(volume)
            assert here is not None
            self._withhold(source, here, why)

    def _withhold(self, volumes: ArrayVolumes, record: VolumeRecord, why: str) -> None:
        self.unshown.append(Unshown(volumes, record, why))
        volumes.array.warnings.append(self.unshown[-1].text)

    async def _forget_arrivals(self, volumes: ArrayVolumes) -> None:
        if volumes.array.read_only:
            return
        for arrived in volumes.table().arrived:
            source = self._by_uuid.get(arrived.source)
            if source is None:
                continue  # it may still name the move
            moves = [record.move for record in source.table().volumes if record.move is not None]
            if all(move.role == TARGET or move.uuid != arrived.move for move in moves):
                await forget_arrival(volumes, arrived.move)


def array_named(arrays: Sequence[Array], ref: str | None) -> Array:
    """Return the one of *arrays* with name or UUID *ref*; None means the only one.

    Raises UsageError.
    """
    names = ", ".join(array.name for array in arrays)
    if ref is None and len(arrays) > 1:
        raise AmbiguousError(f"this mount has {len(arrays)} arrays", action=f"name one: {names}")
    for array in arrays:
        if ref in (None, array.name, array.uuid):
            return array
    raise UsageError(
        f"there is no array {str(ref)[:100]} here; there is {names}", reason=Reason.NO_SUCH_ARRAY
    )


def _is_same(there: VolumeRecord | None, here: VolumeRecord, move: MoveRecord) -> bool:
    """Return whether both tables name one move of one volume."""
    return (
        there is not None
        and there.move is not None
        and there.move.role == TARGET
        and there.move.uuid == move.uuid
        and (there.size_bytes, there.name) == (here.size_bytes, here.name)
        and (move.first or 0) <= there.move.watermark
    )


def _disagreement(array: Array, other: Array) -> str:
    return (
        f"array {array.name} names a move that array {other.name} does not know; "
        "are members of one of them outdated?"
    )
