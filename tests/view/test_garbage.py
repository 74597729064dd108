"""Daemons of others that answer garbage: the page says so and goes on. Seeded changes of answers.

Each answer is checked as the connection to such a daemon does.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import trio

from raidx_fuse.daemon.control_client import check_answer
from raidx_fuse.errors import RaidxError
from raidx_fuse.lab.demo import Demo, DemoArray, demo_array
from raidx_fuse.view.feed import Feed

ROUNDS = 400
ANSWER_CHARS_MAX = 2 << 20
GARBAGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 70, 1.5, float("nan"), "", "x" * 5000, "\0\ud800<&\"'>", [], {}),
    *([[]], [None], {"a": 1}, ["x"] * 300, [{}] * 300),
)


class Changed:
    """The demo, whose answers are changed in one place each by *chance*."""

    where = "demo"
    actions: Collection[str] = ()

    def __init__(self, demo: DemoArray, chance: random.Random) -> None:
        self._demo = demo
        self._chance = chance
        self.changes = True

    async def ask(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
        """Answer, with a change in one of the answers."""
        answers = json.loads(json.dumps(await self._demo.ask(questions)))
        if self.changes:
            change(answers[self._chance.randrange(len(answers))], self._chance)
        for (command, arguments), answer in zip(questions, answers, strict=True):
            check_answer(command, arguments, answer)
        return list(answers)

    async def act(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def events(self, uuid: str) -> list[dict[str, Any]]:
        return []

    def replacement(self, path: str) -> str:
        return path


def change(value: Any, chance: random.Random) -> None:
    """Replace, or remove, one part of *value*, a dict or a list that is not empty, at any depth."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = chance.choice(keys)
    part = value[key]
    if isinstance(part, dict | list) and part and chance.random() < 0.7:
        change(part, chance)
    elif chance.random() < 0.3:
        del value[key]
    else:
        value[key] = copy.deepcopy(chance.choice(GARBAGE))


def no_number(text: str) -> None:
    """Refuse NaN, which browsers do not read."""
    raise AssertionError(text)


async def draw(feed: Feed, number: int) -> None:
    picture = await feed.picture(number % 7, 1 + number % 3)
    assert len(json.dumps(picture.as_dict())) < ANSWER_CHARS_MAX


async def test_no_answer_of_a_daemon_is_a_bug_of_the_page() -> None:
    chance = random.Random(21)
    refused: list[str] = []
    async with demo_array(Demo(operation_s=0.01)) as demo, trio.open_nursery() as nursery:
        source = Changed(demo, chance)
        feed = Feed(source)
        async with feed.reader() as news:

            async def read() -> None:
                async for message in news:
                    assert len(message) < ANSWER_CHARS_MAX
                    json.loads(message.partition(b"data: ")[2], parse_constant=no_number)

            nursery.start_soon(read)
            for number in range(ROUNDS):
                for step in (
                    feed.look,
                    feed.look_at_requests,
                    partial(draw, feed, number),
                    feed.comparison,
                    partial(feed.plan, 4096 * number % 65536, 512, bool(number % 2)),
                ):
                    try:
                        await step()
                    except RaidxError as error:
                        refused.append(str(error))
            assert 2 * ROUNDS < len(refused) < 5 * ROUNDS - 200, "many get through"
            assert max(map(len, refused)) < 2000
            source.changes = False
            await feed.look()
            await feed.look_at_requests()
            await feed.picture(0, 4)
            nursery.cancel_scope.cancel()
