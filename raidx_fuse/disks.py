"""The member disks that one process opened: makes missing files, guards signatures, closes all.

Attributes of a member given by the user (``disk3.img,model=hdd``) are read by `open_member`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.format.create import check_member, check_unsigned
from raidx_fuse.members.base import Member
from raidx_fuse.members.open import create_member, open_member, parse_spec, path_of


class Disks:
    """Opens members and closes all of them at the end of its ``with`` block.

    *read_only* and *lock* are for all of them: false *lock* is for a look at members that a mount
    may be using.
    """

    def __init__(self, *, read_only: bool = False, lock: bool = True) -> None:
        self._read_only = read_only
        self._lock = lock
        self._opened: list[Member] = []
        self._made: dict[int, str] = {}  # by id of the member: the file made for it

    def __enter__(self) -> Disks:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        while self._opened:
            self._opened.pop().close()

    def attach(self, specs: Sequence[str]) -> list[Member]:
        """Open existing members, each once. Raises UsageError, BusyError, MemberError."""
        check_distinct(specs)
        return [self._open(spec) for spec in specs]

    async def open(
        self, path: str, *, overwrite_signature: bool, create_bytes: int | None
    ) -> Member:
        """Open a member that will be written from scratch; make a missing file of *create_bytes*.

        A size in the spec itself (``disk.img,size=1GiB``) goes before *create_bytes*.
        Raises SignatureFoundError, MemberError, BusyError, UsageError.
        """
        create_bytes = size_in(path) or create_bytes
        if not is_there(path):
            if create_bytes is None:
                raise _not_there(path)
            member = create_member(path, create_bytes)
            self._opened.append(member)
            self._made[id(member)] = path_of(path)
            return member
        member = self._open(path)
        try:
            check_member(member)
            if not overwrite_signature:
                await check_unsigned(member)
        except RaidxError:
            self.release(member)
            raise
        return member

    async def check(self, path: str, *, overwrite_signature: bool, may_create: bool) -> int | None:
        """Raise what `open` would raise; no file is made and none written.

        Returns the member's size in bytes, None for a file that is to be made as large as others.
        """
        if not is_there(path):
            if not may_create and size_in(path) is None:
                raise _not_there(path)
            folder = os.path.dirname(path_of(path)) or "."
            if not os.access(folder, os.W_OK):
                raise UsageError(f"{path} cannot be made: {folder} is not a folder to write in")
            return size_in(path)
        with Disks() as disks:
            member = disks._open(path)
            check_member(member)
            if not overwrite_signature:
                await check_unsigned(member)
            return member.size_bytes

    def release(self, member: Member) -> None:
        """Close a member that did not join an array; a file that was made for it is removed."""
        self._opened.remove(member)
        member.close()
        made = self._made.pop(id(member), None)
        if made is not None:
            with suppress(FileNotFoundError):
                os.unlink(made)

    def _open(self, spec: str) -> Member:
        member = open_member(spec, read_only=self._read_only, lock=self._lock)
        self._opened.append(member)
        return member


def _not_there(spec: str) -> UsageError:
    return UsageError(f"{spec} does not exist", action="--create makes it")


def size_in(spec: str) -> int | None:
    """Return the size that a spec gives itself (``disk.img,size=1GiB``)."""
    return parse_spec(spec).size_bytes


def check_distinct(specs: Sequence[str]) -> None:
    """Raise UsageError if two of *specs* are one file or device, also by way of a link."""
    seen: dict[str, str] = {}
    for spec in specs:
        real = os.path.realpath(path_of(spec))
        if real in seen:
            other = "" if seen[real] == spec else f" (it is {seen[real]} as well)"
            raise UsageError(f"{spec} is given twice{other}")
        seen[real] = spec


def is_there(spec: str) -> bool:
    """Say whether the file or device of a member exists."""
    return os.path.exists(path_of(spec))
