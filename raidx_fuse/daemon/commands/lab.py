"""The commands that break things, for teaching: faults of a member, and a power cut.

Only a mount made for it has members that can be broken (`raidx mount --lab`); on every other mount
these commands are refused, and its members are not wrapped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.arguments import Result
from raidx_fuse.documents import ArrayReport
from raidx_fuse.documents import LabMember as LabFaults
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.simulated.faulty import ALL, WRITE, Fault
from raidx_fuse.members.simulated.lab_member import LabMember
from raidx_fuse.pool.pool import array_named

ON_BYTES = ("rot", "bad-area", "bad-sector")
ON_WRITES = ("lose-write", "torn-write", "misdirect")
ON_ALL = ("hang", "slow")
FAULTS = (*ON_BYTES, *ON_WRITES, *ON_ALL, "vanish", "return")
AS_TYPED = {  # the kind of a FaultMember -> the fault of the command
    "error": "bad-area",
    "unreadable": "bad-sector",
    "lost": "lose-write",
    "torn": "torn-write",
    "misdirected": "misdirect",
    "vanished": "vanish",
}
KEEP = ("none", "some", "all")
COUNT_MAX = 1 << 20
DELAY_S, DELAY_S_MAX = 0.5, 3600.0
WRITING_BYTES_MAX = 16 << 20
SHIFT_CHUNKS_MAX = 8  # how far a write is misdirected
LOOKED_AT_MAX = 1 << 16  # stripes, for one with written content


class LabCommands:
    """The commands `inject` and `crash` of a mount of *arrays*.

    *members* returns the members that are open. *again* are the arguments with which the mount was
    made: a power cut answers them, because the daemon has to end and another one begins.
    """

    def __init__(
        self,
        arrays: Sequence[Array],
        members: Callable[[], list[Member]],
        again: Mapping[str, object],
    ) -> None:
        self._arrays = arrays
        self._members = members
        self._again = again

    # -- faults --------------------------------------------------------------------------------

    async def inject(
        self,
        member: str,
        fault: str,
        at: int | None = None,
        count: int | None = None,
        seed: int = 0,
        delay_s: float | None = None,
        in_array: str | None = None,
    ) -> Result:
        self._require_lab("inject")
        array = array_named(self._arrays, in_array)
        record = array.membership.find(member)
        disk = self._disk(array, record)
        if fault not in FAULTS:
            raise UsageError(
                f"there is no fault {fault[:40]!r}", action=f"take {', '.join(FAULTS)}"
            )
        if fault in ("vanish", "return") and (at, count) != (None, None):
            raise UsageError(f"{fault} is about the whole member: leave out --at and --count")
        if count is not None and not 1 <= count <= COUNT_MAX:
            raise UsageError(f"a count of {count} is out of range: take 1 to {COUNT_MAX}")
        if at is not None and not 0 <= at < disk.size_bytes:
            raise UsageError(f"byte {at} is outside {disk.path}, which has {disk.size_bytes} bytes")
        if delay_s is not None and fault != "slow":
            raise UsageError(f"a delay is for slow, not for {fault}: leave out --delay")
        slowed_s = DELAY_S if delay_s is None else delay_s
        if not 0 < slowed_s <= DELAY_S_MAX:
            raise UsageError(f"a delay of {slowed_s:g} s is out of range")
        generator = random.Random(seed)
        more: Result = {}
        document = {
            "member": disk.path,
            "role": record.role,
            "fault": fault,
            "at": at,
            "length": None,
            "count": None,
            "delay_s": slowed_s if fault == "slow" else None,
            "seed": seed,
        }
        if fault == "vanish":
            disk.vanish()
        elif fault == "return":
            disk.clear()
        elif fault in ON_BYTES:
            begin = _written_byte(array, record, generator) if at is None else at
            more = await _on_bytes(array, disk, fault, begin, count, generator)
        else:
            more = _on_operations(array, disk, fault, at, count, slowed_s, generator, seed)
        return {**document, **more}

    # -- the power cut -------------------------------------------------------------------------

    async def crash(
        self,
        keep: str = "some",
        seed: int = 0,
        writing: int | None = None,
        length: int = 4096,
        lose: list[str] | None = None,
        in_array: str | None = None,
    ) -> Result:
        """Cut the power of all members; the daemon is of no use after that.

        With *writing*, the power goes while a write of *length* bytes at that offset of the image
        is in flight, and nothing else is. The members *lose* do not come back.
        """
        self._require_lab("crash")
        if keep not in KEEP:
            raise UsageError(f"keep cannot be {keep[:40]!r}", action=f"take {', '.join(KEEP)}")
        gone = []
        if lose or writing is not None:
            array = array_named(self._arrays, in_array)
            gone = [self._disk(array, array.membership.find(ref)) for ref in lose or ()]
            if writing is not None:
                await _write_before(array, writing, length, seed)
        disks = self._lab_members()
        for disk in disks:
            disk.switch_off()
        places = self._places()
        cuts = []
        for disk in disks:  # counted from its data, the same array has the same cut in any log size
            role, origin_bytes = places.get(disk.path, (None, 0))
            own = f"{seed}/{disk.path if role is None else role}"
            cut = await disk.cut_power(keep, own, origin_bytes)  # type: ignore[arg-type]
            cuts.append({"member": disk.path, "role": role, **asdict(cut)})
        left = [disk.spec for disk in disks if disk not in gone]
        return {
            "keep": keep,
            "seed": seed,
            "cut": cuts,
            "lost_members": [disk.path for disk in gone],
            "again": {**self._again, "members": left},
        }

    # -- reports -------------------------------------------------------------------------------

    def with_faults(self, status: ArrayReport) -> ArrayReport:
        """Return *status*, of one array or several, with the faults of the members as *lab*.

        None if the mount was not made to be broken.
        """
        faults: dict[str | None, LabFaults] = {
            disk.path: {
                "member": disk.path,
                "faults": [AS_TYPED.get(kind, kind) for kind in disk.in_force()],
                "hits": {AS_TYPED.get(kind, kind): hits for kind, hits in disk.injected.items()},
            }
            for disk in self._lab_members()
        }
        shown: ArrayReport = {**status, "lab": list(faults.values()) or None}
        if "arrays" in status:
            shown["arrays"] = [
                {**one, "lab": [faults[m["path"]] for m in one["members"] if m["path"] in faults]}
                for one in status["arrays"]
            ]
        return shown

    # -- who is meant --------------------------------------------------------------------------

    def _require_lab(self, name: str) -> None:
        if not self._lab_members():
            raise UsageError(
                f"{name} is refused: this mount was not made to be broken",
                action="for teaching: raidx umount it, then raidx mount --lab MEMBER... MOUNTPOINT",
                reason=Reason.NOT_LAB,
            )

    def _disk(self, array: Array, record: MemberRecord) -> LabMember:
        path = array.membership.path_of(record)
        found = [disk for disk in self._lab_members() if disk.path == path]
        if not found:
            raise UsageError(
                f"{path} is not here: it was missing when the array was mounted",
                reason=Reason.MEMBERS_MISSING,
            )
        return found[-1]

    def _lab_members(self) -> list[LabMember]:
        return [member for member in self._members() if isinstance(member, LabMember)]

    def _places(self) -> dict[str, tuple[int, int]]:
        """Return path -> (role, offset of the data area in bytes) of the members of all arrays."""
        return {
            array.membership.path_of(record): (record.role, array.context.member_set.data_offset)
            for array in self._arrays
            for record in array.member_set.config.members
        }


def _written_byte(array: Array, record: MemberRecord, generator: random.Random) -> int:
    """Return the offset of a byte of *record* that belongs to a written chunk, or to parity."""
    context, role = array.context, Role(record.role)
    stripes = context.layout.stripes
    start = generator.randrange(stripes)
    for number in range(min(stripes, LOOKED_AT_MAX)):
        stripe = Stripe((start + number) % stripes)
        written = cells_of(context.code.all_mask & ~context.unwritten_cells(stripe))
        places = (context.position(stripe, cell) for cell in written)
        offsets = [int(offset) for at, offset in places if at == role]
        if offsets:
            return generator.choice(offsets) + generator.randrange(context.chunk_bytes)
    raise UsageError(
        f"nothing was written to role {record.role} yet", action="write to the image, or give --at"
    )


async def _on_bytes(
    array: Array,
    disk: LabMember,
    fault: str,
    begin: int,
    count: int | None,
    generator: random.Random,
) -> Result:
    """Let bytes rot, or sectors become unreadable, from byte *begin* on.

    Sectors of a bad area cannot be written either; others can be read when they are written.
    """
    if fault == "rot":
        length = count or 1
    else:
        begin -= begin % SECTOR_BYTES
        length = (count or (8 if fault == "bad-area" else 1)) * SECTOR_BYTES
    if begin + length > disk.size_bytes:
        raise UsageError(
            f"{length} bytes at {begin} are beyond the end of {disk.path}", action="lower --count"
        )
    await array.flush()
    await array.context.journal.place()  # newer content from the log would heal it unseen
    if fault == "rot":
        await disk.rot(begin, length, mask=1 << generator.randrange(8))
    elif fault == "bad-sector":
        disk.lose_sectors(begin, length // SECTOR_BYTES)
    else:
        disk.error(("read", "write"), offset_bytes=begin, length_bytes=length)
    return {"at": begin, "length": length}


def _on_operations(
    array: Array,
    disk: LabMember,
    fault: str,
    at: int | None,
    count: int | None,
    delay_s: float,
    generator: random.Random,
    seed: int,
) -> Result:
    """Let operations go wrong: those that touch byte *at*, or the chunks (not the metadata)."""
    kinds: dict[str, Any] = {
        "lose-write": ("lost", WRITE),
        "torn-write": ("torn", WRITE),
        "misdirect": ("misdirected", WRITE),
        "hang": ("hang", ALL),
        "slow": ("slow", ALL),
    }
    kind, operations = kinds[fault]
    if fault in ON_WRITES and count is None:
        count = 1
    begin = array.context.member_set.data_offset if at is None and fault in ON_WRITES else at or 0
    shift = 0
    if fault == "misdirect":
        shift = generator.randrange(1, SHIFT_CHUNKS_MAX + 1) * array.context.chunk_bytes
    disk.reseed(seed)
    disk.inject(
        Fault(
            kind,
            operations,
            offset_bytes=begin,
            length_bytes=None if at is None else 1,
            count=count,
            delay_s=delay_s,
            shift_bytes=shift,
            number=0,  # the operation ends well
        )
    )
    return {"count": count, "shift": shift or None}


async def _write_before(array: Array, offset: int, length: int, seed: int) -> None:
    """Make everything durable, then write, so that only this write is open at the cut."""
    if not 1 <= length <= WRITING_BYTES_MAX:
        raise UsageError(f"length {length} is out of range: take 1 to {WRITING_BYTES_MAX} bytes")
    if offset < 0 or offset + length > array.size_bytes:
        raise UsageError(
            f"bytes {offset} to {offset + length} are outside the image of {array.size_bytes} bytes"
        )
    text = b"NEW%d " % seed
    await array.flush()
    await array.context.journal.place()
    await array.flush()
    await array.write(offset, (text * (length // len(text) + 1))[:length])
