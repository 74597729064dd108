"""Scrub: read every written stripe, check its parity chains, report (and repair) violations.

Violated chains locate the wrong cells (`raidx_fuse.layouts.codes.error_location`): three copies
outvote one wrong copy; two parities locate one cell, or several cells of one member. `scrub
--repair` fixes every inconsistency that it can attribute to one member. Where the chains cannot
tell which chunk is wrong (single parity, two copies, two wrong cells in one sector), it trusts the
data, rewrites the parity as md does, and reports those stripes separately (*assumed*). After a
crash the same job runs over the stripes that were in flight (resync.py).

In an array with sums, pages are compared with theirs as they are read, and counted by member. What
misfits is healed as by any other read; a scrub that does not *heal* reads it as it lies there, so
that chains which do not hold name its member, and nothing is written over it. Chains are then
checked by the sums that all their pages fit: the CRC of a XOR follows from the CRCs. Where a page
has none, or its newest content is in the log, and where sums contradict, the bytes are combined.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.errors import RaidxError, UnrecoverableError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.jobs.fill_sums import compare_sums, count_lacking, fill_sums
from raidx_fuse.jobs.job import WINDOW_BYTES, Job, is_idle
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.jobs.strips import Place, Strips, batches, read_all
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.codes.error_location import locate
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, stripe_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of, read_plan
from raidx_fuse.loop.tasks import rest
from raidx_fuse.settings import SCRUB_EACH, SETTINGS
from raidx_fuse.store.buffers import BLOCK_BYTES, Bytes
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberIO
from raidx_fuse.store.sums import Misfits, Page
from raidx_fuse.store.xor import combine

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail, Mismatch, ScrubbedPages, SuspectMember

FINDINGS_KEPT = 1000

Chains = tuple[tuple[Place, ...], ...]
log = logging.getLogger(__name__)

IDLE_S = 1.0
LOOK_S = 10.0  # between two looks; the shortest interval is 60 s
SAVES = 8  # in an interval: no more of it is lost in a crash
JOB_KEY, SINCE_SCRUB = "tuner", "since_scrub_s"  # in the superblock's `jobs`, where it always was


def holds(rows: Sequence[Bytes], scratch: Bytes, equal: Any) -> bool:
    """Return whether the XOR of flat *rows* is zero; *scratch* and *equal* are work buffers."""
    size = rows[0].shape[0]
    for start in range(0, size, BLOCK_BYTES):
        block = [row[start : start + BLOCK_BYTES] for row in rows]
        length = block[0].shape[0]
        if len(block) == 1:
            if block[0].any():
                return False
            continue
        if len(block) == 2:
            total = block[0]
        else:
            total = scratch[:length]
            combine(total, block[:-1])
        same = equal[: length // 8]
        np.equal(total.view(np.uint64), block[-1].view(np.uint64), out=same)
        if not same.all():
            return False
    return True


class Scrub(Job):
    """Checks all written stripes; with *repair*, corrects what it can.

    Without *heals* pages that do not fit their sums stay as they are.
    """

    kind = "scrub"
    solves_lost = False  # a scrub repairs cells that are present, not lost ones
    fills_sums = True  # of pages that have none, if their chains hold

    def __init__(
        self, context: ArrayContext, job_id: int, repair: bool, *, heals: bool = True
    ) -> None:
        super().__init__(context, job_id)
        self.repair = repair
        self._misfits = Misfits(stay=not (heals or repair))  # of the present window
        self._misfit: Counter[Role] = Counter()
        self._healed: Counter[Role] = Counter()
        self._lacking: Counter[Role] = Counter()
        self._damaged: Counter[Role] = Counter()
        self.mismatches = self.repaired = self.assumed = self.unchecked = 0
        self.findings: list[Mismatch] = []
        self._wrong: Counter[Role] = Counter()
        self._mended: Counter[Role] = Counter()
        self._wrong_stripes: set[Stripe] = set()
        self._held_by_sums: set[Stripe] = set()  # of the present window
        self._unchained_stripes: list[Stripe] = []  # of the present window
        self._next = 0
        self._role_epoch = 0
        strip_bytes = context.code.rows * context.chunk_bytes
        self._stripe_bytes = context.code.columns * strip_bytes
        self.window = max(1, WINDOW_BYTES // strip_bytes)
        self._chains: dict[tuple[tuple[int, ...], int, int], Chains] = {}
        self._scratch = np.empty(BLOCK_BYTES, dtype=np.uint8)
        self._equal = np.empty(BLOCK_BYTES // 8, dtype=np.bool_)

    def detail(self) -> JobDetail:
        return {
            "repair": self.repair,
            "mismatches": self.mismatches,
            "repaired": self.repaired,
            "assumed": self.assumed,
            "uncorrected": self.mismatches - self.repaired if self.repair else self.mismatches,
            "unchecked_stripes": self.unchecked,
            "members": self._by_member(),
            "findings": self.findings,
        }

    def _by_member(self) -> list[ScrubbedPages]:
        """Return chunks, where it is known on which member they were wrong, and pages, by role."""
        with_sums = self.context.member_set.sums is not None
        roles = {*self._wrong, *self._misfit, *self._lacking}
        rows: list[ScrubbedPages] = []
        for role in sorted(roles):
            row: ScrubbedPages = {
                "role": int(role),
                "wrong": self._wrong[role],
                "repaired": self._mended[role],
            }
            if with_sums:
                row["misfits"], row["healed"] = self._misfit[role], self._healed[role]
                row["without_sums"], row["damaged"] = self._lacking[role], self._damaged[role]
            rows.append(row)
        return rows

    async def prepare(self) -> None:
        """Count the written stripes on all members."""
        context = self.context
        live = context.written.count_live(context.layout, 0, context.layout.stripes)
        self.total_bytes = live * self._stripe_bytes

    def next_window(self) -> list[Stripe] | None:
        written, layout = self.context.written, self.context.layout
        return written.written_stripes(layout, self._next, self.window) or None

    def replan(self) -> None:
        self._chains.clear()

    async def work(self, stripes: list[Stripe]) -> int:
        """Check *stripes* and, with *repair*, correct them; return the progress in bytes."""
        await self.check(stripes)
        self._next = stripes[-1] + 1
        return len(stripes) * self._stripe_bytes

    async def check(self, stripes: list[Stripe]) -> None:
        """Check the written *stripes*. Raises MemberLostError as well as RaidxError."""
        context = self.context
        self._note_suspects(stripes)
        await self.mend(stripes)
        self._role_epoch = context.member_set.role_epoch
        self._held_by_sums.clear()
        self._unchained_stripes.clear()
        for batch in batches(context, stripes, self._chains_of):
            wanted = []
            for first, count, chains in batch:
                strips = Strips(context, first, count)
                places = {place for chain in chains for place in chain}
                wanted.append((strips, sorted(places), chains))
            reads = [(strips, places) for strips, places, _ in wanted]
            await read_all(context, reads, self._misfits)
            for strips, _places, chains in wanted:
                await self._check_run(strips, chains)
        if self.repair and not context.member_set.lost:
            context.dirty_bitmap.note_repaired(stripes)
        if self.fills_sums:
            member_set = context.member_set
            if not context.code.parity_count or member_set.lost or member_set.unreadable:
                await compare_sums(context, stripes, self._unchained, self._misfits)
            self.unchecked -= await self._compared_whole()
            proved = {stripe for stripe in stripes if self._is_proved(stripe)}
            lacking = await count_lacking(context, [s for s in stripes if s not in proved])
            proved -= self._held_by_sums  # nothing lacks there
            lacking += await fill_sums(context, sorted(proved), self._misfits)
            await self._count_pages(stripes)
            self._lacking += lacking

    # -- pages and their sums, by member -------------------------------------------------------

    def _note_suspects(self, stripes: list[Stripe]) -> None:
        """Count the pages of *stripes* that misfit, and that readers came across before."""
        sums, unreadable = self.context.member_set.sums, self.context.member_set.unreadable
        if sums is None or not sums.suspects:
            return
        for stripe in stripes:
            for cell in cells_of(self.context.code.all_mask):
                role, begin = self.context.position(stripe, cell)
                for page in unreadable.pages(role, begin, begin + self.context.chunk_bytes):
                    if sums.is_suspect(role, page * PAGE_BYTES):
                        self._misfits.pages.add(sums.page_at(role, page * PAGE_BYTES))

    async def _count_pages(self, stripes: list[Stripe]) -> None:
        """Count what has become of the pages of *stripes* that did not fit, and forget them."""
        sums = self.context.member_set.sums
        if sums is None or not self._misfits.pages:
            return
        stays = self._misfits.stay
        if not stays:
            await self.mend(stripes)  # what was found since they were mended
        pages = self._misfits.take()
        left = {page for page in pages if stays or page in sums.suspects}
        hopeless = {page for page in left if self._is_hopeless(page, left)}
        for page in pages:
            self._misfit[page[0]] += 1
            self._healed[page[0]] += page not in left
            self._damaged[page[0]] += page in hopeless

    def _is_hopeless(self, page: Page, left: set[Page]) -> bool:
        """Return whether the code cannot give *page* back, as those *left* are wrong, too."""
        context, member_set = self.context, self.context.member_set
        sums = member_set.sums
        assert sums is not None
        chunk, inner = divmod(page[1] * PAGE_BYTES, context.chunk_bytes)
        found = context.layout.inverse(page[0], MemberChunk(chunk))
        if found is None:
            return False
        stripe, mine = found
        lost = member_set.lost_cells(stripe, inner, inner + PAGE_BYTES)
        for cell in cells_of(context.code.all_mask):
            role, begin = context.position(stripe, cell)
            if role >= 0 and sums.page_at(role, begin + inner) in left:
                lost |= 1 << cell
        try:
            read_plan(context.code, 1 << mine, lost, context.unwritten_cells(stripe))
        except Unrecoverable:
            return True
        # The mender has tried: what the others give does not fit either.
        return not (self._misfits.stay or member_set.read_only)

    async def _compared_whole(self) -> int:
        """Return how many stripes without a chain have all their cells, which have sums."""
        context, compared = self.context, 0
        for stripe in self._unchained_stripes if context.member_set.sums is not None else ():
            if not context.member_set.lost_cells(stripe):
                compared += not (await count_lacking(context, [stripe])).total()
        return compared

    def _unchained(self, stripe: Stripe) -> int:
        """Return the mask of the cells of *stripe* that no chain which was checked has."""
        chained = {place for chain in self._chains_of(stripe) for place in chain}
        return sum(1 << cell for cell, at in enumerate(self._places(stripe)) if at not in chained)

    def _is_proved(self, stripe: Stripe) -> bool:
        """Return whether every cell of *stripe* is in chains that were checked, and hold.

        Where the code has no chains, nothing can be: its pages are taken as they are.
        """
        if not self.context.code.parity_count:
            return True
        return not (
            stripe in self._wrong_stripes
            or self.context.member_set.lost
            or self.context.member_set.lost_cells(stripe)
        )

    async def mend(self, stripes: list[Stripe]) -> None:
        """Mend what cannot be read in *stripes*; what cannot be mended is not checked."""
        await self.context.member_set.unreadable.mend(stripes)

    def _chains_of(self, stripe: Stripe) -> Chains:
        """Return the chains that can be checked, as places; cached by (roles, lost, unwritten)."""
        context = self.context
        lost = context.member_set.lost_cells(stripe)
        unwritten = context.unwritten_cells(stripe)
        key = (context.layout.roles(stripe), lost, unwritten)
        known = self._chains.get(key)
        if known is None:
            places = self._places(stripe)
            masks = _without(lost, [mask & ~unwritten for mask in context.code.chain_masks])
            chains = (tuple(sorted(places[c] for c in cells_of(mask))) for mask in masks)
            known = self._chains[key] = tuple(sorted(chains))
        return known

    def _places(self, stripe: Stripe) -> list[Place]:
        """Return the place of each cell of *stripe*, in the order of their indexes."""
        roles = self.context.layout.roles(stripe)
        return [(roles[column], row) for row, column in self.context.code.cells]

    async def _check_run(self, strips: Strips, chains: Chains) -> None:
        first, count = strips.first, strips.count
        if not chains:
            self.unchecked += count
            self._unchained_stripes += stripe_range(first, first + count)
            return
        if self._hold_by_sums(strips, chains):
            self._held_by_sums.update(stripe_range(first, first + count))
            strips.release()
            return
        bad = []
        for chain in chains:
            rows = [strips.array(place) for place in chain]
            if rows[0].ndim == 1:
                if holds(rows, self._scratch, self._equal):
                    continue
            elif all(
                holds([row[i] for row in rows], self._scratch, self._equal) for i in range(count)
            ):
                continue
            bad.append(chain)
        if bad:
            for index in range(count):
                await self._judge(Stripe(first + index), chains, strips, index)
        strips.release()

    def _hold_by_sums(self, strips: Strips, chains: Chains) -> bool:
        """Return whether *chains* hold by the sums that their pages, as they were read, fit.

        The CRC of a XOR of pages follows from their CRCs, so the bytes need not be combined.
        """
        if self._misfits.pages:  # they were read as they lie there
            return False
        crcs: dict[Place, Bytes] = {}
        for place in {place for chain in chains for place in chain}:
            found = strips.crcs(place)
            if found is None:
                return False
            crcs[place] = found
        for chain in chains:
            rows = [crcs[place] for place in chain]
            total = np.empty_like(rows[0])
            combine(total, rows)
            if total.any():
                return False
        return True

    # -- a stripe that may be inconsistent -----------------------------------------------------

    async def _judge(self, stripe: Stripe, chains: Chains, strips: Strips, index: int) -> None:
        """Find what is wrong in one stripe, report it, and with *repair* correct it."""
        chunk_bytes = self.context.chunk_bytes
        cells: dict[Place, Bytes] = {}
        for place in {place for chain in chains for place in chain}:
            rows = strips.array(place)
            cells[place] = rows.reshape(strips.count, chunk_bytes)[index].copy()
        syndromes = []
        for chain in chains:
            syndrome = np.empty(chunk_bytes, dtype=np.uint8)
            combine(syndrome, [cells[place] for place in chain])
            syndromes.append(syndrome)
        violated = [
            chain for chain, syndrome in zip(chains, syndromes, strict=True) if syndrome.any()
        ]
        if not violated:
            return
        self.mismatches += 1
        self._wrong_stripes.add(stripe)
        if self.context.member_set.sums is not None:
            cells_at = [self.context.position(stripe, cell) for cell in self._cells_there(stripe)]
            size = self.context.chunk_bytes
            await self.context.member_set.sums.load((*place, (), size) for place in cells_at)
        by_sums = self._without_sums(stripe, cells, chains, syndromes)
        wrong_cells = self.liars(stripe, chains, syndromes) if by_sums is None else by_sums
        requests: list[MemberIO] = []
        assumed = False
        if wrong_cells:
            places = self._places(stripe)
            for place, error in wrong_cells.items():
                combine(cells[place], (cells[place], error))
            requests = [
                self._write_of(stripe, places.index(place), cells[place]) for place in wrong_cells
            ]
        elif by_sums is None:
            self.note_undecided(stripe)
            await self._complete(stripe, cells)
            requests, assumed = self._rewrite_parity(stripe, cells)
        if self.repair and requests:
            await self.context.write_cells(stripe, requests, self._role_epoch, Cover.SAME)
            self.repaired += 1
            self.assumed += assumed
            if not assumed:
                self._wrong_stripes.discard(stripe)
        repaired = bool(self.repair and requests)
        roles = [role for role, _ in wrong_cells]
        self._wrong.update(roles)
        self._mended.update(roles if repaired else ())
        self._report(stripe, violated, sorted(wrong_cells), syndromes, repaired, assumed)

    def _cells_there(self, stripe: Stripe) -> Sequence[CellIndex]:
        """Return the cells of *stripe* that are written and can be read."""
        unwritten = self.context.unwritten_cells(stripe)
        lost = self.context.member_set.lost_cells(stripe)
        return cells_of(self.context.code.all_mask & ~unwritten & ~lost)

    def _without_sums(
        self,
        stripe: Stripe,
        cells: dict[Place, Bytes],
        chains: Chains,
        syndromes: list[Bytes],
    ) -> dict[Place, Bytes] | None:
        """Return {place: error} of the pages that contradict pages which fit their sums.

        The pages of a stripe that fit their sums are right. If the code gives back those that have
        none, or do not fit them and stay, these are the wrong ones; else those of them that the
        *chains* blame by their *syndromes*. If they blame none, or one that fits, nobody knows, and
        the result is empty. If all fit, parities are wrong, though they have sums: data has those
        of what was written, and a parity that of what it was computed from. None if no page fits a
        sum, or a write to the stripe has failed: then chains alone must do.
        """
        context, code = self.context, self.context.code
        sums, dirty = context.member_set.sums, context.dirty_bitmap
        if sums is None or stripe in dirty.torn or dirty.awaits_resync(stripe):
            return None
        unwritten, lost = context.unwritten_cells(stripe), context.member_set.lost_cells(stripe)
        places, errors = self._places(stripe), dict[Place, Bytes]()
        wrong_pages = self._misfits.pages if self._misfits.stay else ()
        has_sums = False
        wrong = np.flatnonzero(np.bitwise_or.reduce(np.stack(syndromes)))
        for page in np.unique(wrong // PAGE_BYTES).tolist():
            part = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
            blank = 0
            for cell in self._cells_there(stripe):
                role, offset = context.position(stripe, cell)
                at = offset + page * PAGE_BYTES
                if sums.lacks(role, at, PAGE_BYTES) or sums.page_at(role, at) in wrong_pages:
                    blank |= 1 << cell
                else:
                    has_sums = True
            blank = blank or code.all_mask & ~(code.data_mask | unwritten | lost)
            found = self._given_back(stripe, blank, cells, part)
            if found is None:
                found = locate(chains, [syndrome[part] for syndrome in syndromes])
                if not found or not found.keys() <= {places[cell] for cell in cells_of(blank)}:
                    return {} if has_sums else None
            for place, error in found.items():
                errors.setdefault(place, np.zeros(context.chunk_bytes, np.uint8))[part] = error
        if not has_sums:
            return None
        return {place: error for place, error in errors.items() if error.any()}

    def _given_back(
        self, stripe: Stripe, blank: int, cells: dict[Place, Bytes], part: slice
    ) -> dict[Place, Bytes] | None:
        """Return {place: error} of *part* of the cells *blank* by what the code gives back.

        None if it does not give back all of them.
        """
        context, places = self.context, self._places(stripe)
        lost, unwritten = context.member_set.lost_cells(stripe), context.unwritten_cells(stripe)
        try:
            plan = read_plan(context.code, blank, lost | blank, unwritten)
        except Unrecoverable:
            return None
        errors: dict[Place, Bytes] = {}
        for output in plan.outputs:
            place, terms = places[output.cell], [places[cell] for cell in output.old]
            if place not in cells or not cells.keys() >= set(terms):
                return None
            errors[place] = np.zeros(PAGE_BYTES, np.uint8)
            combine(errors[place], [cells[each][part] for each in (place, *terms)])
        return errors

    def liars(self, stripe: Stripe, chains: Chains, syndromes: list[Bytes]) -> dict[Place, Bytes]:
        """Return {place: error} of the wrong cells of *stripe*, {} if they cannot be located.

        A stripe that awaits the resync locates nothing: its parity may belong to content that was
        never acknowledged.
        """
        return {} if self.context.dirty_bitmap.awaits_resync(stripe) else locate(chains, syndromes)

    def note_undecided(self, stripe: Stripe) -> None:
        """Handle a *stripe* whose chains contradict each other without locating the wrong cell."""

    def _write_of(self, stripe: Stripe, cell: int, content: Bytes) -> MemberIO:
        role, offset = self.context.position(stripe, CellIndex(cell))
        return role, offset, [content.data], self.context.chunk_bytes

    async def _complete(self, stripe: Stripe, cells: dict[Place, Bytes]) -> None:
        """Add to *cells* the data cells that no checkable chain holds; a lost member breaks chains.

        A resync also solves the lost cells, by one of several possible chains: a torn write has
        left them undecided, and unless the remaining cells are made consistent, the next failure
        loses whole cells.
        """
        context = self.context
        data_mask, places = context.code.data_mask, self._places(stripe)
        unwritten = context.unwritten_cells(stripe)
        lost = context.member_set.lost_cells(stripe) & ~unwritten
        into = {
            cell: np.empty(context.chunk_bytes, dtype=np.uint8)
            for cell in cells_of(data_mask & ~unwritten)
            if places[cell] not in cells and (self.solves_lost or not lost >> cell & 1)
        }
        try:
            reader = self._reader(stripe, into)
        except UnrecoverableError:
            for cell in cells_of(lost & data_mask):
                into.pop(cell, None)
            reader = self._reader(stripe, into)
        await reader.run()  # a degraded read returns this; the other chains are made to agree
        for cell, content in into.items():
            cells[places[cell]] = content

    def _reader(self, stripe: Stripe, into: dict[CellIndex, Bytes]) -> CellReader:
        """Return a reader of the cells *into*; only what is unreadable of them is solved."""
        reader = CellReader(self.context)
        reader.add(stripe, {cell: content.data for cell, content in into.items()})
        return reader

    def _rewrite_parity(
        self, stripe: Stripe, cells: dict[Place, Bytes]
    ) -> tuple[list[MemberIO], bool]:
        """Return (writes that recompute the parities, True); [], False if data are missing."""
        context = self.context
        code, places = context.code, self._places(stripe)
        unwritten = context.unwritten_cells(stripe)
        lost = context.layout.lost_cells(stripe, context.member_set.lost_at(stripe))
        requests: list[MemberIO] = []
        for parity, support in enumerate(code.support):
            cell = code.data_count + parity
            if (unwritten | lost) >> cell & 1:
                continue
            sources = support & ~unwritten
            if any(places[c] not in cells for c in cells_of(sources & lost)):
                return [], False
            content = np.zeros(context.chunk_bytes, dtype=np.uint8)
            combine(content, [cells[places[c]] for c in cells_of(sources)])
            known = cells.get(places[cell])
            if known is None or not np.array_equal(content, known):
                requests.append(self._write_of(stripe, cell, content))
        return requests, True

    def _report(
        self,
        stripe: Stripe,
        violated: list[tuple[Place, ...]],
        wrong_cells: list[Place],
        syndromes: list[Bytes],
        repaired: bool,
        assumed: bool,
    ) -> None:
        if len(self.findings) >= FINDINGS_KEPT:
            return
        context = self.context
        wrong = np.flatnonzero(np.bitwise_or.reduce(np.stack(syndromes)))
        inside = int(wrong[0])
        places = wrong_cells or sorted({place for chain in violated for place in chain})
        cells = map(CellIndex, map(self._places(stripe).index, places))
        chunks = [
            context.layout.logical(stripe, cell) for cell in cells if cell < context.code.data_count
        ]
        self.findings.append(
            {
                "stripe": stripe,
                "located": bool(wrong_cells),
                "members": [self._member(role) for role in sorted({p[0] for p in places})],
                "image_offsets": [chunk * context.chunk_bytes + inside for chunk in chunks],
                "byte_in_chunk": inside,
                "bytes": len(wrong),
                "repaired": repaired,
                "assumed_data_right": repaired and assumed,
            }
        )

    def _member(self, role: Role) -> SuspectMember:
        queue = self.context.member_set.queues[role]
        return {"role": role, "path": queue.member.path if queue else None}

    async def finish(self, completed: bool) -> None:
        """Make repairs durable."""
        sums = self.context.member_set.sums
        if completed and sums is not None and not self.context.member_set.lost:  # all are filled
            sums.tables.lost_of.clear()
        if self.repaired:
            await self.context.member_set.flush()
        if completed and self.repair and not self.context.member_set.lost:
            await self._note_unwritten()

    async def _note_unwritten(self) -> None:
        """Note that torn stripes in which nothing is written have no chain that could be wrong."""
        locks, dirty = self.context.locks, self.context.dirty_bitmap
        for stripe in sorted(dirty.torn):
            await locks.acquire(stripe)
            try:
                if self.context.is_unwritten(stripe):
                    dirty.note_repaired((stripe,))
            finally:
                locks.release(stripe)


def _without(lost: int, masks: list[int]) -> list[int]:
    """Return all checkable sums of the chains *masks*: XORs of chains without the cells *lost*.

    Two chains through one lost cell still give one check: their XOR does not contain that cell.
    """
    for cell in cells_of(lost):
        through = [mask for mask in masks if mask >> cell & 1]
        if through:
            pivot = min(through, key=int.bit_count)
            masks = [mask ^ pivot if mask >> cell & 1 else mask for mask in masks]
    return [mask for mask in masks if mask]


class RegularScrub:
    """Starts the regular scrubs of one array; *each_s* 0 means never.

    A scrub begins when no request has come for a second, no other job runs, and the last scrub is
    *each_s* of running time ago; one that is due for as long again begins although requests come,
    at the speed limits of all jobs. It reports and does not repair. The time since the last scrub
    is saved in the superblocks when the array is closed, and now and then, for an array that
    crashes each week.
    """

    def __init__(self, array: ArrayServices) -> None:
        self.each_s: float = SETTINGS[SCRUB_EACH].default
        self._array = array
        self._context: ArrayContext = array.context
        kept = self._context.member_set.config.jobs.get(JOB_KEY, {})
        self._unscrubbed_s = float(kept.get(SINCE_SCRUB, 0.0))  # before *_counted_from_s*
        self._counted_from_s = self._context.member_set.clock()
        self._saved_s = self._unscrubbed_s

    def set_interval(self, each_s: float) -> None:
        """Start a scrub each *each_s* from now on; 0: never."""
        self.each_s = each_s

    @property
    def compares(self) -> bool:
        """Whether the layout has redundancy, without which a scrub has nothing to compare."""
        return bool(self._context.code.parity_count)

    @property
    def since_scrub_s(self) -> float:
        """Return the running time in seconds since the last scrub, earlier mounts included."""
        return self._unscrubbed_s + self._context.member_set.clock() - self._counted_from_s

    def keep(self, config: ArrayConfig) -> ArrayConfig:
        """Return *config* with the time since the last scrub, for the next mount."""
        kept = {SINCE_SCRUB: round(self.since_scrub_s)}
        return config.with_job(JOB_KEY, kept)

    def note_ended(self, job: Job) -> None:
        """Count anew from the end of a scrub, also one that a user has started."""
        if job.kind == "scrub":
            self._unscrubbed_s = self._saved_s = 0.0
            self._counted_from_s = self._context.member_set.clock()

    async def run(self) -> None:
        """Start scrubs when they are due (a background task)."""
        while True:
            await rest(LOOK_S)
            if not self.each_s or not self.compares:
                continue
            try:
                if self._is_due():
                    await self._array.start_scrub(repair=False)
                elif self.since_scrub_s >= self._saved_s + self.each_s / SAVES:
                    self._saved_s = self.since_scrub_s
                    await self._context.member_set.update(self.keep)
            except RaidxError as error:
                log.warning("the regular scrub: %s", error)

    def _is_due(self) -> bool:
        late_s = self.since_scrub_s - self.each_s
        if late_s < 0 or self._obstacle():
            return False
        return late_s >= self.each_s or is_idle(self._context, IDLE_S)

    def _obstacle(self) -> bool:
        """Return whether a scrub now would report what is known, or slow down what matters more."""
        member_set = self._context.member_set
        return bool(
            member_set.lost
            or member_set.watermarks
            or self._context.dirty_bitmap.pending_regions()
            or self._array.jobs.running()
        )
