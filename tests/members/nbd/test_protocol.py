"""The NBD protocol: both sides against each other, over every cut of the stream, and broken."""

from __future__ import annotations

import ast
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import raidx_fuse.members.nbd.protocol
from raidx_fuse.members.nbd.protocol.client import ClientHandshake, Exchange, RefusedError
from raidx_fuse.members.nbd.protocol.server import Request, Server, ServerHandshake
from raidx_fuse.members.nbd.protocol.wire import (
    REPLY_DONE,
    STATE_HOLE,
    STATE_ZERO,
    U16,
    U32,
    U64,
    Chunk,
    Command,
    CommandFlag,
    Errno,
    Export,
    Flag,
    HandshakeSide,
    ProtocolError,
)
from tests.support.nbd_client import Client, chunk, in_two_chunks

SIZE_BYTES = 1 << 20
EVERYTHING = (
    Flag.FLUSH | Flag.FUA | Flag.TRIM | Flag.WRITE_ZEROES | Flag.CACHE | Flag.FAST_ZERO | Flag.DF
)
EXPORT = Export("disk", SIZE_BYTES, EVERYTHING)
CASES = int(os.environ.get("RAIDX_FUZZ_CASES", "2000"))  # of the fuzz
STYLES = [(False, False), (True, False), (True, True)]


def agree(
    client: ClientHandshake, server: ServerHandshake, pieces: Sequence[int] = ()
) -> list[tuple[str, bytes]]:
    """Carry out a handshake; *pieces* are the sizes in which bytes arrive. Returns what was sent.

    TLS is started by nothing but saying so.
    """
    sizes = iter(pieces)
    sent: list[tuple[str, bytes]] = []

    def deliver(name: str, data: bytes, to: HandshakeSide) -> None:
        sent.append((name, data))
        while data:
            part = next(sizes, len(data))
            to.receive(data[:part])
            data = data[part:]

    for _ in range(100):
        out = server.output()
        deliver("server", out, client)
        if server.tls_due and client.tls_due:
            server.tls_started()
            client.tls_started()
        back = client.output()
        deliver("client", back, server)
        if not out and not back:
            return sent
    raise AssertionError("the handshake does not end")


def opened(structured: bool, extended: bool, export: Export = EXPORT) -> tuple[Client, Server]:
    """Return both ends of a connection after the handshake."""
    server = ServerHandshake({export.name: export})
    client = ClientHandshake(export.name, structured=structured, extended=extended)
    agree(client, server)
    assert client.export is not None
    assert server.export is not None
    return Client(client.export), Server(server.export)


def serve(server: Server, requests: Sequence[Request], disk: bytearray) -> bytes:
    """Carry out *requests* on *disk*; return the replies."""
    out = list(server.output())
    for request in requests:
        at, end = request.offset_bytes, request.offset_bytes + request.size_bytes
        match request.command:
            case Command.READ:
                if server.export.structured:
                    out.append(in_two_chunks(server.export, request, bytes(disk[at:end])))
                else:
                    out += server.data(request, bytes(disk[at:end]))
            case Command.WRITE:
                disk[at:end] = request.payload
                out += server.done(request)
            case Command.WRITE_ZEROES if request.flags & CommandFlag.FAST_ZERO:
                out += server.failed(request, Errno.ENOTSUP, "not fast")
            case Command.WRITE_ZEROES | Command.TRIM:
                disk[at:end] = bytes(end - at)
                out += server.done(request)
            case _:
                out += server.done(request)
    return b"".join(out)


def ask_everything(client: Client) -> tuple[list[Exchange], list[bytearray]]:
    """Make one request of each kind, good and bad ones."""
    buffers = [bytearray(100), bytearray(60000), bytearray(1)]
    exchanges = [
        client.write(4096, [b"a" * 1000, memoryview(b"b" * 3096)], 4096),
        client.read(4000, buffers, 60101),
        client.write(SIZE_BYTES - 1, [b"xy"], 2),
        client.command(Command.FLUSH),
        client.command(Command.WRITE_ZEROES, 5000, 100),
        client.command(Command.WRITE_ZEROES, 0, 512, CommandFlag.FAST_ZERO),
        client.command(Command.TRIM, 8192, 4096, CommandFlag.FUA),
        client.command(Command.CACHE, 0, 4096),
        client.read(4000, [bytearray(2000)], 2000),
        client.command(Command.READ, SIZE_BYTES, 1),
        client.command(Command.FLUSH, 0, 0, CommandFlag.REQ_ONE),
    ]
    return exchanges, buffers


def outcome(exchange: Exchange) -> tuple[object, ...]:
    """Return what a request's replies said."""
    content = b"".join(bytes(buffer) for buffer in exchange.buffers)
    return exchange.cookie, exchange.error, exchange.message, content


def test_a_handshake_agrees_on_what_both_have() -> None:
    for structured, extended in STYLES:
        client, server = opened(structured, extended)
        assert client.export.structured == server.export.structured == structured
        assert client.export.extended == server.export.extended == extended
        assert client.export.size_bytes == SIZE_BYTES
        assert bool(client.export.flags & Flag.DF) == structured
    old = ServerHandshake({"disk": EXPORT}, extended=False)
    client_side = ClientHandshake("disk")
    agree(client_side, old)
    assert client_side.export is not None
    assert (client_side.export.structured, client_side.export.extended) == (True, False)


def test_each_refusal_says_what_is_wrong() -> None:
    cases = [
        (ServerHandshake({"disk": EXPORT}), ClientHandshake("other"), "no export 'other'"),
        (ServerHandshake({"disk": EXPORT}), ClientHandshake("disk", tls=True), "cannot do TLS"),
        (
            ServerHandshake({"disk": EXPORT}, tls=True),
            ClientHandshake("disk"),
            "wants TLS .*nbds://",
        ),
    ]
    for server, client, message in cases:
        with pytest.raises(RefusedError, match=message):
            agree(client, server)
    with pytest.raises(ProtocolError, match="no NBD server"):
        ClientHandshake("x").receive(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ProtocolError, match="oldstyle"):
        ClientHandshake("x").receive(b"NBDMAGIC" + bytes.fromhex("0000420281861253") + bytes(20))


def test_tls_begins_before_anything_is_agreed_and_nothing_is_injected() -> None:
    server = ServerHandshake({"disk": EXPORT}, tls=True)
    client = ClientHandshake("disk", tls=True)
    agree(client, server)
    assert client.export is not None
    assert server.export is not None
    server, client = (
        ServerHandshake({"disk": EXPORT}, tls=True),
        ClientHandshake("disk", tls=True),
    )
    client.receive(server.output())
    server.receive(client.output())
    client.receive(server.output() + b"injected")
    assert client.tls_due
    with pytest.raises(ProtocolError, match="STARTTLS"):
        client.tls_started()


def test_block_sizes_reach_the_client_and_bind_it() -> None:
    export = Export("", SIZE_BYTES, EVERYTHING, 512, 4096, 65536)
    client, server = opened(True, False, export)
    assert (client.export.block_bytes, client.export.payload_bytes_max) == (512, 65536)
    refused = client.write(100, [b"x" * 512], 512)
    good = client.write(512, [b"x" * 512], 512)
    requests = server.receive(b"".join(client.output()))
    assert [request.offset_bytes for request in requests] == [512]
    client.receive(b"".join(server.output()))
    assert refused.error == Errno.EINVAL
    assert good.cookie in client.exchanges
    client.write(0, [bytes(65536 + 512)], 65536 + 512)
    with pytest.raises(ProtocolError, match="payload"):
        server.receive(b"".join(client.output()))


def test_a_read_only_export_refuses_changes() -> None:
    client, server = opened(True, False, Export("", SIZE_BYTES, EVERYTHING | Flag.READ_ONLY))
    exchanges = [client.write(0, [b"x"], 1), client.command(Command.TRIM, 0, 512)]
    assert not server.receive(b"".join(client.output()))
    client.receive(b"".join(server.output()))
    assert [exchange.error for exchange in exchanges] == [Errno.EPERM] * 2


@pytest.mark.parametrize(("structured", "extended"), STYLES)
def test_every_kind_of_request_comes_through(structured: bool, extended: bool) -> None:
    client, server = opened(structured, extended)
    exchanges, buffers = ask_everything(client)
    disk = bytearray(SIZE_BYTES)
    disk[30000] = 7
    ended = client.receive(serve(server, server.receive(b"".join(client.output())), disk))
    assert sorted(e.cookie for e in ended) == [e.cookie for e in exchanges]
    assert not client.exchanges
    errors = [exchange.error for exchange in exchanges]
    fine = [0, 0, Errno.ENOSPC, 0, 0, Errno.ENOTSUP, 0, 0, 0, Errno.EINVAL, Errno.EINVAL]
    assert errors == fine
    content = b"".join(buffers)
    assert content[:96] == bytes(96)
    assert content[96:1096] == b"a" * 1000
    assert content[30000 - 4000] == 7
    if structured:
        assert exchanges[5].message == "not fast"


@pytest.mark.parametrize("extended", [False, True])
def test_the_extents_of_a_range_as_the_server_tells_them(extended: bool) -> None:
    export = Export("", SIZE_BYTES, EVERYTHING, structured=True, extended=extended, allocation_id=7)
    client, server = Client(export), Server(export)
    client.command(Command.BLOCK_STATUS, 0, 65536)
    (request,) = server.receive(b"".join(client.output()))
    told = b"".join(server.extents(request, [(32768, 0), (32768, STATE_HOLE | STATE_ZERO)]))
    number = U64 if extended else U32
    body = U32.pack(7) + (U32.pack(2) if extended else b"")
    body += b"".join(map(number.pack, (32768, 0, 32768, STATE_HOLE | STATE_ZERO)))
    kind = Chunk.BLOCK_STATUS_EXT if extended else Chunk.BLOCK_STATUS
    assert told == chunk(export, request, REPLY_DONE, kind, body)


@pytest.mark.parametrize(("structured", "extended"), STYLES)
def test_a_reply_is_received_straight_into_the_buffers(structured: bool, extended: bool) -> None:
    client, server = opened(structured, extended)
    disk = bytearray(random.Random(1).randbytes(SIZE_BYTES))
    buffers = [bytearray(50000), bytearray(200000)]
    client.read(1000, buffers, 250000)
    replies = serve(server, server.receive(b"".join(client.output())), disk)
    at, direct, ended = 0, 0, []
    while at < len(replies):
        target = client.target()
        if target is None:
            ended = client.receive(replies[at : at + 40])
            at += 40
        else:
            part = min(len(target), len(replies) - at)
            target[:part] = replies[at : at + part]
            ended = client.filled(part)
            at += part
            direct += part
    assert len(ended) == 1
    assert b"".join(buffers) == disk[1000:251000]
    assert direct > 200000


def test_words_of_the_other_side_cannot_write_to_the_terminal() -> None:
    client, server = opened(True, False)
    exchange = client.command(Command.FLUSH)
    (request,) = server.receive(b"".join(client.output()))
    client.receive(b"".join(server.failed(request, Errno.EIO, "no\n\x1b[31mdisk\x00")))
    assert exchange.message == "no  [31mdisk"


def test_a_server_that_lies_is_found_out() -> None:
    def asked(command: Command, size_bytes: int = 100) -> tuple[Client, Server, Request]:
        client, server = opened(True, False)
        if command == Command.READ:
            client.read(1000, [bytearray(size_bytes)], size_bytes)
        else:
            client.command(command, 0, size_bytes)
        (request,) = server.receive(b"".join(client.output()))
        return client, server, request

    client, server, request = asked(Command.READ)
    more = Request(request.command, request.flags, request.cookie, 1000, 200)
    with pytest.raises(ProtocolError, match="outside"):
        client.receive(b"".join(server.data(more, bytes(200))))
    client, server, request = asked(Command.READ)
    with pytest.raises(ProtocolError, match="less data"):
        client.receive(b"".join(server.done(request)))
    client, server, request = asked(Command.READ)
    twice = chunk(server.export, request, 0, Chunk.OFFSET_DATA, U64.pack(1000) + bytes(60)) * 2
    with pytest.raises(ProtocolError, match="twice"):
        client.receive(twice)
    client, server, request = asked(Command.READ)
    other = Request(request.command, request.flags, 99, 1000, 100)
    with pytest.raises(ProtocolError, match="not made"):
        client.receive(b"".join(server.data(other, bytes(100))))
    client, server, request = asked(Command.CACHE)
    with pytest.raises(ProtocolError, match="nobody asked"):
        client.receive(b"".join(server.data(request, bytes(100))))
    client, server, request = asked(Command.READ)
    body = U32.pack(Errno.EIO) + U16.pack(0)
    error = chunk(server.export, request, 0, Chunk.ERROR, body)
    with pytest.raises(ProtocolError, match="errors without end"):
        client.receive(error * 2000)


def test_the_protocol_does_no_io() -> None:
    folder = Path(next(iter(raidx_fuse.members.nbd.protocol.__path__)))
    allowed = {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "struct",
        "typing",
    }
    allowed.add("raidx_fuse")
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert module.split(".")[0] in allowed, path
                if module.startswith("raidx_fuse."):
                    within = ("raidx_fuse.errors", "raidx_fuse.members.nbd.protocol.")
                    assert module.startswith(within), path
