"""What arrays with checksums owe (store/sums.py), whatever a cut has left.

Without planted damage there are no false alarms: no page misfits, none is healed, no sum is wrong,
and the bytes of a page are taken as they were only after a crash, in marked regions. And sums are
whole: each live page of a member that is there has one, at home, that fits; and the members agree
about it after a clean end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from raidx_fuse.array.array import Array
from raidx_fuse.format.configuration.sums import sums_of
from raidx_fuse.format.regions import PAGE_BYTES, SUMS_PER_PAGE
from raidx_fuse.format.sum_table import decode_sums, seed_of
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.layouts.numbers import Role, Stripe, by_role
from raidx_fuse.layouts.placements.bundled import BundleLayout, table_of
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.base import Member

Place = tuple[Stripe, Role, int]  # of a page: its stripe, its role and its byte on the member


def check_calm(arrays: Iterable[Array], when: str, *, after_crash: bool = True) -> None:
    """Check that *arrays* have found nothing wrong. Raises ViolationError.

    *after_crash*: bytes may have been taken as they were.
    """
    for array in arrays:
        sums = array.member_set.sums
        if sums is None:
            continue
        counts = {
            "misfits": sums.misfits,
            "healed": sums.healed,
            "wrong sums": sums.wrong_sums,
            "suspects": len(sums.suspects),
            "unverified": 0 if after_crash else sums.unverified,
        }
        if any(counts.values()):
            found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            raise ViolationError(f"array {array.name}: a false alarm {when}: {found}")


async def live_pages(array: Array) -> list[Place]:
    """Return the pages of written cells that can be read and await no resync."""
    context = array.context
    places = []
    written = context.written.written_stripes(context.layout, 0, context.layout.stripes)
    for stripe in written:
        if context.dirty_bitmap.awaits_resync(stripe):
            continue
        lost = context.member_set.lost_cells(stripe) | context.unwritten_cells(stripe)
        for cell in cells_of(context.code.all_mask & ~lost):
            role, begin = context.position(stripe, cell)
            if role >= 0:
                pages = range(begin, begin + context.chunk_bytes, PAGE_BYTES)
                places += [(stripe, role, at) for at in pages]
    return places


async def check_whole(array: Array, *, complete: bool = True) -> None:
    """Check that each live page of *array* has a sum that fits what lies there; nobody writes.

    Not *complete*: it may have none. Where chunks move, free places have none. Raises
    ViolationError.
    """
    member_set = array.member_set
    sums = member_set.sums
    if sums is None or member_set.read_only:
        return
    await array.context.journal.drain()
    begun = None
    while begun != (begun := (array.context.layout, member_set.role_epoch)):  # no change has ended
        for stripe, role, at in await live_pages(array):
            if begun != (array.context.layout, member_set.role_epoch):
                break
            await _check_page(array, stripe, role, at, complete=complete)
        layout = table_of(array.context.layout)
        if layout is not None:
            await _check_free(array, layout)


async def check_vacant(array: Array) -> None:
    """Check that no page of *array* has a sum that holds nothing. Raises ViolationError.

    What comes to lie there would be compared with the sum of what is gone.
    """
    context, member_set, sums = array.context, array.member_set, array.member_set.sums
    if sums is None or member_set.lost or context.layout.changing:
        return
    size, data = context.chunk_bytes, member_set.config.regions.data
    live: Counter[Role] = Counter()
    for stripe in context.written.written_stripes(context.layout, 0, context.layout.stripes):
        for cell in cells_of(context.code.all_mask & ~context.unwritten_cells(stripe)):
            role, begin = context.position(stripe, cell)
            if role >= 0:
                await sums.load([(role, begin, (), size)])
                live[role] += size // PAGE_BYTES - sums.lacking(role, begin, size)
    pages = data.length // PAGE_BYTES
    for role in map(Role, range(member_set.config.width)):
        await sums.load([(role, data.offset, (), pages * PAGE_BYTES)])
        found = pages - sums.lacking(role, data.offset, pages * PAGE_BYTES)
        if found > live[role]:
            raise ViolationError(f"role {role}: {found - live[role]} pages of nothing have sums")


async def _check_page(array: Array, stripe: Stripe, role: Role, at: int, *, complete: bool) -> None:
    member_set, sums = array.member_set, array.member_set.sums
    assert sums is not None
    begun = array.context.layout, member_set.role_epoch
    found = await member_set.read_home(role, at, PAGE_BYTES)
    await sums.load([(role, at, (), PAGE_BYTES)])
    if not isinstance(found, bytearray) or begun != (array.context.layout, member_set.role_epoch):
        return  # it cannot be read, or is another page by now
    what = ""
    if sums.lacks(role, at, PAGE_BYTES):
        what = "has no sum" if complete else ""
    elif not sums.fits(role, at, found):
        what = "does not fit its sum"
    if what and (stripe, role, at) in await live_pages(array):  # a job may have moved it
        raise ViolationError(f"role {role}: the page at byte {at} of stripe {stripe} {what}")


async def _check_free(array: Array, layout: BundleLayout) -> None:
    """Check that no place of *layout* has sums that holds no chunk of a bundle.

    A chunk that a discard has made unwritten may have some, if a cut came: nothing reads it.
    """
    member_set, size = array.member_set, array.context.chunk_bytes
    sums = member_set.sums
    assert sums is not None
    for role, count in by_role(layout.counts):
        if role in member_set.lost or role in member_set.watermarks:
            continue
        await sums.load([(role, member_set.data_offset, (), count * size)])
        for number in layout.free_chunks(role).tolist():
            begin = member_set.data_offset + number * size
            if sums.lacking(role, begin, size) != size // PAGE_BYTES:
                raise ViolationError(f"role {role}: chunk {number} is free, and has sums")


async def check_copies(array: Array, places: Iterable[Place], members: list[Member]) -> None:
    """Check that the copies of the tables agree about the pages at *places*.

    *array*, which had *members*, has ended cleanly. Raises ViolationError.
    """
    member_set = array.member_set
    config = member_set.config
    sums = sums_of(config)
    if member_set.sums is None or sums is None or not config.clean:
        return
    here = {member.path: member for member in members}
    held = {role: here.get(config.record(role).path_hint) for role in config.roles()}
    begin = config.regions.data.offset
    contents: dict[tuple[Role, int, Role], list[int]] = {}
    for stripe, role, at in places:
        if role >= config.width:
            continue  # its member has left since
        page = (at - begin) // PAGE_BYTES
        number, entry = divmod(page, SUMS_PER_PAGE)
        found: list[tuple[Role, int]] = []
        for on, slot in sums.tables[role].slots:
            holder = Role(on)
            member = None if holder in member_set.lost else held.get(holder)
            if member is None:
                continue
            if (role, number, holder) not in contents:
                content = bytearray(PAGE_BYTES)
                offset = config.regions.sum_table_offset(slot) + number * PAGE_BYTES
                await member.readv(offset, [content])
                seed = seed_of(sums.seed, sums.tables[role].number)
                sectors = decode_sums(content, number, seed)
                contents[role, number, holder] = sectors.sums.reshape(-1).tolist()
            found.append((holder, contents[role, number, holder][entry]))
        values = {value for _, value in found}
        if len(values) > 1:
            raise ViolationError(
                f"copies of a sum differ after a clean end: of byte {at} of role {role}, stripe "
                f"{stripe}: {found}"
            )
