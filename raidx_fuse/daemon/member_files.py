"""The members that one process has opened: creates missing files, protects signatures, closes all.

`open_member` parses attributes that the user gave with a member (``disk3.img,model=hdd``).

While an array is mounted, no path named by a user may be accessed on the event loop: the path may
be on a network disk that does not answer, or on the array's own image, which the event loop itself
serves. `open`, `check` and `release` therefore use threads. `attach` is for the time before the
mount.

Who writes members, or reads them over some time, has them to itself by three locks: that of each
member (members/local.py), that of what hides the same bytes under another name
(backing_devices.py), and that of the array (array_lock.py), which `claim` takes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from errno import EACCES, EMFILE, ENFILE, ENOMEM, EPERM, EROFS, ETIMEDOUT
from functools import partial

import trio

from raidx_fuse.daemon.array_lock import ArrayLock, arrays_of, refuse_running
from raidx_fuse.daemon.backing_devices import (
    Device,
    MembersOf,
    hold_files_below,
    refuse_own,
    refuse_used_loops,
)
from raidx_fuse.errors import (
    BusyError,
    FormatError,
    InUseError,
    MemberError,
    RaidxError,
    Reason,
    SignatureFoundError,
    UsageError,
)
from raidx_fuse.format.both_ends import read_copies, readable_superblock
from raidx_fuse.format.signature import Signature, clear_front, describe, find_in_front
from raidx_fuse.format.superblock import Superblock, read_slots
from raidx_fuse.members.base import Identity, Member, host_errors
from raidx_fuse.members.local import identity_of
from raidx_fuse.members.nbd.uri import is_uri, parse_uri
from raidx_fuse.members.open import create_member, open_member
from raidx_fuse.members.spec import parse_spec, path_of
from raidx_fuse.members.threads import CALL_S, has_no_loop, in_background, in_thread

log = logging.getLogger(__name__)

LOOKS, LOOK_S = 3, 0.02

# Of an open: the disk may be whole, and the user can do something about it.
_TO_PUT_RIGHT = frozenset([EACCES, EPERM, EROFS, EMFILE, ENFILE, ENOMEM])

Own = Callable[[Superblock], bool]  # whether a superblock is that of a member that returns


class Disks:
    """Opens members and closes all of them at the end of its ``with`` block.

    *read_only* and *lock* apply to all of them. *lock* is false for examining members that a mount
    may be using. *wrap* makes of each opened member and its specification the one that is used: a
    mount for teaching has members with faults.
    """

    def __init__(
        self,
        *,
        read_only: bool = False,
        lock: bool = True,
        wrap: Callable[[Member, str], Member] | None = None,
    ) -> None:
        self._read_only = read_only
        self._lock = lock
        self._wrap = wrap or (lambda member, _spec: member)
        self._opened: list[Member] = []
        self._made: dict[int, str] = {}  # by id of the member: the file created for it
        self._failed: set[int] = set()  # by id of the member: the array excluded it
        self._below: dict[int, list[int]] = {}  # by id of the member: locked files below it
        self._arrays: dict[str, ArrayLock] = {}  # by UUID
        self._refuse_own: Callable[[str], None] = lambda path: None

    def mounted(self, own: Device, members_of: MembersOf) -> None:
        """From now on refuse paths on the mount *own*; see `backing_devices.refuse_own`."""
        self._refuse_own = partial(refuse_own, own=own, members_of=members_of)

    def note_failed(self, member: Member) -> None:
        """Note that the array has excluded *member*: it may be opened again, to join anew."""
        self._failed.add(id(member))

    @property
    def opened(self) -> list[Member]:
        """The members that are open now, in the order of their opening."""
        return list(self._opened)

    def __enter__(self) -> Disks:
        return self

    def __exit__(self, *_: object) -> None:
        while self._opened:
            self._forget(self._opened[-1], keep_file=True)()
        while self._arrays:
            self._arrays.popitem()[1].release()

    async def claim(self, members: Sequence[Member], place: str = "") -> None:
        """Take the locks of the arrays that opened *members* are of, until the end of the block.

        *place* is where they will be mounted or served. Without a directory for locks nobody of
        this user can have an array running, so readers do without. Raises BusyError, RaidxError.
        """
        remote: dict[tuple[str, str], bool] = {}  # by UUID and name: are all of them exports?
        for member in members:
            superblock = await readable_superblock(member)
            if superblock is not None:
                array = superblock.array_uuid, superblock.config.name
                remote[array] = remote.get(array, True) and is_uri(member.path)
        for (uuid, name), is_remote in remote.items():
            await self.claim_array(uuid, name, place, is_remote=is_remote)

    async def claim_array(
        self, uuid: str, name: str, place: str = "", *, is_remote: bool = False
    ) -> None:
        """Take the lock of the array *uuid*, called *name*, as `claim` does for those of members.

        *is_remote*: all of its members are exports. Raises BusyError, RaidxError.
        """
        if uuid in self._arrays:
            return
        try:
            shared = self._read_only or is_remote
            self._arrays[uuid] = await _lock_array(uuid, name, place, shared=shared)
        except BusyError:
            raise
        except RaidxError:
            if not self._read_only:
                raise

    def attach(self, specs: Sequence[str]) -> list[Member]:
        """Open existing members, each once. Raises UsageError, BusyError, MemberError."""
        check_distinct(specs)
        return [self._open(spec) for spec in specs]

    def attach_usable(self, specs: Sequence[str]) -> tuple[list[Member], list[str]]:
        """Open those of *specs* that can be members; return why the others cannot.

        A path that is gone, a pipe, a dead disk or server must not stop an array that can start
        without it. What the user can put right at once is refused: a member in use, or without
        permission. Raises UsageError, BusyError; MemberError also if nothing can be opened.
        """
        check_distinct(specs)
        opened: list[Member] = []
        refused: list[MemberError] = []
        for spec in specs:
            try:
                opened.append(self._open(spec))
            except MemberError as error:
                if error.errno in _TO_PUT_RIGHT:
                    raise
                refused.append(error)
        if refused and not opened:
            raise refused[0]
        return opened, [str(error) for error in refused]

    async def accept(self, spec: str) -> list[str]:
        """Clear what others have made on the opened member *spec*; return a warning about it.

        Raises UsageError if it is not open, MemberError.
        """
        with suppress(OSError):
            here = identity(path_of(spec))
            for member in self._opened:
                if member.identity == here:
                    foreign = find_in_front(await read_slots(member, searched=True))
                    if not foreign:
                        return []
                    await clear_front(member, foreign)
                    return [
                        f"{member.path} carried {describe(foreign)}, which is gone: what else was "
                        "written to it is found by raidx scrub"
                    ]
        raise UsageError(
            f"--accept-member {spec}: it is none of the members that are mounted",
            reason=Reason.NO_SUCH_MEMBER,
        )

    async def open(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        create_bytes: int | None,
        own: Own | None = None,
    ) -> Member:
        """Open a member whose content will be overwritten; create a missing file of *create_bytes*.

        A superblock that is *own*, of a member that returns, is no signature of somebody else; what
        somebody else made on it meanwhile is, and goes with *overwrite_signature*.
        A size in the spec itself (``disk.img,size=1GiB``) takes precedence over *create_bytes*.
        Raises SignatureFoundError, MemberError, BusyError, UsageError.
        """
        make = partial(self._open_or_make, path, parse_spec(path).size_bytes or create_bytes)
        member, made = await in_thread(path_of(path), make, discard=self._discard)
        self._opened.append(member)
        if made is not None:
            self._made[id(member)] = made
            return member
        try:
            foreign = await self._check_newcomer(member, overwrite_signature, own)
            if foreign:
                await clear_front(member, foreign)
        except BaseException:
            await self.release(member)
            raise
        return member

    async def check(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        may_create: bool,
        own: Own | None = None,
        look: Callable[[Member], Awaitable[None]] | None = None,
    ) -> int | None:
        """Raise what `open` would raise. No file is created or written.

        *look* is called with a member that is there, while it is open. Returns the member's size in
        bytes, None for a missing file whose size the other members
        decide.
        """
        member = await in_thread(
            path_of(path),
            partial(self._open_or_none, path, may_create),
            discard=lambda member: self._discard((member, None)) if member else None,
        )
        if member is None:
            return parse_spec(path).size_bytes
        self._opened.append(member)
        try:
            await self._check_newcomer(member, overwrite_signature, own)
            if look is not None:
                await look(member)
            return member.size_bytes
        finally:
            await self.release(member)

    async def release(self, member: Member) -> None:
        """Close a member that did not join an array; remove the file that was created for it."""
        undo = self._forget(member)
        with trio.CancelScope(shield=True):
            try:
                await in_thread(member.path, undo)
            except BusyError:
                in_background(member.path, undo)
            except RaidxError as error:  # the thread continues in the background
                log.warning("%s", error)

    def let_go(self, member: Member) -> None:
        in_background(member.path, self._forget(member))

    async def _check_newcomer(
        self, member: Member, overwrite_signature: bool, own: Own | None
    ) -> list[Signature]:
        """Return what `_look_at_newcomer` returns; raise BusyError if its array runs elsewhere."""
        foreign = await _look_at_newcomer(member, overwrite_signature, own)
        superblock = await readable_superblock(member)
        if superblock is not None and superblock.array_uuid not in self._arrays:
            refuse_running(superblock.array_uuid, superblock.config.name)
        return foreign

    def _forget(self, member: Member, *, keep_file: bool = False) -> Callable[[], None]:
        """Forget *member*; return the function that closes it and removes its created file."""
        self._opened.remove(member)
        self._failed.discard(id(member))
        made = self._made.pop(id(member), None)
        below = self._below.pop(id(member), [])
        return partial(_undo, member, None if keep_file else made, below)

    def _discard(self, opened: tuple[Member, str | None]) -> None:
        """Close a member whose opening took too long, and remove the file created for it."""
        member, made = opened
        _undo(member, made, self._below.pop(id(member), []))

    # -- in threads ----------------------------------------------------------------------------

    def _open_or_make(self, spec: str, create_bytes: int | None) -> tuple[Member, str | None]:
        """Return (member, path of the file created for it or None)."""
        path = path_of(spec)
        self._check_own(path)
        if is_there(spec):
            return self._open_other(spec), None
        if create_bytes is None:
            raise _not_there(spec)
        return self._wrap(create_member(spec, create_bytes), spec), path

    def _open_or_none(self, spec: str, may_create: bool) -> Member | None:
        """Return the member, None if its file can be created."""
        path = path_of(spec)
        self._check_own(path)
        if is_there(spec):
            return self._open_other(spec)
        if not may_create and parse_spec(spec).size_bytes is None:
            raise _not_there(spec)
        folder = os.path.dirname(path) or "."
        if not os.access(folder, os.W_OK):
            raise UsageError(
                f"{spec} cannot be created: {folder} is not a writable directory",
                reason=Reason.FILE,
            )
        return None

    def _check_own(self, path: str) -> None:
        """Refuse a path on this array's own image; a server's files are not known here."""
        if not is_uri(path):
            with host_errors(path, "open"):
                self._refuse_own(path)

    def _open_other(self, spec: str) -> Member:
        """Open a member; refuse one that is open already under any name."""
        path = path_of(spec)
        with host_errors(path, "open"):
            found = identity(path)
        for other in list(self._opened):
            if other.identity == found and id(other) in self._failed:
                self._close_failed(other)
            elif other.identity == found:
                also = "" if other.path == path else f", as {other.path}"
                raise BusyError(
                    f"{path}: in use by this array already{also}", reason=Reason.ALREADY
                )
        member = self._open_alone(spec)
        if member.identity != found:  # replaced after the checks of what it stands on
            self._discard((member, None))
            raise UsageError(f"{path} was replaced while it was being opened")
        return member

    def _close_failed(self, member: Member) -> None:
        """Close a failed member, which is to join again. Raises BusyError if that is not safe."""
        if not member.is_settled():
            raise BusyError(
                f"{member.path}: a write that it did not answer may still arrive",
                action="try again when its disk or server has ended it, or mount anew",
                reason=Reason.NO_ANSWER,
            )
        self._made.pop(id(member), None)  # it joined once: its file stays
        self._forget(member)()

    def _open(self, spec: str) -> Member:
        member = self._open_alone(spec)
        self._opened.append(member)
        return member

    def _open_alone(self, spec: str) -> Member:
        """Open a member that nobody else uses, under no other name either."""
        try:
            return self._open_locked(spec)
        except InUseError as error:
            arrays = "" if error.pid is None else arrays_of(error.pid)
            if not arrays:
                raise
            raise InUseError(f"{error.message}: {arrays}", action=error.action) from None

    def _open_locked(self, spec: str) -> Member:
        member = open_member(spec, read_only=self._read_only, lock=self._lock)
        below: list[int] = []
        path = path_of(spec)
        try:
            if self._lock and not is_uri(path):
                with host_errors(path, "open"):
                    below = hold_files_below(path)
                    if not self._read_only:
                        refuse_used_loops(path)
            wrapped = self._wrap(member, spec)
        except BaseException:
            _undo(member, None, below)
            raise
        self._below[id(wrapped)] = below
        return wrapped


def _undo(member: Member, made: str | None, below: Sequence[int] = ()) -> None:
    member.close()
    for descriptor in below:
        os.close(descriptor)
    if made is not None:
        with suppress(OSError):
            os.unlink(made)


async def _lock_array(uuid: str, name: str, place: str, *, shared: bool) -> ArrayLock:
    """Return the lock of an array. Others may look at it for an instant, to see if it runs."""
    for _ in range(0 if has_no_loop() else LOOKS):
        with suppress(BusyError):
            return ArrayLock(uuid, name, place, shared=shared)
        await trio.sleep(LOOK_S)
    return ArrayLock(uuid, name, place, shared=shared)


async def _look_at_newcomer(
    member: Member, overwrite_signature: bool, own: Own | None
) -> list[Signature]:
    """Return the signatures of others on a member that returns, which may be overwritten.

    Raises UsageError, SignatureFoundError or MemberError if *member* must not be overwritten.
    """
    from raidx_fuse.format.create import check_member, check_unsigned  # late: few commands add one

    check_member(member)
    foreign: list[Signature] = []
    with trio.move_on_after(CALL_S) as waiting:
        copies = None
        if own is not None:
            with suppress(FormatError):
                copies = await read_copies(member)
        found = None if copies is None else copies.superblock
        if own is not None and copies is not None and found is not None and own(found):
            foreign = list(copies.foreign)
            if foreign and not overwrite_signature:
                raise SignatureFoundError(
                    f"{member.path} carries {describe(foreign)} now, made after it left the array",
                    action="--overwrite-signature destroys it",
                )
        elif not overwrite_signature:
            await check_unsigned(member)
    if waiting.cancelled_caught:
        raise MemberError(member.path, "read", 0, ETIMEDOUT, f"no answer within {CALL_S:g} s")
    return foreign


def _not_there(spec: str) -> UsageError:
    return UsageError(f"{spec} does not exist", action="--create creates it", reason=Reason.FILE)


def check_distinct(specs: Sequence[str]) -> None:
    """Raise UsageError if two of *specs* are one file or device, also by hard or symbolic links."""
    seen: dict[str | Identity, str] = {}
    for spec in specs:
        path = path_of(spec)
        names: list[str | Identity] = [path if is_uri(path) else os.path.realpath(path)]
        with suppress(OSError):  # it does not exist yet
            names.append(identity(path))
        for name in names:
            if name in seen:
                other = "" if seen[name] == spec else f" (it is {seen[name]} as well)"
                raise UsageError(f"{spec} is given twice{other}")
        seen |= dict.fromkeys(names, spec)


def identity(path: str) -> Identity:
    """Return an identity that is the same under all names of a file or device, or export.

    Raises OSError.
    """
    return parse_uri(path).identity if is_uri(path) else identity_of(os.stat(path))


def is_there(spec: str) -> bool:
    """Return whether the file or device of a member exists; exports are made by their servers."""
    path = path_of(spec)
    return is_uri(path) or os.path.exists(path)
