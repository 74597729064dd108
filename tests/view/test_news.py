"""What readers of the page are told: pictures, changes, moves, a daemon without answer."""

from __future__ import annotations

import json
from typing import Any

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.view.feed import LOOK_S, PACE_S
from tests.support import documents
from tests.view.conftest import Site
from tests.view.test_app import messages


async def test_news_reach_a_reader_and_a_dead_daemon_says_so_and_recovers(site: Site) -> None:
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


async def next_state(news: trio.MemoryReceiveChannel[bytes], *, alive: bool) -> dict[str, Any]:
    """Return the next state that says whether the daemon is *alive*."""
    with trio.fail_after(60):
        async for message in news:
            if message.startswith(b"event: state"):
                document = json.loads(message.partition(b"data: ")[2])
                if document["alive"] is alive:
                    return dict(document)
    raise AssertionError("the stream has ended")


async def test_nothing_is_asked_while_nobody_looks(site: Site) -> None:
    await trio.sleep(60)
    assert site.source.asked == []
    async with site.feed.reader(), site.feed.reader():
        await trio.sleep(10 * LOOK_S)
    asked = len(site.source.asked)
    assert 10 <= asked <= 40, "once for both"
    await trio.sleep(60)
    assert len(site.source.asked) <= asked + 1


async def test_many_questions_of_readers_are_spread_out(site: Site) -> None:
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(site.ask, "GET", f"/plan?offset={number}")
    assert trio.current_time() - started_s >= 49 * PACE_S


async def test_readers_of_one_window_share_a_picture_until_something_changes(site: Site) -> None:
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


async def test_before_and_after_of_a_change_are_shown_to_those_who_come_later(site: Site) -> None:
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


async def test_a_change_and_what_the_tuner_moves_are_news(site: Site) -> None:
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
