"""Scrub on two-loss codes: one wrong cell or member is named and repaired; two are not guessed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.spy import SpyRig, restarted, spied, spying

CHUNK = 4096
STRIPES = 6
# p = 5 and p = 7 of each code, then shortened widths of the two that have them
SETUPS = [
    *(("rdp", 6), ("rdp", 8), ("evenodd", 7), ("evenodd", 9)),
    *(("xcode", 5), ("xcode", 7), ("pcode", 4), ("pcode", 6), ("upc", 4), ("upc", 6)),
    *(("rdp", 4), ("rdp", 5), ("rdp", 7), ("evenodd", 4), ("evenodd", 5), ("evenodd", 8)),
]


class Case:
    """A full array on which cells are made to rot; the model knows what they should hold."""

    def __init__(self, rig: SpyRig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.context = rig.array.context

    async def rot(self, stripe: int, cell: int, at: int, size: int) -> int:
        """Flip bits in bytes *at*.. of *cell*; return the role that lies now."""
        role, member_chunk = self.context.layout.place(stripe, cell)
        offset = self.rig.data.offset + member_chunk * CHUNK + at
        for byte in range(offset, offset + size):
            await self.rig.members[role].rot(byte, 1, mask=self.rng.randrange(1, 256))
        return role

    async def scrub(self, repair: bool) -> Mapping[str, Any]:
        """Run a scrub to its end."""
        result = await self.rig.array.jobs.wait(await self.rig.array.start_scrub(repair=repair))
        assert result["state"] == "done", result
        await self.rig.in_place()
        return result

    def images(self) -> list[bytes]:
        """Return the data regions of all members."""
        data = self.rig.data
        return [bytes(ram.memory[data.offset : data.end]) for ram in self.rig.rams]

    def somewhere(self) -> tuple[int, int]:
        """Return (at, size) of some bytes of a chunk."""
        at = self.rng.randrange(CHUNK)
        return at, self.rng.randint(1, min(700, CHUNK - at))


async def made(name: str, width: int) -> Case:
    rows = {"rdp": 6, "evenodd": 6, "xcode": 7, "pcode": 3, "upc": 3, "raid1": 1}[name]
    rig = await spied(name, width, chunk_bytes=CHUNK, rows=rows, stripes=STRIPES)
    rng = random.Random(f"{name}{width}")
    await rig.put(0, rng.randbytes(len(rig.model)))
    await rig.in_place()
    assert rig.array.context.layout.stripes >= STRIPES
    return Case(rig, rng)


@pytest.mark.parametrize(("name", "width"), [*SETUPS, ("raid1", 3), ("raid1", 4)])
async def test_one_lying_cell_a_stripe_is_located_named_and_mended(name: str, width: int) -> None:
    """Data cells in even stripes, parity cells in odd ones, bytes anywhere."""
    case = await made(name, width)
    context, good = case.context, case.images()
    liars = {}
    cells = {}
    for stripe in range(STRIPES):
        data_count, count = context.code.data_count, len(context.code.cells)
        cell = case.rng.randrange(*((data_count, count) if stripe % 2 else (0, data_count)))
        cells[stripe] = cell
        liars[stripe] = await case.rot(stripe, cell, *case.somewhere())
    rotten = case.images()
    found = await case.scrub(repair=False)
    assert case.images() == rotten, "--check changes nothing"
    assert (found["mismatches"], found["uncorrected"]) == (STRIPES, STRIPES)
    for finding in found["findings"]:
        stripe = finding["stripe"]
        assert finding["located"] is True
        assert [member["role"] for member in finding["members"]] == [liars[stripe]]
        is_data = cells[stripe] < context.code.data_count
        chunks = [offset // CHUNK for offset in finding["image_offsets"]]
        assert chunks == ([context.layout.logical(stripe, cells[stripe])] if is_data else [])
    mended = await case.scrub(repair=True)
    assert (mended["repaired"], mended["assumed"], mended["uncorrected"]) == (STRIPES, 0, 0)
    assert case.images() == good
    assert (await case.scrub(repair=False))["mismatches"] == 0


@pytest.mark.parametrize(("name", "width"), SETUPS)
async def test_a_member_that_lies_in_whole_strips_is_located_and_mended(
    name: str, width: int
) -> None:
    """A lost or misdirected write of a strip: all cells of one member, each its own way."""
    case = await made(name, width)
    context, good = case.context, case.images()
    column = case.rng.randrange(width)
    for cell in context.code.column_cells[column]:
        role = await case.rot(2, cell, 0, CHUNK)
    mended = await case.scrub(repair=True)
    (finding,) = mended["findings"]
    assert finding["located"] is True
    assert [member["role"] for member in finding["members"]] == [role]
    assert mended["assumed"] == 0
    assert case.images() == good


@pytest.mark.parametrize(("name", "width"), SETUPS)
async def test_two_lying_members_are_not_guessed(name: str, width: int) -> None:
    """In one sector: nobody is blamed and the assumption is counted. In two: both are mended."""
    case = await made(name, width)
    context, good = case.context, case.images()
    columns = case.rng.sample(range(width), 2)
    cells = [case.rng.choice(context.code.column_cells[column]) for column in columns]
    roles = sorted([await case.rot(1, cell, 512 * i, 512) for i, cell in enumerate(cells)])
    mended = await case.scrub(repair=True)
    (finding,) = mended["findings"]
    assert (finding["located"], mended["assumed"]) == (True, 0)
    assert [member["role"] for member in finding["members"]] == roles
    assert case.images() == good
    for cell in cells:
        await case.rot(1, cell, 1030, 40)
    result = await case.scrub(repair=True)
    (finding,) = result["findings"]
    assert (finding["located"], finding["assumed_data_right"]) == (False, True)
    assert result["assumed"] == 1
    # Data stays as it was found, wrong where it was wrong; parity follows it, and says no more.
    for cell in (cell for cell in cells if cell < context.code.data_count):
        at = context.layout.logical(1, cell) * CHUNK + 1030
        case.rig.model[at : at + 40] = await case.rig.get(at, 40)
    await case.rig.compare()
    assert (await case.scrub(repair=False))["mismatches"] == 0


@pytest.mark.parametrize(("name", "width"), [("rdp", 8), ("xcode", 5), ("upc", 6)])
async def test_with_one_member_lost_rot_is_still_seen(name: str, width: int) -> None:
    """Half the equations are left: a mismatch shows; whoever is named lies indeed."""
    case = await made(name, width)
    context = case.context
    await case.rig.array.fail_disk(1)
    liars = {}
    for stripe in range(STRIPES):
        while True:
            cell = case.rng.randrange(len(context.code.cells))
            if context.layout.place(stripe, cell)[0] != 1:
                break
        liars[stripe] = await case.rot(stripe, cell, *case.somewhere())
    found = await case.scrub(repair=False)
    assert found["mismatches"] == STRIPES
    for finding in found["findings"]:
        if finding["located"]:
            assert [m["role"] for m in finding["members"]] == [liars[finding["stripe"]]]


@pytest.mark.parametrize(("name", "width"), [("rdp", 6), ("evenodd", 6), ("upc", 6)])
async def test_parity_that_awaits_its_resync_outvotes_no_data(name: str, width: int) -> None:
    """A cut kept the parities of a write and dropped its data: who read the old content once must
    not read the new one after a scrub that comes before the resync."""
    async with spying(name, width, chunk_bytes=CHUNK) as rig:
        await rig.array.set("journal", "none")
        await rig.put(0, random.Random(1).randbytes(len(rig.model)))
        await rig.array.flush()
        role, place = rig.array.context.position(0, 0)
        old = bytes(rig.model)
        dropped = bytes(rig.rams[role].memory[place : place + CHUNK])
        await rig.put(0, random.Random(2).randbytes(CHUNK))
        picture = [bytearray(image) for image in rig.images()]
        picture[role][place : place + CHUNK] = dropped
    async with restarted([bytes(image) for image in picture]) as array:
        (resync,) = array.jobs.running()
        resync.pause()
        assert array.context.dirty_bitmap.awaits_resync(0)
        scrub = await array.jobs.wait(await array.start_scrub(repair=True))
        assert scrub["mismatches"] == 1
        assert bytes(await array.read(0, len(old))) == old
        resync.resume()
        await resync.finished.wait()
        scrub = await array.jobs.wait(await array.start_scrub(repair=True))
        assert scrub["mismatches"] == 0
        assert bytes(await array.read(0, len(old))) == old
