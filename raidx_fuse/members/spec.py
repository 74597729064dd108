"""What the user wrote for a member: a path or place, and the options of a speed model.

    disk3.img                                a file
    /dev/sdb                                 a block device
    ram:64MiB                                memory, which does not outlive the process
    disk3.img,model=hdd,seek_ms=4            a file with the timing of a 7200 rpm disk, faster seeks
    ram:1GiB,model=nvme,channels=8
    nbd://host/export                        an export of an NBD server, see nbd/uri.py
    nbd+unix:///export?socket=/run/nbd.sock  the same over a Unix socket

The path ends at the first comma that is followed by ``word=``, so paths may contain commas. A
command that only passes a path on to a daemon needs nothing else of members; `open.py` opens them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from raidx_fuse.errors import UsageError
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.nbd.uri import is_uri, parse_uri
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


def is_local(text: str) -> bool:
    """Return whether the specification *text* names a file or device, without a model."""
    spec = parse_spec(text)
    return not spec.is_ram and not spec.is_remote and spec.model is None
