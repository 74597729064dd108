"""Stripes that one request after another fills from the front: only their data is logged.

A request of 1 MiB over stripes of 192 KiB ends in the middle of one, and the next request goes on
there. Its parity changes with both, so to log it each time, twice, and to place it was a third of
what sequential writing cost. A record may say instead that the parity of a stripe follows from the
data (format/log_record.py, PARITY). Readers see no difference: the overlay has the parity as
always.

What a replay needs to compute it is one of two things, and one of them it always has:

* **complete**: all data cells of the stripe are in the log, in this record and those that it
  follows. What lies in the places, half written by a placement perhaps, is not looked at.
* **unfinished**: the stripe's places are as they were before the first of these records. So before
  a placement begins, the parities of all unfinished stripes are logged after all, in one record
  (`Journal.place`); so does any other record of such a stripe with its own change. A replay that
  finds one unfinished logs its parity before it writes the first place, too; *reserve_bytes* of the
  ring are kept free for that.

Once all of a stripe is known, its last part need not be logged either, see
engine/write/sequential.py.

A stripe is filled only while it lacks nothing: no member, no cell that was never written. Before
the layout changes the log is drained, with *paused* set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from raidx_fuse.format.log_record import ENTRY_BYTES, PARITY, record_bytes
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.store.member_set import MemberIO, MemberSet

KNOWN_MIN = 64  # stripes of which is known what the log has, also after it gave them up
SHARE_MAX = 8  # of the ring may be kept free for parities, one part of so many


@dataclass(frozen=True, slots=True)
class Filling:
    """The cells *touched*, whole, of *stripe*, of which the cells *before* are in the log already.

    *parities* are what the parity cells become; their buffers are copied.
    """

    stripe: int
    before: int
    touched: int
    data: Sequence[MemberIO]
    parities: Sequence[MemberIO]


class DeferredParity:
    """The stripes whose parity the log lacks: stripe -> (cells in the log, places of parities)."""

    def __init__(self, member_set: MemberSet, overlay: Overlay, capacity: int) -> None:
        self.unfinished: dict[int, tuple[int, dict[tuple[int, int], int]]] = {}
        self.reserve_bytes = 0
        self.paused = False  # the layout is about to change: the records name stripes of this one
        self._member_set = member_set
        self._overlay = overlay
        self._capacity = capacity
        self._reserved: set[int] = set()  # unfinished, or about to be
        # Of stripes all of whose records that may be replayed are of this kind: the cells in them.
        self.held_cells: dict[int, int] = {}

    def cells(self, stripe: int) -> int:
        """Return the cells of an unfinished *stripe* that are in the log, else 0."""
        known = self.unfinished.get(stripe)
        return known[0] if known else 0

    def _size(self, stripes: int) -> int:
        layout = self._member_set.layout
        each = layout.code.parity_count * (layout.chunk_bytes + ENTRY_BYTES)
        return record_bytes(0, stripes * each) if stripes else 0

    def _most_bytes(self) -> int:
        # Small rings hold two records of a stripe; one of ours may have its parities twice.
        layout = self._member_set.layout
        stripe_bytes = len(layout.code.cells) * layout.chunk_bytes
        return self._capacity // SHARE_MAX if self._capacity >= 3 * stripe_bytes else 0

    def reserve(self, stripe: int) -> bool:
        """Keep room for the parities of *stripe*, which is about to be filled; False if none."""
        reserved = self._reserved | {stripe}
        if self.paused or self._size(len(reserved)) > self._most_bytes():
            return False
        self._reserved = reserved
        self.reserve_bytes = self._size(len(reserved))
        return True

    def release(self, stripes: Iterable[int]) -> None:
        """Give back what was kept for those of *stripes* that are not unfinished."""
        if self._reserved:
            self._reserved.difference_update(s for s in stripes if s not in self.unfinished)
            self.reserve_bytes = self._size(len(self._reserved))

    def _is_complete(self, filling: Filling) -> bool:
        return filling.before | filling.touched == self._member_set.layout.code.data_mask

    def entries(self, filled: Sequence[Filling]) -> list[int]:
        """Return the fields of the entries that say whose parity follows."""
        fields: list[int] = []
        for filling in filled:
            complete = self._is_complete(filling)
            fields += (PARITY, 0, int(complete), filling.stripe)
        return fields

    def fit(self, filled: Sequence[Filling]) -> bool:
        """Say whether the log has of every stripe what it had when *filled* was planned."""
        return not self.paused and all(
            self.cells(filling.stripe) == filling.before for filling in filled
        )

    def begin(self, filled: Sequence[Filling], held: Collection[int]) -> None:
        """Note that the log gets *filled*; of the stripes *held* it has records already."""
        cells = self.held_cells
        if len(cells) > 2 * len(held) + KNOWN_MIN:  # of most the log has given up all
            cells = self.held_cells = {s: cells[s] for s in held if s in cells}
        for filling in filled:
            stripe = filling.stripe
            if stripe not in held:
                cells[stripe] = filling.touched
            elif stripe in cells:
                cells[stripe] |= filling.touched

    def note_others(self, stripes: Iterable[int]) -> None:
        """Note that the log gets other records of *stripes*."""
        for stripe in stripes:
            self.held_cells.pop(stripe, None)

    def is_all_of(self, stripe: int, cells: int) -> bool:
        """Say whether all that a replay may find of *stripe* are these *cells*, as they are now."""
        return not self.held_cells.get(stripe, -1) & ~cells

    def take_effect(self, filled: Sequence[Filling]) -> None:
        """Show the parities to readers, and note what is unfinished now."""
        for filling in filled:
            stripe = filling.stripe
            _, places = self.unfinished.pop(stripe, (0, {}))
            for role, offset, (buffer,), size in filling.parities:
                self._overlay.put(role, offset, bytes(buffer))
                places[role, offset] = size
            if not self._is_complete(filling):
                self.unfinished[stripe] = filling.before | filling.touched, places

    def parities(self, stripes: Iterable[int], writes: Iterable[MemberIO] = ()) -> list[MemberIO]:
        """Return the parities that the log lacks of *stripes*, as they are, if not in *writes*."""
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

    def finish(self, stripes: Iterable[int]) -> None:
        """Note that the log has the parities of *stripes*."""
        stripes = list(stripes)
        for stripe in stripes:
            self.unfinished.pop(stripe, None)
        self.release(stripes)
