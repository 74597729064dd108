"""Deferred parity: of a stripe that requests fill from the front, only the data is logged.

A sequential request of 1 MiB over stripes of 192 KiB ends in the middle of a stripe, and the next
request continues there. The stripe's parity changes with both requests. Logging it each time, on
two members, and checkpointing it was a third of the cost of sequential writing. Instead, a record
may say that the parity of a stripe follows from the data (format/log_record.py, PARITY). Readers
see no difference, because the overlay has the parity as always.

Recovery computes the parity from one of two sources, and one of them is always available:

* **complete**: all data cells of the stripe are in the log, in this record and earlier ones. The
  home places, which a checkpoint may have half written, are not read.
* **unfinished**: the home places of the stripe are as they were before the first of these records.
  To keep them so, a checkpoint first logs the parities of all unfinished stripes in one record
  (`Checkpoint.place`). Any other record of such a stripe contains its parity, too. Recovery that
  finds an unfinished stripe logs its parity before it writes the first home place;
  *reserve_bytes* of the ring are kept free for that.

Once the whole stripe is known, its last part need not be logged either, see
engine/write/sequential.py.

A stripe is filled only while it lacks no member and has no unwritten cell. Before the layout
changes, the log is drained with *paused* set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from raidx_fuse.format.log_record import ENTRY_BYTES, PARITY, record_bytes
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.store.member_io import MemberIO
from raidx_fuse.store.member_set import MemberSet

KNOWN_MIN = 64  # stripes kept in `held_cells` beyond those that the ring holds
SHARE_MAX = 8  # at most 1/SHARE_MAX of the ring is reserved for parities


@dataclass(frozen=True, slots=True)
class Filling:
    """A write of whole cells that continues a *stripe* which is filled from the front.

    *before* and *touched* are bit masks: the cells that the log has already, and those of this
    write. *data* writes the touched cells. *parities* has the new content of the parity cells; its
    buffers are copied.
    """

    stripe: Stripe
    before: int
    touched: int
    data: Sequence[MemberIO]
    parities: Sequence[MemberIO]


class DeferredParity:
    """The stripes whose parity the log lacks.

    *unfinished*: stripe -> (mask of the cells in the log, {(role, offset): size} of its parities).
    """

    def __init__(self, member_set: MemberSet, overlay: Overlay, capacity: int) -> None:
        self.unfinished: dict[Stripe, tuple[int, dict[tuple[Role, int], int]]] = {}
        self.reserve_bytes = 0
        self.paused = False  # the layout is about to change, and records name its stripes
        self._member_set = member_set
        self._overlay = overlay
        self._capacity = capacity
        self._reserved: set[Stripe] = set()  # stripes that are unfinished, or about to be
        # Stripe -> mask of its cells in the log, if all its records in the log defer the parity.
        self.held_cells: dict[Stripe, int] = {}

    def pause(self) -> None:
        """Defer no further parity until `resume`: the layout is about to change."""
        self.paused = True

    def resume(self) -> None:
        """Defer parities again."""
        self.paused = False

    def cells(self, stripe: Stripe) -> int:
        """Return the mask of the cells of an unfinished *stripe* that are in the log, else 0."""
        known = self.unfinished.get(stripe)
        return known[0] if known else 0

    def _size(self, stripes: int) -> int:
        layout = self._member_set.layout
        each = layout.code.parity_count * (layout.chunk_bytes + ENTRY_BYTES)
        return record_bytes(0, stripes * each) if stripes else 0

    def _most_bytes(self) -> int:
        # A small ring has space for two records of a stripe only, so nothing is deferred in it:
        # a stripe of ours may have its parities in the ring twice.
        layout = self._member_set.layout
        stripe_bytes = len(layout.code.cells) * layout.chunk_bytes
        return self._capacity // SHARE_MAX if self._capacity >= 3 * stripe_bytes else 0

    def has_space(self, stripe: Stripe) -> bool:
        """Return whether `reserve` would find space for the parities of *stripe*."""
        reserved = len(self._reserved) + (stripe not in self._reserved)
        return not self.paused and self._size(reserved) <= self._most_bytes()

    def reserve(self, stripe: Stripe) -> bool:
        """Reserve ring space for the parities of *stripe*; return False if there is none."""
        if not self.has_space(stripe):
            return False
        self._reserved = self._reserved | {stripe}
        self.reserve_bytes = self._size(len(self._reserved))
        return True

    def release(self, stripes: Iterable[Stripe]) -> None:
        """Release the space reserved for those of *stripes* that are not unfinished."""
        if self._reserved:
            self._reserved.difference_update(s for s in stripes if s not in self.unfinished)
            self.reserve_bytes = self._size(len(self._reserved))

    def _is_complete(self, filling: Filling) -> bool:
        return filling.before | filling.touched == self._member_set.layout.code.data_mask

    def entries(self, filled: Sequence[Filling]) -> list[int]:
        """Return the fields of the record's PARITY entries, one for each stripe of *filled*."""
        fields: list[int] = []
        for filling in filled:
            complete = self._is_complete(filling)
            fields += (PARITY, 0, int(complete), filling.stripe)
        return fields

    def fit(self, filled: Sequence[Filling]) -> bool:
        """Return whether the log still has the cells that *filled* was planned with."""
        return not self.paused and all(
            self.cells(filling.stripe) == filling.before for filling in filled
        )

    def begin(self, filled: Sequence[Filling], held: Collection[Stripe]) -> None:
        """Note that the log gets *filled*; the log already has records of the stripes *held*."""
        cells = self.held_cells
        if len(cells) > 2 * len(held) + KNOWN_MIN:  # the log holds most of them no longer
            cells = self.held_cells = {s: cells[s] for s in held if s in cells}
        for filling in filled:
            stripe = filling.stripe
            if stripe not in held:
                cells[stripe] = filling.touched
            elif stripe in cells:
                cells[stripe] |= filling.touched

    def note_others(self, stripes: Iterable[Stripe]) -> None:
        """Note that the log gets records of *stripes* that do not defer the parity."""
        for stripe in stripes:
            self.held_cells.pop(stripe, None)

    def is_all_of(self, stripe: Stripe, cells: int) -> bool:
        """Return whether replay may write only the cells in the mask *cells* of *stripe*."""
        return not self.held_cells.get(stripe, -1) & ~cells

    def take_effect(self, filled: Sequence[Filling]) -> None:
        """Put the parities into the overlay, and note which stripes are unfinished now."""
        for filling in filled:
            stripe = filling.stripe
            _, places = self.unfinished.pop(stripe, (0, {}))
            for role, offset, (buffer,), size in filling.parities:
                self._overlay.put(role, offset, bytes(buffer))
                places[role, offset] = size
            if not self._is_complete(filling):
                self.unfinished[stripe] = filling.before | filling.touched, places

    def parities(
        self, stripes: Iterable[Stripe], writes: Iterable[MemberIO] = ()
    ) -> list[MemberIO]:
        """Return writes of the deferred parities of *stripes*, except those that *writes* has."""
        requests: list[MemberIO] = []
        if not self.unfinished:
            return requests
        given = {(role, offset): size for role, offset, _, size in writes}
        for stripe in stripes:
            for (role, offset), size in self.unfinished.get(stripe, (0, {}))[1].items():
                if given.get((role, offset), 0) >= size:
                    continue
                buffer = bytearray(size)
                known = self._overlay.read(role, offset, buffer)
                assert known, "the parity of an unfinished stripe is in the overlay"
                requests.append((role, offset, [buffer], size))
        return requests

    def finish(self, stripes: Iterable[Stripe]) -> None:
        """Note that the log has the parities of *stripes* now."""
        stripes = list(stripes)
        for stripe in stripes:
            self.unfinished.pop(stripe, None)
        self.release(stripes)
