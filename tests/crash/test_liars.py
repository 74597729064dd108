"""Disks that lie: writes lost, misdirected or torn that report success, and bits that rot.

A scrub finds all of it. Who lied is said where two parities or three copies can tell, and repaired;
with one parity the report names all suspects and guesses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import SpyRig, noise, spying

CHUNK = 4096
TWO_LOSSES = [("rdp", 4), ("evenodd", 5), ("xcode", 5), ("raid1", 3)]


async def prepare(rig: SpyRig) -> None:
    """Fill the image, all of it in its place: what lies in the log would heal a lie."""
    await rig.running.set("journal", "none")
    await rig.put(0, noise(len(rig.model), 99))
    await rig.in_place()


async def scrub(rig: SpyRig, repair: bool = False) -> Mapping[str, Any]:
    """Run a scrub to its end."""
    job = await rig.running.start_scrub(repair=repair)
    result = await rig.running.jobs.wait(job)
    assert result["state"] == "done", result
    return result


async def lie(rig: SpyRig, kind: str, stripe: int, cells: list[int]) -> int:
    """Let the member that holds data *cells* of *stripe* lie about them once; return its role.

    They are rewritten past the log, and their write is lost or lands one stripe further, or their
    bits rot afterwards.
    """
    context = rig.running.context
    (role,) = {context.layout.place(stripe, cell)[0] for cell in cells}
    member = rig.members[role]
    strip_bytes = context.code.rows * CHUNK
    first = context.layout.logical(stripe, 0)
    await rig.put(first * CHUNK, noise(512, 1))  # the region is marked: no page goes that way now
    if kind == "lost":
        member.lose_writes(count=None)
    elif kind == "misdirected":
        member.misdirect_writes(strip_bytes, count=None)
    for cell in cells:
        await rig.put((first + cell) * CHUNK, noise(CHUNK, stripe + 1000 + cell))
    member.clear()
    if kind == "rot":
        for cell in cells:
            _, offset = context.position(stripe, cell)
            await member.rot(offset + 700, 3, mask=1 + cell % 7)
    return role


async def check_located(rig: SpyRig, role: int, stripes: set[int]) -> None:
    """Scrub: the lies of *role* in *stripes* are found, named as its own, and repaired."""
    found = await scrub(rig)
    assert {finding["stripe"] for finding in found["findings"]} == stripes
    for finding in found["findings"]:
        assert finding["located"], "two parities can tell"
        assert {member["role"] for member in finding["members"]} == {role}
    repaired = await scrub(rig, repair=True)
    assert (repaired["uncorrected"], repaired["assumed"]) == (0, 0)
    await rig.compare()
    assert (await scrub(rig))["mismatches"] == 0


LIES = ["lost", "misdirected", "rot"]


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize(("layout", "width"), TWO_LOSSES)
def test_with_two_parities_a_scrub_names_the_lying_disk_and_repairs_its_chunk(
    layout: str, width: int, kind: str
) -> None:
    async def main() -> None:
        async with spying(layout, width, chunk_bytes=CHUNK, rows=4) as rig:
            await prepare(rig)
            for cell in range(rig.running.context.data_count):
                role = await lie(rig, kind, 2, [cell])
                await check_located(rig, role, {2, 3} if kind == "misdirected" else {2})

    run(main)


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize(("layout", "width"), [("rdp", 4), ("evenodd", 5), ("xcode", 5)])
def test_a_member_that_lied_about_a_whole_strip_is_named_and_repaired(
    layout: str, width: int, kind: str
) -> None:
    async def main() -> None:
        async with spying(layout, width, chunk_bytes=CHUNK, rows=4) as rig:
            await prepare(rig)
            # A plan that reads what was lost would spread the lie to the parities.
            await rig.running.set("parity.policy", "rmw")
            code = rig.running.context.code
            cells = [cell for cell in code.column_cells[0] if cell < code.data_count]
            role = await lie(rig, kind, 2, cells)
            await check_located(rig, role, {2, 3} if kind == "misdirected" else {2})

    run(main)


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid4", 3), ("raid1", 2)])
def test_with_one_parity_a_scrub_names_all_suspects_and_guesses_nothing(
    layout: str, width: int, kind: str
) -> None:
    async def main() -> None:
        async with spying(layout, width, chunk_bytes=CHUNK) as rig:
            await prepare(rig)
            for cell in range(rig.running.context.data_count):
                await lie(rig, kind, 2, [cell])
                before = rig.images()
                found = await scrub(rig)
                stripes = {finding["stripe"] for finding in found["findings"]}
                assert stripes == ({2, 3} if kind == "misdirected" else {2})
                for finding in found["findings"]:
                    assert finding["located"] is False, "one parity cannot tell who lies"
                    assert finding["repaired"] is False
                    named = [member["role"] for member in finding["members"]]
                    assert named == list(range(width)), "every member is a suspect"
                data = rig.data
                for old, new in zip(before, rig.images(), strict=True):
                    assert old[data.offset : data.end] == new[data.offset : data.end]
                repaired = await scrub(rig, repair=True)
                assert repaired["assumed"] == repaired["repaired"] == len(stripes)
                size = rig.running.context.data_count * CHUNK
                await rig.put(2 * size, noise(2 * size, cell))  # the user restores from a copy
                await rig.compare()

    run(main)


@pytest.mark.parametrize(("layout", "width"), TWO_LOSSES)
def test_two_wrong_chunks_in_one_stripe_are_found_and_neither_is_named_alone(
    layout: str, width: int
) -> None:
    """Different lies in the same bytes of two members: beyond what two parities can place."""

    async def main() -> None:
        async with spying(layout, width, chunk_bytes=CHUNK, rows=4) as rig:
            await prepare(rig)
            rows = rig.running.context.code.rows
            at = rig.data.offset + 2 * rows * CHUNK + 50
            await rig.members[0].rot(at, 8, mask=0x01)
            await rig.members[1].rot(at, 8, mask=0x82)
            found = await scrub(rig)
            assert found["mismatches"] == 1
            (finding,) = found["findings"]
            assert finding["located"] is False or {m["role"] for m in finding["members"]} <= {0, 1}

    run(main)


def test_a_torn_write_that_reports_success_is_found() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            await prepare(rig)
            await rig.put(0, noise(512, 1))  # the region is marked: no page goes that way now
            rig.members[1].tear_writes(count=1)
            await rig.put(0, noise(3 * CHUNK, 1))
            assert rig.members[1].injected["torn"] == 1
            assert (await scrub(rig))["mismatches"] == 1

    run(main)
