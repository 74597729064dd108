"""The page's answers: hostile requests, the token, a daemon that is gone and comes back."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raidx_fuse.daemon.commands.lab import FAULTS
from raidx_fuse.errors import RaidxError
from raidx_fuse.view.access import HEADERS
from raidx_fuse.view.breaking import INJECTED
from raidx_fuse.view.feed import LOOK_S, PACE_S, STRIPES_MAX
from tests.support import documents
from tests.view.conftest import TOKEN

if TYPE_CHECKING:
    from tests.view.conftest import OnSite, Site

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


def test_every_answer_carries_the_policy(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        for path in (*READ, "/nothing"):
            answer = await site.ask("GET", path)
            for name, value in HEADERS:
                assert answer.headers[name.lower()] == value, path
            assert answer.status == (404 if path == "/nothing" else 200), path

    on_site(scene)


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/static/view.js"),
        *("/view.js/", "/view.css%00", "/index.html", "/token", "http://evil.example/"),
        *("*", "/stream/", "/do/"),
        *("/view.py", "/\xff", "/picture/../do"),
    ],
)  # fmt: skip
def test_other_paths_are_not_found(on_site: OnSite, path: str) -> None:
    async def scene(site: Site) -> None:
        raw = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await site.send(raw.encode("latin-1"))
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))

    on_site(scene)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_pages_are_only_read_and_changes_only_posted(on_site: OnSite, method: str) -> None:
    async def scene(site: Site) -> None:
        for path in ("/", "/picture", "/stream"):
            answer = await site.ask(method, path, b"")
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        if method != "POST":
            answer = await site.ask(method, "/do", b"", X_Raidx_Token=TOKEN)
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert site.source.done == []

    on_site(scene)


def test_a_name_that_was_rebound_to_this_machine_gets_nothing(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        for path in (*READ, "/stream", "/nothing"):
            answer = await site.ask("GET", path, host="evil.example:8470")
            assert answer.status == 421
            assert b"disk" not in answer.body
        answer = await site.do({"action": "fail-disk", "member": "0"}, Host="evil.example")
        assert answer.status == 421
        assert site.source.done == []

    on_site(scene)


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
def test_other_sites_can_neither_read_nor_change(on_site: OnSite, headers: dict[str, str]) -> None:
    async def scene(site: Site) -> None:
        cookie = site.access.cookie().partition(";")[0]
        for path in ("/picture", "/me", "/plan", "/compare", "/stream"):
            assert (await site.ask("GET", path, Cookie=cookie, **headers)).status == 403
        answer = await site.do({"action": "fail-disk", "member": "0"}, Cookie=cookie, **headers)
        assert answer.status == 403
        answer = await site.ask("POST", "/enter", f"token={TOKEN}".encode(), **headers)
        assert answer.status == 403
        assert "set-cookie" not in answer.headers
        assert site.source.done == []

    on_site(scene)


@pytest.mark.parametrize(
    "query",
    [
        *("first=-1", "first=x", "first=1.5", "count=0", f"count={STRIPES_MAX + 1}", "first=%00"),
        *("first=99999999999999999999", "count=1" * 100, "a=1&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1"),
        *("first=\u0661", "first=" + "9" * 19),
    ],
)
def test_numbers_out_of_range_are_refused(on_site: OnSite, query: str) -> None:
    async def scene(site: Site) -> None:
        raw = f"GET /picture?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await site.send(raw.encode())
        assert answer.startswith(b"HTTP/1.1 400"), answer[:60]
        assert site.source.asked == []

    on_site(scene)


def test_without_break_the_page_changes_nothing(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
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

    on_site(scene, token=None)


def test_the_token_opens_the_door_by_form_or_header(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
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

    on_site(scene)


def test_what_is_done_is_what_was_meant(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        await site.do({"action": "replace-disk", "member": "/disks/d1.img"})
        await site.do({"action": "inject", "member": "1", "fault": "rot"})
        assert site.source.done == [
            ("replace-disk", {"old": "/disks/d1.img", "new": "/disks/d1.img"}),
            ("inject", {"member": "1", "fault": "rot"}),
        ]

    on_site(scene)


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
def test_other_commands_cannot_be_asked_for(on_site: OnSite, document: Any) -> None:
    async def scene(site: Site) -> None:
        assert (await site.do(document)).status in (400, 413)
        assert site.source.done == []

    on_site(scene)


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"{", b"[" * 4000, b'{"a":1e999}', b"nul"])
def test_a_body_that_is_no_object_is_refused(on_site: OnSite, body: bytes) -> None:
    async def scene(site: Site) -> None:
        headers = {"X_Raidx_Token": TOKEN, "Content_Type": "application/json"}
        assert (await site.ask("POST", "/do", body, **headers)).status == 400
        headers["Content_Type"] = "text/plain"  # what a foreign form could send
        assert (await site.ask("POST", "/do", body, **headers)).status == 415

    on_site(scene)


def test_all_faults_of_the_daemon_can_be_injected() -> None:
    assert sorted(INJECTED) == sorted(FAULTS)


def test_news_reach_a_reader_and_a_dead_daemon_says_so_and_recovers(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        site.source.cells = [[3, "P0", True, 2]]
        told = dict(await messages(site, 3))
        assert told["state"]["alive"] is True
        assert told["state"]["name"] == "disk"
        assert told["pass"]["cells"] == [["3:P0", "write", 2]]
        async with site.feed.reader() as news:
            site.source.problem = RaidxError("the daemon of /mnt is gone", action="clear it")
            dead = await next_state(news, alive=False)
            assert dead["why"] == "the daemon of /mnt is gone; clear it"
            asked = len(site.source.asked)
            answer = await site.ask("GET", "/picture?first=9")
            assert answer.status == 502
            site.source.problem, site.source.next = None, 0  # another daemon
            site.source.status = documents.status(events=1, lab=[], name="again", uuid="u2")
            assert (await next_state(news, alive=True))["name"] == "again"
            assert len(site.source.asked) > asked
            assert (await messages(site, 3))[-1][0] == "pass", "requests are seen again"

    on_site(scene)


async def next_state(news: trio.MemoryReceiveChannel[bytes], *, alive: bool) -> dict[str, Any]:
    """Return the next state that says whether the daemon is *alive*."""
    with trio.fail_after(60):
        async for message in news:
            if message.startswith(b"event: state"):
                document = json.loads(message.partition(b"data: ")[2])
                if document["alive"] is alive:
                    return dict(document)
    raise AssertionError("the stream has ended")


def test_nothing_is_asked_while_nobody_looks(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        await trio.sleep(60)
        assert site.source.asked == []
        async with site.feed.reader(), site.feed.reader():
            await trio.sleep(10 * LOOK_S)
        asked = len(site.source.asked)
        assert 10 <= asked <= 40, "once for both"
        await trio.sleep(60)
        assert len(site.source.asked) <= asked + 1

    on_site(scene)


def test_many_questions_of_readers_are_spread_out(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        started_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(site.ask, "GET", f"/plan?offset={number}")
        assert trio.current_time() - started_s >= 49 * PACE_S

    on_site(scene)


def test_readers_of_one_window_share_a_picture_until_something_changes(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        async with site.feed.reader() as news:
            await next_state(news, alive=True)
            await trio.sleep(2)
            for _ in range(5):
                assert (await site.ask("GET", "/picture?first=16&count=4")).status == 200
            assert site.source.asked.count("explain") == 4
            site.source.status["members"][0]["state"] = "failed"
            await trio.sleep(2)
            await site.ask("GET", "/picture?first=16&count=4")
            assert site.source.asked.count("explain") == 2 * 4

    on_site(scene)


def growth(places: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer to `compare` after the last of *places* has moved to a new member."""
    then = [{**documents.member(role), "state": ""} for role in range(4)]
    moved = [*places[:3], {**places[3], "role": 4, "member_offset": 4096}]
    return {
        **{"kind": "grow", "number": 1, "state": "done", "cells": 400, "moved": 100},
        **{"is_cut": False, "sampled_ratio": 1.0},
        "members": [
            {
                **{"role": role, "path": f"/disks/d{role}.img"},
                "before": {"data": 0 if role == 4 else 100, "parity": 0, "accesses_per_s": None},
                "after": {"data": 80, "parity": 0, "accesses_per_s": 1.25},
            }
            for role in range(5)
        ],
        "before": {
            "layout": "raid0",
            "members": then,
            "stripes": [{"stripe": 7, "cells": places}],
        },
        "after": {"stripes": [{"stripe": 7, "cells": moved}]},
    }


def test_before_and_after_of_a_change_are_shown_to_those_who_come_later(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        assert (await site.ask("GET", "/compare")).json() == {"kind": None}
        site.source.status["members"].append(documents.member(4))
        site.source.change = growth(site.source.places)
        async with site.feed.reader() as news:
            assert (await next_state(news, alive=True))["moving"] == "grow"
            told = (await site.ask("GET", "/compare")).json()
            assert told["line"] == "grow, done: 100 of 400 cells in use lie elsewhere"
            assert (told["members"][4]["before"]["data"], told["members"][4]["path"]) == (
                0,
                "/disks/d4.img",
            )
            assert told["before"].count(" moved") == 0
            counts = [told[which].count('class="member"') for which in ("before", "after")]
            assert counts == [4, 5]
            assert told["after"].count("cell data moved") == 1
            site.source.change |= {"is_cut": True, "sampled_ratio": 0.5}
            line = (await site.ask("GET", "/compare")).json()["line"]
            assert "at least 100" in line
            assert "estimated" in line

    on_site(scene)


def test_a_change_and_what_the_tuner_moves_are_news(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        site.source.status["tuner"] = {"chunks_moved": 7}
        async with site.feed.reader() as news:
            version = (await next_state(news, alive=True))["version"]
            site.source.status["tuner"] = {"chunks_moved": 8}
            with trio.fail_after(60):
                assert (await next_state(news, alive=True))["version"] == version + 1
            site.source.change = {"kind": "tuning", "number": 1, "state": "done"}
            with trio.fail_after(60):
                told = await next_state(news, alive=True)
            assert (told["version"], told["moving"]) == (version + 2, "tuning")

    on_site(scene)


@pytest.mark.parametrize(
    "change",
    [
        {"cells": "many"},
        {"members": None},
        {"members": [{"role": 0, "path": None, "before": {}, "after": {}}]},
        {"sampled_ratio": "x"},
        {"before": {}},
        {"after": {"stripes": [{"stripe": 0, "cells": [{}]}]}},
    ],
)
def test_a_change_that_is_not_valid_is_refused(on_site: OnSite, change: dict[str, Any]) -> None:
    async def scene(site: Site) -> None:
        site.source.change = growth(site.source.places) | change
        assert (await site.ask("GET", "/compare")).status == 502

    on_site(scene)


def test_no_answer_has_a_number_that_browsers_cannot_read(on_site: OnSite) -> None:
    async def scene(site: Site) -> None:
        site.source.stats = {"members": [{"role": 0, "reads": float("nan")}]}
        async with site.feed.reader() as news:
            assert "not valid" in (await next_state(news, alive=False))["why"]

    on_site(scene)


@pytest.mark.parametrize(
    "change",
    [
        {"tuner": {}},
        {"tuner": {"chunks_moved": "many"}},
        {"members": 7},
        {"members": [{}]},
        {"jobs": [None]},
        {"warnings": None},
        {"size": "large"},
        {"members": [{"role": "x" * 9999, "path": 5, "state": []}]},
    ],
)
def test_an_answer_of_the_daemon_that_is_not_valid_is_told_and_harms_nothing(
    on_site: OnSite, change: dict[str, Any]
) -> None:
    async def scene(site: Site) -> None:
        good = site.source.status
        site.source.status = {**good, **change}
        async with site.feed.reader() as news:
            await trio.sleep(3)
            assert (await site.ask("GET", "/picture")).status in (200, 502)
            site.source.status = good
            await next_state(news, alive=True)

    on_site(scene)
