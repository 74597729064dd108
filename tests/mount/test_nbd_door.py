"""`raidx mount --nbd`: the file in the mount and the export are one disk."""

from __future__ import annotations

import os

import pytest

from raidx_fuse.members.nbd.links import Call
from raidx_fuse.members.nbd.pipe import dial
from raidx_fuse.members.nbd.protocol.wire import Command
from raidx_fuse.members.nbd.uri import parse_uri
from tests.mount.real_array import RealArray
from tests.support.nbd_server import ask, read, write

pytestmark = [pytest.mark.mount]
MIB = 1 << 20


@pytest.mark.parametrize("cache", ["0", "4MiB"])
def test_what_one_door_writes_the_other_shows(array: RealArray, cache: str) -> None:
    place = array.mnt.parent / "nbd.sock"
    array.create("raid5", 4, "24MiB")
    array.mount("--nbd", f"unix:{place}")
    array.ask("set", "ARRAY", f"cache.size={cache}")
    (image,) = array.mnt.iterdir()
    uri = f"nbd+unix:///?socket={place}"
    pipe = dial(parse_uri(uri))
    file = os.open(image, os.O_RDWR)
    try:
        assert pipe.export.size_bytes == image.stat().st_size
        os.pwrite(file, b"a" * 3 * MIB, 100)
        assert read(pipe, 100, 3 * MIB) == b"a" * 3 * MIB
        write(pipe, MIB, b"b" * MIB)
        assert os.pread(file, MIB, MIB) == b"b" * MIB
        ask(pipe, Call(Command.TRIM, 2 * MIB, MIB))
        assert os.pread(file, MIB, 2 * MIB) == bytes(MIB)
        os.pwrite(file, b"c", 2 * MIB)
        assert read(pipe, 2 * MIB, 3) == b"c\0\0"
    finally:
        os.close(file)
        pipe.close()
