"""The page's answers: hostile requests, the token, a daemon that is gone and comes back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio

from raidx_fuse.view.access import HEADERS
from raidx_fuse.view.feed import STRIPES_MAX
from tests.view.conftest import TOKEN, Site

READ = ("/", "/view.js", "/view.css", "/icon.svg", "/picture", "/plan", "/compare", "/me")


async def messages(site: Site, count: int) -> list[tuple[str, Any]]:
    """Return the first *count* messages of a stream: (event, document)."""
    stream = site.connect()
    await stream.send_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    got = b""
    with trio.fail_after(60):
        while got.count(b"\ndata: ") < count:
            got += await stream.receive_some()
    await stream.aclose()
    found = re.findall(r"event: (\w+)\ndata: (.*)\n", got.decode())
    return [(name, json.loads(data)) for name, data in found]


async def test_every_answer_carries_the_policy(site: Site) -> None:
    for path in (*READ, "/nothing"):
        answer = await site.ask("GET", path)
        for name, value in HEADERS:
            assert answer.headers[name.lower()] == value, path
        assert answer.status == (404 if path == "/nothing" else 200), path


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/static/view.js"),
        *("/view.js/", "/view.css%00", "/index.html", "/token", "http://evil.example/"),
        *("*", "/stream/", "/do/"),
        *("/view.py", "/\xff", "/picture/../do"),
    ],
)  # fmt: skip
async def test_other_paths_are_not_found(path: str, site: Site) -> None:
    raw = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await site.send(raw.encode("latin-1"))
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
async def test_pages_are_only_read_and_changes_only_posted(method: str, site: Site) -> None:
    for path in ("/", "/picture", "/stream"):
        answer = await site.ask(method, path, b"")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    if method != "POST":
        answer = await site.ask(method, "/do", b"", X_Raidx_Token=TOKEN)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert site.source.done == []


async def test_a_name_that_was_rebound_to_this_machine_gets_nothing(site: Site) -> None:
    for path in (*READ, "/stream", "/nothing"):
        answer = await site.ask("GET", path, host="evil.example:8470")
        assert answer.status == 421
        assert b"disk" not in answer.body
    answer = await site.do({"action": "fail-disk", "member": "0"}, Host="evil.example")
    assert answer.status == 421
    assert site.source.done == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_other_sites_can_neither_read_nor_change(headers: dict[str, str], site: Site) -> None:
    cookie = site.access.cookie().partition(";")[0]
    for path in ("/picture", "/me", "/plan", "/compare", "/stream"):
        assert (await site.ask("GET", path, Cookie=cookie, **headers)).status == 403
    answer = await site.do({"action": "fail-disk", "member": "0"}, Cookie=cookie, **headers)
    assert answer.status == 403
    answer = await site.ask("POST", "/enter", f"token={TOKEN}".encode(), **headers)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert site.source.done == []


@pytest.mark.parametrize(
    "query",
    [
        *("first=-1", "first=x", "first=1.5", "count=0", f"count={STRIPES_MAX + 1}", "first=%00"),
        *("first=99999999999999999999", "count=1" * 100, "a=1&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1"),
        *("first=\u0661", "first=" + "9" * 19),
    ],
)
async def test_numbers_out_of_range_are_refused(query: str, site: Site) -> None:
    raw = f"GET /picture?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await site.send(raw.encode())
    assert answer.startswith(b"HTTP/1.1 400"), answer[:60]
    assert site.source.asked == []


@pytest.mark.rig(token=None)
async def test_without_break_the_page_changes_nothing(site: Site) -> None:
    assert (await site.ask("GET", "/me")).json() == {
        "entered": False,
        "may_break": False,
        "actions": [],
    }
    for token in ("", "None", TOKEN):
        answer = await site.do({"action": "fail-disk", "member": "0"}, X_Raidx_Token=token)
        assert answer.status == 403
        assert "--break" in answer.json()["error"]
        assert (await site.ask("POST", "/enter", f"token={token}".encode())).status == 403
    assert site.source.done == []


async def test_the_token_opens_the_door_by_form_or_header(site: Site) -> None:
    own = {"Origin": "http://127.0.0.1:8470"}
    assert (await site.ask("POST", "/enter", b"token=wrong", **own)).status == 403
    form = f"token={TOKEN.replace(' ', '+')}".encode()
    assert (await site.ask("POST", "/enter", form)).status == 403, "no origin"
    entered = await site.ask("POST", "/enter", form, **own)
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"].partition(";")[0]
    assert (await site.ask("GET", "/me", Cookie=cookie)).json()["entered"] is True
    request = {"action": "fail-disk", "member": "/disks/d0.img"}
    assert (await site.do(request, X_Raidx_Token="", Cookie=cookie, **own)).status == 200
    assert (await site.do(request)).status == 200
    assert site.source.done == [("fail-disk", {"member": "/disks/d0.img"})] * 2
    left = await site.ask("POST", "/leave", Cookie=cookie, **own)
    assert "Max-Age=0" in left.headers["set-cookie"]


async def test_what_is_done_is_what_was_meant(site: Site) -> None:
    await site.do({"action": "replace-disk", "member": "/disks/d1.img"})
    await site.do({"action": "inject", "member": "1", "fault": "rot"})
    assert site.source.done == [
        ("replace-disk", {"old": "/disks/d1.img", "new": "/disks/d1.img"}),
        ("inject", {"member": "1", "fault": "rot"}),
    ]


@pytest.mark.parametrize(
    "document",
    [
        *(None, [], "fail-disk", 7, {}, {"action": None}, {"action": "crash"}, {"action": "set"}),
        {"action": "add-disk"},  # not on a mount
        {"action": ["fail-disk"], "member": "0"},
        {"action": "fail-disk"},
        {"action": "fail-disk", "member": 0},
        {"action": "fail-disk", "member": ""},
        {"action": "fail-disk", "member": "0", "lose_data": True},
        {"action": "replace-disk", "member": "0", "new": "/etc/passwd"},
        {"action": "replace-disk", "member": "0", "create": True},
        {"action": "inject", "member": "0", "fault": "explode"},
        {"action": "inject", "member": "0", "fault": "rot", "at": 0},
        {"action": "fail-disk", "member": "x" * 4000 + "é" * 60},
        {"action": "fail-disk", "member": {"a": [[[[]]]]}},
    ],
)
async def test_other_commands_cannot_be_asked_for(document: Any, site: Site) -> None:
    assert (await site.do(document)).status in (400, 413)
    assert site.source.done == []


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"{", b"[" * 4000, b'{"a":1e999}', b"nul"])
async def test_a_body_that_is_no_object_is_refused(body: bytes, site: Site) -> None:
    headers = {"X_Raidx_Token": TOKEN, "Content_Type": "application/json"}
    assert (await site.ask("POST", "/do", body, **headers)).status == 400
    headers["Content_Type"] = "text/plain"  # what a foreign form could send
    assert (await site.ask("POST", "/do", body, **headers)).status == 415
