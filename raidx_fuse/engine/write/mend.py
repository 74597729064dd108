"""Mending: pages that a member cannot read are recomputed, written again and read again.

A page that the code gives back is logged like any other write, placed by a checkpoint, and read. A
member on which that fails is failed. A page that nothing gives back, because members are lost or
the layout has no redundancy, stays as it is: the member may read it one day, or the lost member may
return: what it has from before, though it is not rebuilt yet, is asked first (`_mend_by_returned`).
Of pages that misfit their sums, some of the sums may be wrong instead (`_doubted`). It is
*given up* when its place is needed: by a write there, or by a rebuild, a replacement
or a restoration (jobs/rebundle) whose content depends on it. Then, in this order:

1. The pages of data that are lost with it are entered into the list of lost chunks, durably. Not
   those of pages that misfit beside one that is being written: such a page stays as it is, and
   parities are computed so that nothing gives it back (`_stays`).
2. The place is written, as a test: what follows goes through the log, which must not have content
   for a place that cannot be written. The stripe is marked and noted as changed before
   (`Cover.MARKED`): until step 3 its chains do not hold, and absent members lack it.
3. Its content becomes what is being written, or zeros, and the parities of these bytes are computed
   from the data again, lost data as zeros. So the chains of the stripe hold.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain, combinations, islice

import numpy as np
import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import are_known
from raidx_fuse.engine.read_cells import CellReader, hopeless_cells
from raidx_fuse.errors import RaidxError
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of, read_plan
from raidx_fuse.members.unreadable import PAGE_BYTES, Needed, PageLines
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberIO, MemberLostError
from raidx_fuse.store.xor import combine

log = logging.getLogger(__name__)

CHOICES_MAX = 500  # of pages whose sums may be wrong: all of them for eight and less

Page = tuple[Role, int]


class Mender:
    """Mends the unreadable pages of one array; *keep_lost* saves the list of lost chunks.

    *on_mended* is called with the role of a page that can be read again, and whether it could be
    read before, but did not fit its checksum.
    """

    def __init__(self, context: ArrayContext, keep_lost: Callable[[], Awaitable[None]]) -> None:
        self.context = context
        self.keep_lost = keep_lost
        self.on_mended: list[Callable[[Role, bool], None]] = []
        self._lines = PageLines(log)

    async def run(self) -> None:
        """Mend what readers come across (a background task)."""
        unreadable = self.context.member_set.unreadable
        while True:
            await unreadable.stirred.wait()
            for role, page in unreadable.take_stirred():
                if role == unreadable.leaving:
                    continue
                try:
                    await self._visit(Role(role), page)
                except RaidxError as error:
                    unreadable.put_off(role, page)
                    line = f"page {page} of role {role} is not mended: {error}"
                    self._lines.say(logging.ERROR, f"not mended {role}", line)

    async def _visit(self, role: Role, page: int) -> None:
        context = self.context
        unreadable = context.member_set.unreadable
        while True:
            epoch = context.layout_epoch
            found = context.layout.inverse(role, self._chunk(page * PAGE_BYTES))
            if found is None:  # nothing lies there
                unreadable.discard(role, page)
                return
            await context.locks.acquire(found[0])
            try:
                if epoch == context.layout_epoch:
                    await self.mend((found[0],))
                    return
            finally:
                context.locks.release(found[0])

    async def mend(
        self, stripes: Sequence[Stripe], needed: Mapping[Stripe, Needed] | None = None
    ) -> bool:
        """Mend *stripes*, whose locks are held; give up what is *needed* and lost.

        A mended page can be read from its home place afterwards, or its member has failed. Returns
        whether any of their pages was unreadable. In an array that was started read-only, nothing
        is mended. Raises what the members raise.
        """
        if self.context.member_set.read_only:
            return False
        written: list[Page] = []
        found = False
        for stripe in stripes:
            found = found or bool(self._marked(stripe))
            while True:
                try:
                    if returned := await self._mend_by_returned(stripe):
                        await self.context.journal.place()
                        await self._verify(returned)
                    pages = await self._mend(stripe, (needed or {}).get(stripe))
                    break
                except MemberLostError:
                    continue  # another page, or a member: plan again
            written += pages
        if written:
            await self.context.journal.place()
            await self._verify(written)
        return found

    def _chunk(self, offset: int) -> MemberChunk:
        """Return the chunk of a member in which its byte *offset* lies."""
        context = self.context
        return MemberChunk((offset - context.member_set.data_offset) // context.chunk_bytes)

    def _marked(self, stripe: Stripe) -> dict[int, int]:
        """Return byte in the cells -> mask of the cells whose page there is unreadable."""
        context, unreadable = self.context, self.context.member_set.unreadable
        marked: dict[int, int] = {}
        unwritten = context.unwritten_cells(stripe)
        for cell in cells_of(context.code.all_mask):
            role, begin = context.position(stripe, cell)
            if role < 0:
                continue
            pages = unreadable.pages(role, begin, begin + context.chunk_bytes)
            if pages and context.layout.inverse(role, self._chunk(begin)) != (stripe, cell):
                continue  # the place is still that of another cell, which moves
            for page in pages:
                if unwritten >> cell & 1:  # never read; its first write heals it
                    unreadable.discard(role, page)
                    continue
                at = page * PAGE_BYTES - begin
                marked[at] = marked.get(at, 0) | 1 << cell
        return marked

    async def _settled(self, stripe: Stripe) -> dict[int, int]:
        """Return `_marked` without pages that can be read again, once the chains of *stripe* hold.

        Raises MemberLostError.
        """
        context, member_set = self.context, self.context.member_set
        for at, cells in self._marked(stripe).items():
            for cell in cells_of(cells):  # a write may have healed it
                role, begin = context.position(stripe, cell)
                page = (begin + at) // PAGE_BYTES
                if await member_set.probe(role, page) is None:
                    member_set.unreadable.discard(role, page)
                    if member_set.sums is not None:
                        member_set.sums.note_healed(role, page * PAGE_BYTES)
        marked = self._marked(stripe)
        if not marked:
            return {}
        if context.dirty_bitmap.guarded:  # until then its chains may not hold
            await context.dirty_bitmap.finish((stripe,))
        await context.journal.settle((stripe,))
        return marked

    async def _mend_by_returned(self, stripe: Stripe) -> list[Page]:
        """Mend what nothing gives back but members that are not rebuilt yet; return these pages.

        A member that was absent may have the content from before. A page of it that fits its sum is
        right. Other pages of it are used only to solve a page that has a sum, which must fit.
        Raises MemberLostError.
        """
        context, member_set = self.context, self.context.member_set
        sums, overlay = member_set.sums, member_set.overlay
        absent = context.layout.lost_cells(stripe, member_set.lost_at(stripe))
        places = {cell: context.position(stripe, cell) for cell in cells_of(absent)}
        places = {cell: at for cell, at in places.items() if at[0] in member_set.watermarks}
        if sums is None or not places or not self._marked(stripe):
            return []
        marked = await self._settled(stripe)
        epoch = member_set.role_epoch
        requests: list[MemberIO] = []
        for at, cells in sorted(marked.items()):
            wrong = cells & hopeless_cells(context, stripe, at)
            held: dict[CellIndex, Bytes] = {}
            right: dict[CellIndex, Bytes] = {}
            for cell, (role, begin) in places.items() if wrong else ():
                found = await member_set.read_home(role, begin + at, PAGE_BYTES)
                newer = overlay.covers(role, begin + at, begin + at + PAGE_BYTES)
                if newer or not isinstance(found, bytearray):
                    continue
                held[cell] = np.frombuffer(found, np.uint8)
                await sums.load([(role, begin + at, (), PAGE_BYTES)])
                says = context.says_what_is_lost(stripe, cell, at) and sums.has(role, begin + at)
                if says and sums.fits(role, begin + at, found):
                    right[cell] = held[cell]
            for cell in cells_of(wrong):
                role, begin = context.position(stripe, cell)
                contents = await self._solved_by(stripe, at, (cell,), right)
                await sums.load([(role, begin + at, (), PAGE_BYTES)])
                if not contents and sums.has(role, begin + at):
                    contents = await self._solved_by(stripe, at, (cell,), held)
                if contents and member_set.queues[role] is not None:
                    requests.append((role, begin + at, [contents[cell].data], PAGE_BYTES))
        if requests:
            await context.write_cells(stripe, requests, epoch, Cover.SAME)
        return [(role, offset // PAGE_BYTES) for role, offset, _, _ in requests]

    async def _mend(self, stripe: Stripe, needed: Needed | None) -> list[Page]:
        """Mend one stripe; return the pages that were written. Raises MemberLostError."""
        context, member_set = self.context, self.context.member_set
        marked = await self._settled(stripe)
        epoch = member_set.role_epoch
        requests: list[MemberIO] = []
        cover = Cover.SAME
        async with AsyncExitStack() as marks:  # until the chains of what is given up hold again
            for at, cells in sorted(marked.items()):
                hopeless = hopeless_cells(context, stripe, at)
                is_needed = needed is not None and needed.low < at + PAGE_BYTES and at < needed.high
                contents = await self._doubted(stripe, at, cells & hopeless)
                if contents:
                    cells = self._marked(stripe).get(at, 0)
                    hopeless = hopeless_cells(context, stripe, at)
                    if cells & hopeless & ~sum(1 << cell for cell in contents) and is_needed:
                        contents = {}  # given up together
                    hopeless &= ~sum(1 << cell for cell in contents)
                if not (cells & hopeless and is_needed):
                    left = cells & ~hopeless & ~sum(1 << cell for cell in contents)
                    solved = await self._solved(stripe, at, left)
                    fitting = await self._fitting(stripe, at, solved)
                    refuted = sum(1 << cell for cell in solved if cell not in fitting)
                    hopeless |= refuted & self._marked(stripe).get(at, 0)
                    contents |= fitting
                may_stay = needed and not needed.moves and self._may_stay(stripe, at, cells)
                if cells & hopeless and is_needed and not may_stay:
                    assert needed is not None
                    cover = Cover.MARKED
                    await marks.enter_async_context(context.cells.marked((stripe,)))
                    contents = await self._given_up(stripe, at, cells, hopeless, needed)
                for cell, content in contents.items():
                    role, begin = context.position(stripe, cell)
                    if member_set.queues[role] is not None:
                        requests.append((role, begin + at, [content.data], PAGE_BYTES))
            if not requests:
                return []
            await context.write_cells(stripe, requests, epoch, cover)
        return [(role, offset // PAGE_BYTES) for role, offset, _, _ in requests]

    def _may_stay(self, stripe: Stripe, at: int, cells: int) -> bool:
        """Return whether *cells* may keep the page from byte *at* on though it misfits.

        Nothing depends on it where the code has no chains: what is written replaces it.
        """
        context, sums = self.context, self.context.member_set.sums
        if sums is None or context.code.parity_count:
            return False
        places = [context.position(stripe, cell) for cell in cells_of(cells)]
        return all(sums.is_suspect(role, begin + at) for role, begin in places)

    async def _solved(self, stripe: Stripe, at: int, cells: int) -> dict[CellIndex, Bytes]:
        """Return the newest content of the page from *at* on of *cells* (a mask)."""
        contents = {cell: np.empty(PAGE_BYTES, np.uint8) for cell in cells_of(cells)}
        reader = CellReader(self.context, compares=False)
        reader.add(stripe, {cell: page.data for cell, page in contents.items()}, at, PAGE_BYTES)
        await reader.run()
        return contents

    async def _fitting(
        self, stripe: Stripe, at: int, contents: dict[CellIndex, Bytes]
    ) -> dict[CellIndex, Bytes]:
        """Return those of *contents*, solved pages from byte *at* on, that fit their sums.

        If one equals what its member has, and all that gives it back fits sums, its own sum was
        wrong, and nothing has to be written. If neither fits, nothing is written either.
        """
        member_set = self.context.member_set
        sums = member_set.sums
        if sums is None:
            return contents
        fitting = {}
        for cell, content in contents.items():
            role, begin = self.context.position(stripe, cell)
            await sums.load([(role, begin + at, (), PAGE_BYTES)])
            newer = member_set.overlay.covers(role, begin + at, begin + at + PAGE_BYTES)
            if newer or sums.fits(role, begin + at, content.data):
                fitting[cell] = content
                continue
            where = self.context.where(stripe, (cell,))
            found = await member_set.read_home(role, begin + at, PAGE_BYTES)
            same = isinstance(found, bytearray) and found == content.tobytes()
            terms = self._terms(stripe, at, contents, cell)
            # Else the same bit may have flipped in both, and shows in neither.
            if same and await are_known(self.context, sums, stripe, terms, at):
                log.error("the checksum of a page was wrong, its bytes are right: %s", where)
                await sums.load([(role, begin + at, (), PAGE_BYTES)])
                sums.replace(role, begin + at, content.data)
                member_set.unreadable.discard(role, (begin + at) // PAGE_BYTES)
            else:
                log.error("a page and what the others give back contradict its checksum: %s", where)
        return fitting

    def _terms(self, stripe: Stripe, at: int, solved: Iterable[CellIndex], cell: CellIndex) -> int:
        """Return the mask of the cells that give back the page from byte *at* on of *cell*.

        It was *solved* with others.
        """
        context = self.context
        lost = context.member_set.lost_cells(stripe, at, at + PAGE_BYTES)
        mask = sum(1 << one for one in solved)
        plan = read_plan(context.code, mask, lost | mask, context.unwritten_cells(stripe))
        (terms,) = (output.old for output in plan.outputs if output.cell == cell)
        return sum(1 << source for source in terms)

    async def _doubted(self, stripe: Stripe, at: int, cells: int) -> dict[CellIndex, Bytes]:
        """Return pages of *cells*, which misfit, that fit if the bytes of others of them are right.

        They are more than the code gives back, so perhaps the sums of some are wrong instead. One
        without which nothing would fit is right, and its sum is replaced.
        """
        context, member_set = self.context, self.context.member_set
        sums = member_set.sums
        suspects: dict[CellIndex, Bytes] = {}
        for cell in cells_of(cells) if sums is not None else ():
            role, begin = context.position(stripe, cell)
            if sums is None or not sums.is_suspect(role, begin + at):
                continue
            found = await member_set.read_home(role, begin + at, PAGE_BYTES)
            if isinstance(found, bytearray):
                suspects[cell] = np.frombuffer(found, np.uint8)
        # Few wrong ones first. Of codes with many rows there are millions of choices.
        choices = chain.from_iterable(
            combinations(suspects, count) for count in range(1, len(suspects))
        )
        for wrong in islice(choices, CHOICES_MAX):
            believed = {cell: suspects[cell] for cell in suspects if cell not in wrong}
            contents = await self._solved_by(stripe, at, wrong, believed)
            if contents:
                return contents
            await trio.lowlevel.checkpoint()
        return {}

    async def _solved_by(
        self,
        stripe: Stripe,
        at: int,
        wrong: Sequence[CellIndex],
        believed: Mapping[CellIndex, Bytes],
    ) -> dict[CellIndex, Bytes]:
        """Return the pages of the *wrong* cells by what others hold, {} if one does not fit.

        Some of these are *believed*: if they are needed, what they hold is right.
        """
        context, code, sums = self.context, self.context.code, self.context.member_set.sums
        assert sums is not None
        lost = context.member_set.lost_cells(stripe, at, at + PAGE_BYTES)
        lost &= ~sum(1 << cell for cell in believed)
        mask = sum(1 << cell for cell in wrong)
        try:
            plan = read_plan(code, mask, lost, context.unwritten_cells(stripe))
        except Unrecoverable:
            return {}
        pages = dict(believed)
        pages |= await self._solved(stripe, at, sum(1 << c for c in plan.reads if c not in pages))
        contents: dict[CellIndex, Bytes] = {}
        for output in plan.outputs:
            contents[output.cell] = np.zeros(PAGE_BYTES, np.uint8)
            combine(contents[output.cell], [pages[cell] for cell in output.old])
            role, begin = context.position(stripe, output.cell)
            await sums.load([(role, begin + at, (), PAGE_BYTES)])
            if not sums.fits(role, begin + at, contents[output.cell].data):
                return {}
        for output in plan.outputs:
            needed = [cell for cell in output.old if cell in believed]
            others = sum(1 << cell for cell in output.old if cell not in believed)
            if len(needed) != 1 or not await are_known(context, sums, stripe, others, at):
                continue  # two wrong ones may even out
            role, begin = context.position(stripe, needed[0])
            if sums.is_suspect(role, begin + at):
                where = context.where(stripe, (needed[0],))
                log.error("the checksum of a page was wrong, its bytes are right: %s", where)
                await sums.load([(role, begin + at, (), PAGE_BYTES)])
                sums.replace(role, begin + at, believed[needed[0]].data)
                context.member_set.unreadable.discard(role, (begin + at) // PAGE_BYTES)
        return contents

    async def _given_up(
        self, stripe: Stripe, at: int, cells: int, hopeless: int, needed: Needed
    ) -> dict[CellIndex, Bytes]:
        """Give the *hopeless* cells up; return the page of the marked *cells* and all parities."""
        context, code = self.context, self.context.code
        new: dict[CellIndex, Bytes] = {}
        stays = await self._stays(stripe, at, cells & hopeless & code.data_mask, needed)
        for cell in cells_of(cells & hopeless):
            if cell in stays:
                continue
            page = needed.new(cell, at)
            new[cell] = np.zeros(PAGE_BYTES, np.uint8)
            if page is not None:
                new[cell][:] = np.frombuffer(page, np.uint8)
        gone = [
            cell
            for cell in cells_of(hopeless & code.data_mask)
            if cell not in stays and (not cells >> cell & 1 or needed.new(cell, at) is None)
        ]
        if gone:
            lost = sum(1 << cell for cell in gone)
            await self.give_up(stripe, lost, at, at + PAGE_BYTES)
        test: list[MemberIO] = []
        for cell, content in new.items():
            role, begin = context.position(stripe, cell)
            test.append((role, begin + at, [content.data], PAGE_BYTES))
        try:
            await context.cells.write(test, Cover.SAME, (stripe,))
        except RaidxError:
            # Pages that stay unreadable take nothing with them: what readers see is what it was.
            for role, place, _, _ in test:
                if await context.member_set.probe(role, place // PAGE_BYTES) is None:
                    context.note_torn((stripe,))
                    break
            raise
        unwritten = context.unwritten_cells(stripe)
        known = await self._solved(stripe, at, code.data_mask & ~hopeless & ~unwritten)
        contents = {cell: known[cell] for cell in cells_of(cells & ~hopeless) if cell in known}
        contents |= {cell: page for cell, page in new.items() if cell < code.data_count}
        known |= contents | stays
        lost_roles = context.layout.lost_cells(stripe, context.member_set.lost_at(stripe))
        for parity, support in enumerate(code.support):
            cell = CellIndex(code.data_count + parity)
            if (unwritten | lost_roles) >> cell & 1:
                continue
            contents[cell] = np.zeros(PAGE_BYTES, np.uint8)
            combine(contents[cell], [known[c] for c in cells_of(support) if c in known])
        return contents

    async def _stays(
        self, stripe: Stripe, at: int, cells: int, needed: Needed
    ) -> dict[CellIndex, Bytes]:
        """Return what the parities have for those data *cells* that a write beside them leaves.

        They misfit, and stay so: nothing but this page of their chunks is lost. So the code must
        give back neither what they hold, which would prove their sums wrong, nor what fits: the
        complement of what they hold.
        """
        context, member_set = self.context, self.context.member_set
        sums, stays = member_set.sums, dict[CellIndex, Bytes]()
        left = [cell for cell in cells_of(cells) if needed.new(cell, at) is None]
        if sums is None or len(left) == cells.bit_count():
            return stays  # a job needs them
        for cell in left:
            role, begin = context.position(stripe, cell)
            found = await member_set.read_home(role, begin + at, PAGE_BYTES)
            if isinstance(found, bytearray) and sums.is_suspect(role, begin + at):
                stays[cell] = ~np.frombuffer(found, np.uint8)
        return stays

    async def give_up(self, stripe: Stripe, cells: int, low: int, high: int) -> None:
        """List the pages in bytes *low* .. *high* - 1 of the data *cells* as lost, durably.

        *cells* is a mask. Raises RaidxError.
        """
        context = self.context
        where = context.where(stripe, cells_of(cells))
        log.error("%s, bytes %d to %d, cannot be read and is lost", where, low, high - 1)
        context.lose_pages(stripe, cells, low, high)
        await self.keep_lost()

    async def _verify(self, written: Sequence[Page]) -> None:
        """Read the pages *written*, which are at home; a member that still cannot is failed."""
        member_set = self.context.member_set
        for role, page in written:
            queue = member_set.queues[role]
            if queue is None or not member_set.unreadable.pages(
                role, page * PAGE_BYTES, page * PAGE_BYTES + 1
            ):
                continue
            error = await member_set.probe(role, page)
            if error is None:
                line = f"{queue.member.path}: page {page} is mended"
                self._lines.say(logging.WARNING, f"mended {role}", line)
                member_set.unreadable.discard(role, page)
                sums, at = member_set.sums, page * PAGE_BYTES
                misfitted = sums is not None and sums.is_suspect(role, at)
                if sums is not None:
                    sums.note_healed(role, at)
                for hook in self.on_mended:
                    hook(role, misfitted)
            elif member_set.queues[role] is queue:
                member_set.fail(role, f"{error.message}, though it was written again")
