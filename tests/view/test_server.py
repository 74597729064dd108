"""Clients that the server must survive: slow, long, garbled, many, and silent ones."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.view.feed import QUEUE_MAX, READERS_MAX
from raidx_fuse.view.server import Limits
from tests.view.conftest import Site, Stream

POST = b"POST /do HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /me HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMITS = Limits()


async def one(stream: Stream) -> bytes:
    """Return what has come within a moment."""
    await trio.sleep(0.1)
    return bytes(await stream.receive_some())


async def drip(stream: Stream) -> None:
    """Send a head that never ends, one byte a second."""
    for byte in b"GET / HTTP/1.1\r\nX-Drip: " + b"x" * 1000:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)


async def read_all(stream: Stream) -> bytes:
    got = bytearray()
    while data := await stream.receive_some():
        got += data
    return bytes(got)


async def test_several_requests_on_one_connection_in_turn_and_at_once(site: Site) -> None:
    stream = site.connect()
    for _ in range(3):
        await stream.send_all(GET)
        assert (await one(stream)).startswith(b"HTTP/1.1 200")
    await stream.send_all(GET + GET)
    assert (await one(stream)).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\r\n\r\n\r\n\x00\x01garbage\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # a TLS client
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /" + b"x" * 20000, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9000, 431),
        (POST + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000, 413),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1388\r\n" + b"x" * 5000 + b"\r\n", 413),
        (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (POST + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n", 417),
    ],
)
async def test_a_request_that_is_none_is_refused_and_the_connection_ends(
    raw: bytes, status: int, site: Site
) -> None:
    answer = await site.send(raw)
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer[:80]
    assert b"connection: close" in answer.lower()
    assert site.server.places.taken == 0


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HT",
        GET[:-2],
        b"POST /do HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
async def test_a_client_that_drips_or_stops_is_sent_away_in_time(begun: bytes, site: Site) -> None:
    stream = site.connect()
    await stream.send_all(begun)
    with trio.fail_after(LIMITS.receive_s + 1):
        assert await read_all(stream) == b""
    drips = site.connect()
    started_s = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await drip(drips)
    assert trio.current_time() - started_s <= LIMITS.receive_s + 2
    assert site.server.places.taken == 0


async def test_a_client_that_reads_nothing_is_sent_away(site: Site) -> None:
    stream = site.connect_unread()
    await stream.send_all(GET)
    await trio.sleep(LIMITS.send_s - 1)
    assert site.server.places.taken == 1
    await trio.sleep(2)
    assert site.server.places.taken == 0


@pytest.mark.rig(limits=Limits(clients_max=2))
async def test_the_connection_that_is_idle_longest_makes_room(site: Site) -> None:
    first, second = site.connect(), site.connect()
    await trio.sleep(0.1)
    assert site.server.places.taken == 2
    third = site.connect()
    await third.send_all(GET)
    assert (await one(third)).startswith(b"HTTP/1.1 200")
    assert await first.receive_some() == b""
    await second.send_all(GET)
    assert (await one(second)).startswith(b"HTTP/1.1 200")
    assert site.server.places.taken == 2


@pytest.mark.rig(limits=Limits(clients_max=2))
async def test_open_streams_are_not_sent_away_for_newcomers(site: Site) -> None:
    streams = [site.connect() for _ in range(2)]
    for stream in streams:
        await stream.send_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await trio.sleep(1)
    assert await read_all(site.connect()) == b"", "there is no room"
    assert site.feed.readers == 2
    await streams[0].aclose()
    await trio.sleep(0.1)
    assert site.feed.readers == 1
    again = site.connect()
    await again.send_all(GET)
    assert (await one(again)).startswith(b"HTTP/1.1 200")


async def test_one_student_does_not_take_the_places_of_all(site: Site) -> None:
    greedy = [site.connect("192.0.2.7") for _ in range(LIMITS.clients_max)]
    await trio.sleep(0.1)
    assert site.server.places.taken == LIMITS.address_max
    other = site.connect("2001:db8::7")
    await other.send_all(GET)
    assert (await one(other)).startswith(b"HTTP/1.1 200")
    for stream in greedy:
        await stream.aclose()
    again = site.connect("192.0.2.7")
    await again.send_all(GET)
    assert (await one(again)).startswith(b"HTTP/1.1 200")


async def test_head_has_no_body(site: Site) -> None:
    raw = await site.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) > 1000
    assert body == b""


async def test_a_reader_that_does_not_keep_up_is_closed_and_bounded(site: Site) -> None:
    site.source.cells = [[0, "D0", True, 1]]
    async with site.feed.reader() as messages:
        await trio.sleep(QUEUE_MAX)  # four messages a second
        assert messages.statistics().current_buffer_used == QUEUE_MAX
        assert site.feed.readers == 0
        assert len([message async for message in messages]) == QUEUE_MAX


async def test_readers_are_bounded(site: Site) -> None:
    streams = [site.connect() for _ in range(READERS_MAX + 1)]
    for stream in streams:
        await stream.send_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await trio.sleep(0.5)
    first = [await stream.receive_some() for stream in streams]
    assert sum(answer.startswith(b"HTTP/1.1 200") for answer in first) == READERS_MAX
    assert sum(answer.startswith(b"HTTP/1.1 503") for answer in first) == 1
