"""Writes to stripes while a rebuild comes to them, and while another member takes a role.

A rebuild waits for the first write to a stripe, as for every other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.jobs.attach import record_of
from raidx_fuse.jobs.job import WINDOW_BYTES
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import Fault, Operation
from tests.support.arrays import jobs_ended, parity_holds, ram_array
from tests.support.spy import SpyRig, lift, placed, restarted, spied, spying, state_of

CHUNK = 4096
ROLE = 1  # the one that is lost and rebuilt
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width"),
    [("raid4", 5), ("raid5", 6), ("rdp", 6), ("upc", 6), ("raidx-parity", 6)],
)


def noise(seed: int, length: int = CHUNK) -> bytes:
    """Return bytes that no mistake produces."""
    return random.Random(seed).randbytes(length)


def cells_on(rig: SpyRig, stripe: int, role: int) -> int:
    """Return the set of data cells of *stripe* that *role* has."""
    context = rig.array.context
    return context.layout.lost_cells(stripe, frozenset({role})) & context.code.data_mask


def chosen(rig: SpyRig, *, on_role: bool) -> tuple[int, int]:
    """Return the last stripe with data on ROLE and a data cell there, or (not *on_role*) not."""
    context = rig.array.context
    for stripe in reversed(range(context.layout.stripes)):
        there = cells_on(rig, stripe, ROLE)
        cells = cells_of(there if on_role else context.code.data_mask & ~there)
        if there and cells:
            return stripe, cells[0]
    raise AssertionError("no stripe has data on the role")


async def keep_busy(rig: SpyRig) -> None:
    """Write what a rebuild needs two windows for."""
    context = rig.array.context
    window = (WINDOW_BYTES // CHUNK) * rig.width // context.code.columns // context.code.rows
    await rig.put(0, noise(1, 2 * window * context.code.data_count * CHUNK))


async def write_first(rig: SpyRig, stripe: int, cells: int) -> None:
    """Write the data *cells* of *stripe*."""
    for cell in cells_of(cells):
        at = rig.array.context.layout.logical(stripe, cell) * CHUNK
        await rig.put(at, noise(at))


def held(rig: SpyRig, stripe: int, cell: int, operation: Operation = "write") -> Fault:
    """Let writes to a cell's place, or reads, wait until the fault is lifted."""
    role, offset = rig.array.context.position(stripe, cell)
    return rig.members[role].inject(
        Fault("hang", (operation,), offset_bytes=offset, length_bytes=CHUNK)
    )


async def until(condition: Callable[[], object]) -> None:
    """Return soon after *condition* has come true."""
    while not condition():  # noqa: ASYNC110  # neither a fault nor a rebuild has an event for it
        await trio.sleep(0.01)


async def write_past_a_watermark(
    rig: SpyRig, stripe: int, cell: int, *, before: int = -512, size: int = 2000
) -> None:
    """Write *size* bytes from so many *before* the end of what precedes *cell* while ROLE is
    rebuilt; the first part that is for *stripe*, parity or data, reaches its place when the
    watermark has moved. Return when both are done.
    """
    context, member_set = rig.array.context, rig.array.member_set
    at = context.layout.logical(stripe, cell) * CHUNK - before
    lost = context.layout.lost_cells(stripe, member_set.lost)
    code = context.code
    parities = (code.data_count + p for p, s in enumerate(code.support) if s >> cell & 1)
    fault = held(rig, stripe, next(c for c in (cell, *parities) if not lost >> c & 1))
    await rig.array.set("speed_max", "64KiB")  # the first window is not limited yet
    job = (await rig.array.replace_disk(ROLE, rig.new_member()))["job"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.put, at, noise(at, size))
        await until(lambda: fault.hits)
        mark = member_set.watermarks[ROLE]
        await rig.array.set("speed_max", "0")
        await until(lambda: member_set.watermarks[ROLE] != mark)
        fault.lift()
    assert (await rig.array.jobs.wait(job))["state"] == "done"


async def check(rig: SpyRig) -> None:
    """Assert that everything is as it was written, the parity too, also without a member."""
    await rig.compare()
    await parity_holds(rig.array)
    await rig.array.fail_disk(2)
    await rig.compare()


# The cell is on ROLE or not; alive are, of the others in its stripe, none, those on other members,
# or all: then only read-modify-write can make the parity, as what lies on ROLE cannot be read.
@LAYOUTS
@pytest.mark.parametrize(
    ("on_role", "alive"),
    [(False, "none"), (False, "others"), (False, "all"), (True, "none"), (True, "others")],
    ids=["new", "beside-others", "beside-lost", "lost-new", "lost-beside-others"],
)
async def test_a_write_that_a_rebuild_passes_is_in_the_parity_once(
    layout: str, width: int, on_role: bool, alive: str
) -> None:
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=640)
    await rig.array.set("journal", "none")
    context = rig.array.context
    stripe, cell = chosen(rig, on_role=on_role)
    await keep_busy(rig)
    mask = context.code.data_mask & ~(1 << cell)
    if alive == "others":
        mask &= ~cells_on(rig, stripe, ROLE)
    await write_first(rig, stripe, mask if alive != "none" else 0)
    await rig.in_place()
    await rig.array.fail_disk(ROLE)
    with trio.fail_after(20):
        await write_past_a_watermark(rig, stripe, cell)
    await check(rig)


@pytest.mark.parametrize(("layout", "width"), [("rdp", 6), ("upc", 6)])
async def test_a_write_that_a_rebuild_passes_with_another_member_gone(
    layout: str, width: int
) -> None:
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=640)
    await rig.array.set("journal", "none")
    context = rig.array.context
    stripe = context.layout.stripes - 1
    gone = cells_on(rig, stripe, ROLE) | cells_on(rig, stripe, 3)
    cell = cells_of(context.code.data_mask & ~gone)[0]
    await keep_busy(rig)
    await write_first(rig, stripe, context.code.data_mask & ~(1 << cell))
    for role in (ROLE, 3):
        await rig.array.fail_disk(role)
    with trio.fail_after(20):
        await write_past_a_watermark(rig, stripe, cell)
    await rig.compare()
    await rig.array.fail_disk(2)
    await rig.compare()


@pytest.mark.parametrize(("layout", "width"), [("raid4", 5), ("raid5", 6), ("rdp", 6)])
async def test_a_write_of_two_stripes_of_which_one_lives(layout: str, width: int) -> None:
    """The one goes down again, the other does not."""
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=640)
    await rig.array.set("journal", "none")
    context = rig.array.context
    stripe = context.layout.stripes - 1
    await keep_busy(rig)
    await write_first(rig, stripe, context.code.data_mask & ~1)
    await rig.array.fail_disk(ROLE)
    assert context.is_unwritten(stripe - 1)
    size = 2 * CHUNK
    with trio.fail_after(20):
        await write_past_a_watermark(rig, stripe, 0, before=CHUNK + 512, size=size)
    await check(rig)


# Another member takes the role while a read or a write waits for a third one.


async def taken(rig: SpyRig, role: int = ROLE) -> None:
    """Let a new member take *role* while its rebuild has not begun to write."""
    await rig.array.set("speed_max", "4KiB")
    await rig.array.fail_disk(role)  # a member that is in use would be copied
    await rig.array.replace_disk(role, rig.new_member())


@pytest.mark.parametrize(
    ("layout", "width"), [("raid4", 5), ("raid5", 6), ("raidx-parity", 6), ("raidx-copy", 6)]
)
async def test_a_read_that_waits_while_another_member_takes_a_role_asks_the_others(
    layout: str, width: int
) -> None:
    """A placement lets it read once more, and the new member has nothing yet."""
    rig = await placed(layout, width, chunk_bytes=CHUNK, stripes=64, slow=True)
    await rig.put(len(rig.model) - 512, noise(2, 512))  # to be placed
    context = rig.array.context
    places = [context.layout.locate(chunk) for chunk in range(len(rig.model) // CHUNK - 1)]
    roles = [context.position(*place)[0] for place in places]
    first = next(n for n, role in enumerate(roles) if ROLE in (role, roles[n + 1]))
    other = first + (roles[first] == ROLE)
    fault = held(rig, *places[other], "read")
    found = b""

    async def read() -> None:
        nonlocal found
        found = await rig.get(first * CHUNK, 2 * CHUNK)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: fault.hits)
        await taken(rig)
        fault.lift()
    assert found == rig.model[first * CHUNK : (first + 2) * CHUNK]


@pytest.mark.parametrize(("layout", "width"), [("rdp", 6), ("evenodd", 7)])
async def test_a_degraded_read_that_waits_while_another_member_takes_a_role_asks_the_others(
    layout: str, width: int
) -> None:
    """It solves the chunk on the lost member first, then reads its neighbour."""
    rig = await placed(layout, width, chunk_bytes=CHUNK, stripes=16, slow=True)
    context = rig.array.context
    neighbour, lost = (context.position(0, cell)[0] for cell in (0, 1))
    assert neighbour != lost
    await rig.array.fail_disk(lost)
    faults = [
        member.hang(("read",), offset_bytes=rig.data.offset, count=1)
        for role, member in enumerate(rig.members)
        if role not in (neighbour, lost)
    ]
    at = context.layout.logical(0, 0) * CHUNK + 2048
    found = b""

    async def read() -> None:
        nonlocal found
        found = await rig.get(at, 3072)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: any(fault.hits for fault in faults))
        await taken(rig, neighbour)
        lift(faults)
    assert found == rig.model[at : at + 3072]


@pytest.mark.parametrize(("layout", "width"), [("raid5", 6), ("raidx-parity", 6)])
async def test_a_scrub_that_waits_while_another_member_takes_a_role_asks_the_others(
    layout: str, width: int
) -> None:
    """Of the stripes that it has locked, it reads some afterwards."""
    rig = await spied(layout, width, chunk_bytes=CHUNK, stripes=200, slow=True)
    await rig.array.set("journal", "none")
    context = rig.array.context
    for stripe in range(0, context.layout.stripes, 3):  # not all alike
        await write_first(rig, stripe, context.code.data_mask >> stripe % 2)
    await rig.in_place()
    fault = held(rig, *context.layout.locate(0), "read")
    job = await rig.array.start_scrub(repair=True)
    await until(lambda: fault.hits)
    await taken(rig)
    fault.lift()
    await rig.array.set("speed_max", "0")
    result = await rig.array.jobs.wait(job)
    assert (result["state"], result["mismatches"]) == ("done", 0), result
    await rig._step_settle()
    await check(rig)


async def test_a_write_that_waits_while_another_member_takes_a_role_is_planned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was for the member before is for nobody: a replay would lay it onto the new one."""
    rig = await placed("raid5", 6, chunk_bytes=CHUNK, stripes=64, slow=True)
    await rig.put(len(rig.model) - 512, noise(2, 512))  # to be placed
    context = rig.array.context
    journal = context.journal
    # Three of five cells, not the first: a large piece, which is logged with its parity.
    large = range(1, 4)
    stripes = reversed(range(context.layout.stripes - 6))  # the log has nothing of these
    stripe = next(s for s in stripes if cells_on(rig, s, ROLE) in [1 << n for n in large])
    (cell,) = cells_of(cells_on(rig, stripe, ROLE))
    place, may_place = journal.place, trio.Event()

    async def late() -> None:
        await may_place.wait()
        await place()

    fault = held(rig, stripe, 0, "read")  # its parity needs that cell
    at = context.layout.logical(stripe, large[0]) * CHUNK
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.put, at, noise(3, len(large) * CHUNK))
        await until(lambda: fault.hits)  # it is planned, for the member of now
        monkeypatch.setattr(journal, "place", late)
        nursery.start_soon(taken, rig)
        await until(lambda: journal.gate is not None)
        fault.lift()
        await trio.sleep(1)
        assert not context.member_set.role_epoch
        may_place.set()
    monkeypatch.undo()
    assert context.member_set.role_epoch
    role, position = context.position(stripe, cell)
    assert role == ROLE
    assert not journal.overlay.covers(role, position, position + 512)
    await rig.compare()


# The window of the rebuild is chosen, then a first write begins in a stripe that it skips.


@pytest.mark.parametrize("journal", ["none", "partial"])
async def test_a_first_write_that_begins_between_the_stripes_of_a_window(journal: str) -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=64)
    await rig.array.set("journal", journal)
    context = rig.array.context
    for stripe in (0, 20):
        await write_first(rig, stripe, context.code.data_mask)
    await rig.in_place()
    await rig.array.fail_disk(ROLE)
    stripe = next(s for s in range(5, 15) if cells_on(rig, s, ROLE))
    (cell,) = cells_of(cells_on(rig, stripe, ROLE))
    new = rig.new_member()
    at_rebuild = new.hang(("write",), offset_bytes=rig.data.offset)
    job = (await rig.array.replace_disk(ROLE, new))["job"]
    async with trio.open_nursery() as nursery:
        await until(lambda: at_rebuild.hits)
        at_write = held(rig, stripe, context.code.data_count)  # the parity has all of it
        nursery.start_soon(write_first, rig, stripe, 1 << cell)
        await trio.sleep(1)
        assert at_write.hits or journal != "none"
        at_rebuild.lift()
        await trio.sleep(1)
        at_write.lift()
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    await check(rig)


async def test_a_member_that_fails_as_its_rebuild_ends_is_not_called_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the next start would take it for one that has all that was written since."""
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, stripes=64)
    await rig.array.fail_disk(ROLE)
    journal, reform = rig.array.context.journal, rig.array.context.journal.reform

    async def then_it_fails() -> None:
        await reform()
        await rig.array.fail_disk(ROLE)

    monkeypatch.setattr(journal, "reform", then_it_fails)
    new = rig.new_member()
    job = (await rig.array.replace_disk(ROLE, new))["job"]
    await rig.array.jobs.wait(job)
    monkeypatch.undo()
    assert state_of(rig, ROLE) == "failed"
    await rig.put(0, noise(2, len(rig.model)))
    await rig.array.flush()
    rig.members[ROLE] = new
    await rig.reopen()
    await rig.compare()


async def test_the_position_of_a_member_that_fails_is_not_that_of_the_spare_that_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It follows while the position is being saved; then the power fails."""
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=2000) as rig:
        await rig.put(0, noise(1, len(rig.model)))
        await rig.in_place()
        await rig.array.fail_disk(ROLE)
        await rig.array.set("speed_max", "64KiB")
        await rig.array.replace_disk(ROLE, rig.new_member())
        member_set, membership = rig.array.member_set, rig.array.membership
        await until(lambda: member_set.watermarks[ROLE])
        (job,) = rig.array.jobs.running()
        job.pause()
        flush, spare = member_set.flush, rig.new_member()

        async def then_a_spare_follows() -> None:
            monkeypatch.undo()
            await flush()
            await rig.array.fail_disk(ROLE)
            record = record_of(spare, ROLE, "rebuilding")
            await membership._prepare(spare, record)
            await membership._seat(record, spare)

        monkeypatch.setattr(member_set, "flush", then_a_spare_follows)
        await job.checkpoint()
        images = rig.images()
        expected = bytes(rig.model)
    images.pop(rig.width)  # of the member that failed
    images.pop(ROLE)
    async with restarted(images) as array:
        await jobs_ended(array)
        assert not array.member_set.lost
        await array.fail_disk(2)
        assert bytes(await array.read(0, len(expected))) == expected


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize(("layout", "width"), [("rdp", 6), ("raidx-parity", 5)])
async def test_a_cut_after_superblocks_name_a_member_that_lacks_all_maps_costs_nothing(
    layout: str, width: int, returns: bool, sums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any round of superblocks may name it as soon as it has the role in memory."""
    members = await ram_array(layout, width, 4 << 20, chunk_bytes=4 * CHUNK, sums=sums)
    content, cut = bytearray(noise(1, 1 << 20)), list[list[bytes]]()
    async with open_array(members) as array:
        member_set = array.member_set
        if array.self_heal is not None:
            await array.set("restore.after", "off")
        await array.write(0, bytes(content))
        await array.context.journal.drain()
        await array.fail_disk(ROLE)
        content[5 * CHUNK : 12 * CHUNK] = noise(2, 7 * CHUNK)
        await array.write(5 * CHUNK, bytes(content[5 * CHUNK : 12 * CHUNK]))  # it lacks that
        await array.flush()
        store = member_set.page_stores[0]
        save_all = store.save_all
        new = members[ROLE] if returns else RamMember(4 << 20, name="new")
        present = [new if member is members[ROLE] else member for member in members]

        async def named_before() -> None:
            monkeypatch.undo()
            member_set.publish_soon()
            await member_set.published()
            cut.append([bytes(member.memory) for member in present])
            await save_all()

        monkeypatch.setattr(store, "save_all", named_before)
        answer = await array.replace_disk(ROLE, new)
        assert answer["catches_up"] == returns
        await jobs_ended(array)
        tolerance = array.context.code.tolerance
    (images,) = cut
    for gone in range(width) if tolerance > 1 else ():  # one more is lost with the power
        if gone != ROLE:
            left = [image for role, image in enumerate(images) if role != gone]
            async with restarted(left, start_degraded=True) as array:
                assert await array.read(0, len(content)) == content
    async with restarted(images) as array:
        assert await array.read(0, len(content)) == content
        await jobs_ended(array)
        assert not array.member_set.lost
        await parity_holds(array)
        await array.fail_disk((ROLE + 1) % width)
        assert await array.read(0, len(content)) == content
