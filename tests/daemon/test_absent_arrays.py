"""A mount that lacks an array of its pool names it and its volumes, until it is forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from raidx_fuse.errors import ReadOnlyError, Reason, UsageError
from raidx_fuse.format.configuration.remembered import (
    NAMES_BYTES_MAX,
    POOL,
    RememberedArray,
    remembered_arrays,
    with_remembered_arrays,
)
from raidx_fuse.pool.other_arrays import LOOK_S, remembering
from raidx_fuse.pool.pool import Pool
from tests.daemon.test_move_commands import Ask, asking
from tests.support.reasons import because
from tests.support.two_arrays import PAGE, Arrays


@asynccontextmanager
async def mounted(
    arrays: Arrays, *names: str, read_only: bool = False
) -> AsyncIterator[tuple[Pool, Ask]]:
    async with arrays.mounted(*names, read_only=read_only) as pool, remembering(pool):
        yield pool, asking(pool)


@asynccontextmanager
async def with_volumes() -> AsyncIterator[Arrays]:
    arrays = Arrays()
    await arrays.create()
    async with mounted(arrays) as (_, ask):
        await ask("volume-create", name="mail", size=PAGE, on="fast")
        await ask("volume-create", name="olds", size=PAGE, on="slow")
    yield arrays


arrays = pytest.fixture(with_volumes)


async def test_an_absent_array_is_named_with_its_volumes(arrays: Arrays) -> None:
    async with mounted(arrays, "fast") as (_, ask):
        (line,) = (await ask("status"))["warnings"]
        assert "array slow" in line
        assert "is absent; not shown: olds; give its members too" in line
        (absent,) = (await ask("array-list"))["absent"]
        assert (absent["name"], absent["volumes"], absent["total"]) == ("slow", ["olds"], 1)
        with pytest.raises(UsageError, check=because(Reason.MEMBERS_MISSING)):
            await ask("volume-rename", volume="olds", name="old")
    async with mounted(arrays) as (_, ask):  # it is back
        assert (await ask("array-list"))["absent"] == []
        assert [one["warnings"] for one in (await ask("status"))["arrays"]] == [[], []]


async def test_changes_of_the_volumes_are_remembered_even_by_a_daemon_that_is_killed(
    arrays: Arrays,
) -> None:
    async with mounted(arrays) as (pool, ask):
        await ask("volume-rename", volume="olds", name="archive")
        await trio.sleep(LOOK_S + 1)
        (known,) = remembered_arrays(pool.array("fast").array.member_set.config)
        assert known.volumes == ("archive",)
        await ask("volume-delete", volume="archive", lose_data=True)
    async with mounted(arrays, "fast") as (pool, _):  # nothing is missing without it
        assert pool.absent == []


async def test_an_array_that_is_gone_for_good_is_forgotten(arrays: Arrays) -> None:
    async with mounted(arrays, "fast", read_only=True) as (pool, ask):
        with pytest.raises(ReadOnlyError):
            await ask("array-forget", name="slow")
        assert len(pool.absent) == 1
    async with mounted(arrays, "fast") as (_, ask):
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_ARRAY)):
            await ask("array-forget", name="other")
        assert (await ask("array-forget", name="slow"))["forgotten"] == "slow"
        assert (await ask("status"))["warnings"] == []
    async with mounted(arrays, "fast") as (pool, _):
        assert pool.absent == []


async def test_what_is_remembered_is_bounded_and_may_be_anything(arrays: Arrays) -> None:
    async with mounted(arrays, "fast") as (pool, _):
        config = pool.array("fast").array.member_set.config
        names = tuple(f"{number:0200}" for number in range(100))
        many = with_remembered_arrays(config, [RememberedArray("a", "b", names, 100)])
        (known,) = remembered_arrays(many)
        assert known.total == 100
        assert 0 < sum(map(len, known.volumes)) <= NAMES_BYTES_MAX
        assert with_remembered_arrays(many, [RememberedArray("a", "b", names, 100)]) is many
        bads: list[Any] = [{}, 7, [[1, 2, 3, 4]], [["a", "b", ["\x1b"], 1]]]
        for bad in (*bads, [["a", "b", [], -1]]):
            assert remembered_arrays(replace(config, jobs={POOL: bad})) == []
