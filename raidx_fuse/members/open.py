"""Open or create a member from its specification (spec.py).

A new kind of member is a subclass of `Member` (base.py), a form of specification in spec.py, and a
branch here.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

from raidx_fuse.errors import UsageError
from raidx_fuse.members.base import Member
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.nbd.uri import parse_uri
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.spec import MemberSpec, parse_spec

if TYPE_CHECKING:
    from raidx_fuse.members.nbd.member import NbdMember


def open_member(
    spec: MemberSpec | str,
    *,
    read_only: bool = False,
    reads_zero: bool = False,
    lock: bool = True,
) -> Member:
    """Open the member *spec*. The options are those of `LocalMember` and do not apply to memory.

    Raises UsageError, BusyError, MemberError.
    """
    if isinstance(spec, str):
        spec = parse_spec(spec)
    inner: Member
    if spec.is_ram:
        assert spec.size_bytes is not None
        inner = RamMember(spec.size_bytes, name=spec.text)
    elif spec.is_remote:
        inner = open_export(spec.path, read_only=read_only, lock=lock)
    else:
        inner = LocalMember(spec.path, read_only=read_only, reads_zero=reads_zero, lock=lock)
    if spec.model is None:
        return inner
    from raidx_fuse.members.simulated.model import model_member  # late: for teaching only

    # The seed comes from the specification: members differ from each other, runs do not.
    return model_member(inner, spec.model, seed=zlib.crc32(spec.text.encode()), **spec.numbers)


def open_export(text: str, *, read_only: bool = False, lock: bool = True) -> NbdMember:
    """Connect to the export of the URI *text*. Raises UsageError, BusyError, MemberError."""
    from raidx_fuse.members.nbd.member import NbdMember
    from raidx_fuse.members.nbd.pipe import dial  # late: most arrays have no remote member

    uri = parse_uri(text)
    connect = partial(dial, uri)
    return NbdMember(str(uri), connect, identity=uri.identity, read_only=read_only, lock=lock)


def create_member(spec: MemberSpec | str, size_bytes: int | None = None) -> Member:
    """Create the sparse file of *spec* and open it; memory and exports are only opened.

    The size is that of *spec*, or else *size_bytes*. Raises UsageError (also if the file exists),
    BusyError, MemberError.
    """
    if isinstance(spec, str):
        spec = parse_spec(spec)
    if spec.is_ram or spec.is_remote:
        return open_member(spec)
    size_bytes = spec.size_bytes or size_bytes
    if size_bytes is None:
        raise UsageError(f"{spec.text}: a new file needs a size", action="give a size")
    create_file(spec.path, size_bytes)
    return open_member(spec, reads_zero=True)
