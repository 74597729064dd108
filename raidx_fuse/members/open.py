"""Open a member from its specification on the command line.

    disk3.img                                a file
    /dev/sdb                                 a block device
    ram:64MiB                                memory, which does not outlive the process
    disk3.img,model=hdd,seek_ms=4            a file with the timing of a 7200 rpm disk, faster seeks
    ram:1GiB,model=nvme,channels=8
    nbd://host/export                        an export of an NBD server, see nbd/uri.py
    nbd+unix:///export?socket=/run/nbd.sock  the same over a Unix socket

The path ends at the first comma that is followed by ``word=``, so paths may contain commas.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass, field
from functools import partial

from raidx_fuse.errors import UsageError
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.nbd.dial import dial
from raidx_fuse.members.nbd.member import NbdMember
from raidx_fuse.members.nbd.uri import is_uri, parse_uri
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.units import parse_size

_RAM = "ram:"
_OPTIONS_BEGIN = re.compile(r",(?=\w+=)")


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member as the user specified it; *text* is the specification.

    *path* is "" for memory. *size_bytes* is the size of the memory, or of a file to be created.
    *model* is the name of a preset or None; *numbers* are model parameters, as text.
    """

    text: str
    path: str
    size_bytes: int | None = None
    model: str | None = None
    numbers: dict[str, str] = field(default_factory=dict)

    @property
    def is_ram(self) -> bool:
        """Whether the member is memory."""
        return not self.path

    @property
    def is_remote(self) -> bool:
        """Whether the member is an export of a server; *path* is its URI."""
        return is_uri(self.path)


def parse_spec(text: str) -> MemberSpec:
    """Parse and check *text* without access to any file. Raises UsageError."""
    try:
        clean = "\0" not in text and text.encode()
    except UnicodeEncodeError:
        clean = False
    if clean is False:
        raise UsageError(
            f"{text!r} is no path that a superblock can keep: it must be UTF-8 without NUL",
            action="rename it, or make a link to it",
        )
    place, *rest = _OPTIONS_BEGIN.split(text, maxsplit=1)
    options: dict[str, str] = {}
    for item in rest[0].split(",") if rest else ():
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise UsageError(f"{text}: {item!r} is not of the form key=value")
        if key in options:
            raise UsageError(f"{text}: {key} is given twice")
        options[key] = value
    model = options.pop("model", None)
    size = options.pop("size", None)
    if place.startswith(_RAM):
        if size is not None:
            raise UsageError(f"{text}: the size of memory belongs after the colon, as in ram:64MiB")
        place, size = "", place.removeprefix(_RAM)
    elif is_uri(place):
        place = str(parse_uri(place))
        if size is not None:
            raise UsageError(f"{text}: the size of an export is that of its server")
    elif not place:
        raise UsageError(f"{text!r}: no path")
    size_bytes = None if size is None else parse_size(size)
    if size_bytes is not None and (size_bytes <= 0 or size_bytes % SECTOR_BYTES):
        raise UsageError(f"{text}: a member's size is a multiple of {SECTOR_BYTES} bytes")
    if model is None and options:
        raise UsageError(f"{text}: {next(iter(options))}= needs model=")
    if model is not None:
        make_model(model, **options)
    return MemberSpec(text, place, size_bytes, model, options)


def path_of(text: str) -> str:
    """Return the path in a specification.

    Raises UsageError, also for memory, because its content would not outlive the command.
    """
    spec = parse_spec(text)
    if spec.is_ram:
        raise UsageError(f"{text}: memory is gone with the command, name a file or a device")
    return spec.path


def absolute(text: str) -> str:
    """Return the specification *text* with an absolute path, or a URI in its shortest form.

    Raises UsageError as `path_of`.
    """
    path = path_of(text)
    options = text[len(_OPTIONS_BEGIN.split(text, maxsplit=1)[0]) :]
    return (path if is_uri(path) else os.path.abspath(path)) + options


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
    # The seed comes from the specification: members differ from each other, runs do not.
    model = make_model(spec.model, **spec.numbers)
    return ModelMember(inner, model, seed=zlib.crc32(spec.text.encode()))


def open_export(text: str, *, read_only: bool = False, lock: bool = True) -> NbdMember:
    """Connect to the export of the URI *text*. Raises UsageError, BusyError, MemberError."""
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
