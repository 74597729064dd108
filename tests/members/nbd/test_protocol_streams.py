"""Streams of the NBD protocol: cut anywhere, broken, with large payloads."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.nbd.protocol.client import ClientHandshake
from raidx_fuse.members.nbd.protocol.server import (
    TARGET_BYTES_MIN,
    Request,
    Server,
    ServerHandshake,
)
from raidx_fuse.members.nbd.protocol.wire import Command
from tests.members.nbd.test_protocol import (
    CASES,
    EXPORT,
    SIZE_BYTES,
    STYLES,
    agree,
    ask_everything,
    opened,
    outcome,
    serve,
)
from tests.support.nbd_client import Client


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STYLES), st.lists(st.integers(1, 5000), max_size=80))
def test_every_cut_of_the_stream_gives_the_same_messages(
    style: tuple[bool, bool], pieces: list[int]
) -> None:
    def run(sizes: Sequence[int]) -> list[tuple[object, ...]]:
        handshake = ServerHandshake({"disk": EXPORT})
        hello = ClientHandshake("disk", structured=style[0], extended=style[1])
        agree(hello, handshake, sizes)
        assert hello.export is not None
        assert handshake.export is not None
        client, server = Client(hello.export), Server(handshake.export)
        exchanges, _ = ask_everything(client)
        disk, cut = bytearray(SIZE_BYTES), iter(sizes)
        stream, requests = b"".join(client.output()), []
        while stream:
            part = next(cut, len(stream))
            requests += server.receive(stream[:part])
            stream = stream[part:]
        stream, ended = serve(server, requests, disk), []
        while stream:
            part = next(cut, len(stream))
            ended += client.receive(stream[:part])
            stream = stream[part:]
        assert len(ended) == len(exchanges)
        return [outcome(exchange) for exchange in ended]

    assert run(pieces) == run(())


@pytest.mark.parametrize(("structured", "extended"), STYLES)
def test_a_stream_of_single_bytes(structured: bool, extended: bool) -> None:
    client, server = opened(structured, extended)
    exchange = client.read(10, [bytearray(3), bytearray(30)], 33)
    disk = bytearray(range(256)) * 4096
    replies = serve(server, server.receive(b"".join(client.output())), disk)
    ended = [done for byte in replies for done in client.receive(bytes([byte]))]
    assert ended == [exchange]
    assert b"".join(exchange.buffers) == disk[10:43]


def mutated(stream: bytes, chance: random.Random) -> bytes:
    """Return *stream* with a few bytes flipped, dropped, doubled, or large numbers written."""
    data = bytearray(stream)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case 2:
                data[at:at] = data[at : at + chance.randrange(1, 40)]
            case 3:
                data[at : at + 4] = chance.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
            case _:
                data[at:] = chance.randbytes(chance.randrange(64))
    return bytes(data)


def recorded(structured: bool, extended: bool) -> dict[str, bytes]:
    """Return the streams of a correct conversation, by sender and phase."""
    hello = ClientHandshake("disk", structured=structured, extended=extended)
    sent = agree(hello, ServerHandshake({"disk": EXPORT}))
    client, server = opened(structured, extended)
    ask_everything(client)
    requests = b"".join(client.output())
    replies = serve(server, server.receive(requests), bytearray(SIZE_BYTES))
    return {
        "server": b"".join(data for name, data in sent if name == "server"),
        "client": b"".join(data for name, data in sent if name == "client"),
        "requests": requests,
        "replies": replies,
    }


def test_broken_streams_end_in_an_error_or_an_answer() -> None:
    """The fuzz: no traceback, no hang, no memory beyond what the stream and the requests hold."""
    records = [recorded(*style) for style in STYLES]
    ends = {"error": 0, "answer": 0}
    for number in range(CASES):
        chance = random.Random(number)
        style = number % len(STYLES)
        kind = chance.choice(("server", "client", "requests", "replies"))
        stream = mutated(records[style][kind], chance)
        receive: list[object] = []
        structured, extended = STYLES[style]
        held = 0
        try:
            if kind == "server":
                hello = ClientHandshake("disk", structured=structured, extended=extended)
                for at in range(0, len(stream), 100):
                    hello.receive(stream[at : at + 100])
                    hello.output()
                held = len(hello.rest)
            elif kind == "client":
                server_hello = ServerHandshake({"disk": EXPORT})
                server_hello.receive(stream)
                held = len(server_hello.output())
            elif kind == "requests":
                server = opened(structured, extended)[1]
                receive += server.receive(stream)
                held = len(server._kept)
            else:
                client = opened(structured, extended)[0]
                ask_everything(client)
                receive += client.receive(stream)
                held = len(client._kept)
            ends["answer"] += 1
        except RaidxError:
            ends["error"] += 1
        assert held <= 2 * len(stream) + 100_000, (number, kind)
    assert min(ends.values()) > CASES // 20, ends


def requests_of(server: Server, stream: bytes, chance: random.Random) -> list[tuple[object, ...]]:
    """Give *stream* to *server* in any pieces, into its own memory where it offers some."""
    found: list[Request] = []
    at = 0
    while at < len(stream):
        part = stream[at : at + chance.choice((1, 100, 70_000, 300_000))]
        target = server.target()
        if target is not None and chance.random() < 0.7:
            part = part[: len(target)]
            target[: len(part)] = part
            found += server.filled(len(part))
        else:
            found += server.receive(part)
        at += len(part)
    return [(*request[:-1], bytes(request.payload)) for request in found]


@pytest.mark.parametrize(("structured", "extended"), STYLES)
def test_large_payloads_are_received_where_they_stay(structured: bool, extended: bool) -> None:
    client, _ = opened(structured, extended)
    rng = random.Random(1)
    for number, size in enumerate((65_536, 10, 400_000, 65_535, 100_000, 70_000)):
        beyond = SIZE_BYTES if number == 4 else 4096 * number  # refused, with its payload
        client.write(beyond, [rng.randbytes(size)], size)
        client.command(Command.FLUSH)
    stream = b"".join(map(bytes, client.output()))
    plain = opened(structured, extended)[1]
    expected = requests_of(plain, stream, random.Random(0))
    assert [len(entry[-1]) for entry in expected if entry[0] is Command.WRITE] == (
        [65_536, 10, 400_000, 65_535, 70_000]
    )
    refusals = plain.output()
    assert refusals
    for seed in range(20):
        asked: list[int] = []

        def allocate(size: int, asked: list[int] = asked) -> memoryview:
            asked.append(size)
            return memoryview(bytearray(size))

        server = Server(plain.export, allocate)
        assert requests_of(server, stream, random.Random(seed)) == expected
        assert server.output() == refusals
        assert asked
        assert min(asked) >= TARGET_BYTES_MIN
        assert server.target() is None
