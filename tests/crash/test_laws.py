"""The disks of the campaign hold an array to its laws, whether or not a cut would show it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from raidx_fuse.engine.changed_regions import ChangedRegions
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import LawError
from raidx_fuse.lab.crash.laws import Laws
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.crash.test_given_up import PARITY_LOST, given_up
from tests.support.spy import fill, noise, spying


def test_a_home_write_to_a_stripe_that_is_not_noted_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def unnoted(self: ArrayContext, stripes: Sequence[Stripe]) -> AsyncIterator[None]:
        await self.dirty_bitmap.enter(stripes)
        yield
        self.dirty_bitmap.leave(stripes)

    assert given_up("partial", "write", 0, PARITY_LOST)
    monkeypatch.setattr(ArrayContext, "past_the_log", unnoted)
    with pytest.raises(BaseException, match="is not noted while a member is away"):
        given_up("partial", "write", 0, PARITY_LOST)


def test_a_write_beyond_the_end_is_a_violation() -> None:
    with pytest.raises(AssertionError, match="goes beyond its end"):
        Laws([]).judge(RamMember(1 << 20), (1 << 20) - 1, b"ab")


def test_in_use_the_request_fails_and_an_event_can_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with spying("raid5", 3, chunk_bytes=4096, stripes=600) as rig:
            await rig.running.set("journal", "none")
            await fill(rig)
            await rig.in_place()
            await rig.running.context.dirty_bitmap.clean_quiet(all_regions=True)
            await rig.running.fail_disk(1)
            monkeypatch.setattr(ChangedRegions, "note", lambda _self, _stripes: None)
            with pytest.raises(LawError, match="is not noted while a member is away"):
                await rig.running.write(0, noise(8192 * 100))
            assert rig.running.member_set.broken_laws
            monkeypatch.undo()
            await rig.put(0, noise(8192 * 100))

    run(main)
