"""A server that sends a byte now and then: connecting and asking have a limit as a whole."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raidx_fuse.errors import MemberError
from raidx_fuse.members.nbd.pipe import dial
from raidx_fuse.members.nbd.protocol.server import Server, ServerHandshake
from raidx_fuse.members.nbd.protocol.wire import Export, Flag
from raidx_fuse.members.nbd.uri import parse_uri
from tests.support.nbd_server import read

LIMIT_S = 0.3
PAUSE_S = 0.05  # between two bytes
EXPORT = Export("", 1 << 20, Flag.HAS_FLAGS | Flag.FLUSH)

Start = Callable[[bool], str]


def drip(sock: socket.socket, data: bytes) -> None:
    for at in range(len(data)):
        sock.sendall(data[at : at + 1])
        time.sleep(PAUSE_S)


def serve(listener: socket.socket, after_the_handshake: bool) -> None:
    sock, _ = listener.accept()
    with sock, suppress(OSError):
        handshake = ServerHandshake({"": EXPORT})
        while not handshake.ended:
            output = handshake.output()
            sock.sendall(output) if after_the_handshake else drip(sock, output)
            if not handshake.ended:
                handshake.receive(sock.recv(1 << 16))
        sock.sendall(handshake.output())
        assert handshake.export is not None
        link = Server(handshake.export)
        for request in link.receive(handshake.rest or sock.recv(1 << 16)):
            drip(sock, b"".join(link.data(request, bytes(512))))


@pytest.fixture
def dripping(tmp_path: Path) -> Iterator[Start]:
    threads = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()

        def start(after_the_handshake: bool) -> str:
            threads.append(threading.Thread(target=serve, args=(listener, after_the_handshake)))
            threads[0].start()
            return f"nbd+unix:///?socket={tmp_path}/s"

        yield start
        for thread in threads:
            thread.join()


def test_a_handshake_has_a_limit_as_a_whole(dripping: Start) -> None:
    with pytest.raises(MemberError, match="no answer to the handshake"):
        dial(parse_uri(dripping(False)), LIMIT_S)


def test_a_request_before_the_event_loop_has_a_limit_as_a_whole(dripping: Start) -> None:
    pipe = dial(parse_uri(dripping(True)), LIMIT_S)
    with pytest.raises(TimeoutError):
        read(pipe, 0, 512)
    pipe.close()
