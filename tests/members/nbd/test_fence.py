"""Who was taken over writes nothing more: a real server, and a link that stops.

A process that stops: tests/nbd/test_two_daemons.py.

All times of the lock are a quarter of the real ones.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from raidx_fuse.members.nbd import heartbeat
from raidx_fuse.members.nbd import member as nbd_member
from raidx_fuse.members.nbd.member import Holder, NbdMember
from raidx_fuse.members.nbd.pipe import dial
from raidx_fuse.members.nbd.uri import parse_uri
from tests.members.nbd.test_lock import SUPERBLOCK as SUPERBLOCK
from tests.support.nbd_real import real_server

TIMES = ("HEARTBEAT_S", "STALE_S", "FENCE_S", "DROP_S", "CLAIM_S", "LOOK_S", "GRACE_S")
FASTER = 4
SIZE_BYTES = 48 << 20
BEGIN, PIECE, PIECES = 1 << 20, 1 << 20, 40  # what the first holder writes
LINK_BYTES_S = 8 << 20
SMALL = 16 << 10  # of buffers in the link: what lies there is on its way

FIRST = f"""
import pytest, sys, trio
from tests.members.nbd import test_fence
from raidx_fuse.members.open import open_export
test_fence.hurry(pytest.MonkeyPatch())
async def main():
    member = open_export(sys.argv[1])
    await member.writev(0, [test_fence.SUPERBLOCK])
    print("held", flush=True)
    async def write(number):
        try:
            await member.writev({BEGIN} + number * {PIECE}, [b"A" * {PIECE}])
        except Exception as error:
            print("refused", error, flush=True)
    async with trio.open_nursery() as nursery:
        for number in range({PIECES}):
            nursery.start_soon(write, number)
trio.run(main)
"""


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Divide the times of the lock."""
    for name in TIMES:
        value = getattr(heartbeat, name) / FASTER
        for module in (heartbeat, nbd_member):
            if hasattr(module, name):
                patch.setattr(module, name, value)


class Link:
    """A slow link from a TCP port to the Unix socket *target*; nothing passes while it is held."""

    def __init__(self, target: str) -> None:
        self.passes = threading.Event()
        self.passes.set()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self.port = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                server.connect(self._target)
                self._start(self._pass_on, client, server, LINK_BYTES_S)
                self._start(self._pass_on, server, client, 0)

    def _pass_on(self, source: socket.socket, target: socket.socket, rate: int) -> None:
        with suppress(OSError):
            self.passes.wait()
            while data := source.recv(SMALL):
                target.sendall(data)
                if rate:
                    time.sleep(len(data) / rate)
                self.passes.wait()
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.passes.set()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with real_server("nbdkit-memory", tmp_path, SIZE_BYTES):
        link = Link(str(tmp_path / "nbdkit-memory.sock"))
        yield link
        link.close()


def test_nothing_of_a_holder_lands_after_another_one_has_taken_over(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes of the first holder lie in its socket, and in itself, when all stands still."""
    hurry(monkeypatch)
    uri = f"nbd+unix:///?socket={tmp_path}/nbdkit-memory.sock"
    other = Holder(random.randbytes(16), "the other one")

    async def take_over(go_on: threading.Event) -> None:
        await trio.sleep(0.5)  # until the server has done what it has
        opening = partial(NbdMember, uri, partial(dial, parse_uri(uri)), holder=other)
        member = await trio.to_thread.run_sync(opening)
        content = b"B" * PIECE
        for number in range(PIECES):
            await member.writev(BEGIN + number * PIECE, [content])
        await member.flush()
        go_on.set()
        await trio.sleep(2.0)
        for number in range(PIECES):
            found = bytearray(PIECE)
            await member.readv(BEGIN + number * PIECE, [found])
            assert found == content, f"bytes of the first holder in piece {number}"
        await member.writev(BEGIN, [b"B"])
        member.close()

    first = [sys.executable, "-c", FIRST, f"nbd://127.0.0.1:{link.port}/"]
    go_on = threading.Event()
    with subprocess.Popen(first, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        time.sleep(1.0)
        link.passes.clear()

        def resume() -> None:
            go_on.wait()
            link.passes.set()

        resuming = threading.Thread(target=resume)
        resuming.start()
        try:
            trio.run(take_over, go_on)
            assert "in use by the other one" in process.stdout.read()
        finally:
            go_on.set()
            resuming.join()
            process.kill()
