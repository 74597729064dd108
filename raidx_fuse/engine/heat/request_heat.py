"""How often the chunks of a layout without a chunk table are used, while somebody watches.

`AccessStats` knows it for raidx layouts. `PlaceHeat`, which counts for the others, knows only how
often regions of the image were used in the last hour. The first look makes a `RequestHeat` the
context's counter; it passes on what it notes to the counter before it, which counts alone again
when nobody has looked for `WATCHED_S`.

A look takes the requests since the last one as a batch, `PICKED_MAX` of them, each of which stands
for as many as were left out. Older batches fade with the time constant `FADING_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.access_stats import AccessStats
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.heat.place_heat import Heat, PlaceHeat, heat_of_bundles
from raidx_fuse.layouts.numbers import CellIndex, Stripe

WATCHED_S = 10.0
FADING_S = 2.0
PICKED_MAX = 256  # requests of a batch whose places are looked up: some 3 us each
NOTED_MAX = 4096  # then a few of them are kept
KEPT_EACH = 64
KEPT_MAX = 1024
BATCHES_MAX = 32

Places = NDArray[np.int64]
Rates = NDArray[np.float64]


def heat_of(context: ArrayContext) -> Heat:
    """Return how often each place of the image was used lately, for any layout."""
    access = context.access
    if isinstance(access, AccessStats):
        return heat_of_bundles(context.layout, access)
    if isinstance(access, RequestHeat):
        access.hand_over()
        access = access.behind
    if isinstance(access, PlaceHeat):
        return access.look()
    none = np.zeros(1)
    return Heat(context.layout.chunks, none, none, none, [0.0] * context.layout.width, 1.0)


class RequestHeat:
    """Counts the accesses of chunks of *context* in place of *behind*; see `Noted`."""

    def __init__(self, context: ArrayContext, behind: PlaceHeat) -> None:
        self.noted: list[int] = []
        self.behind = behind
        self._handed_over = 0  # of *noted*
        self._context = context
        self._kept: list[int] = []  # one in KEPT_EACH of those that were noted earlier
        self._seen = 0  # how many were noted earlier
        self._looked_s = context.member_set.clock()
        self._batches: deque[tuple[float, Places, Places, Rates]] = deque(maxlen=BATCHES_MAX)

    def note(self, first: int, last: int, *, is_write: bool) -> None:
        """Note a request of chunks *first*..*last*."""
        noted = self.noted
        noted.extend(range(~first, ~last - 1, -1) if is_write else range(first, last + 1))
        self.sample()

    def sample(self) -> None:
        """Keep the list short; stop to count if nobody watches any more."""
        self.behind.sample_queues()
        if len(self.noted) >= NOTED_MAX:
            self._seen += len(self.noted)
            self._kept = (self._kept + self.noted[::KEPT_EACH])[-KEPT_MAX:]
            self._clear()
        context = self._context
        if context.member_set.clock() - self._looked_s > WATCHED_S:
            self.hand_over()
            context.count_accesses(self.behind)

    def hand_over(self) -> None:
        """Let the counter behind count what was noted since the last time."""
        self.behind.take(self.noted[self._handed_over :])
        self._handed_over = len(self.noted)

    def _clear(self) -> None:
        self.hand_over()
        self.noted.clear()
        self._handed_over = 0

    def look(self) -> tuple[Places, Places, Rates]:
        """Return roles, member chunks and accesses per second of the places used lately."""
        now = self._context.member_set.clock()
        count = self._seen + len(self.noted)
        found = self._kept + self.noted[:: KEPT_EACH if self._seen else 1]
        self._kept, self._seen = [], 0
        self._clear()
        self._looked_s = now
        if found:
            picked = found[:: -(-len(found) // PICKED_MAX)]
            roles, chunks = self._places(picked)
            self._batches.append((now, roles, chunks, np.full(len(roles), count / len(picked))))
        while self._batches and now - self._batches[0][0] > 5 * FADING_S:
            self._batches.popleft()
        if not self._batches:
            empty = np.zeros(0, np.int64)
            return empty, empty, np.zeros(0)
        rates = [
            counts * (np.exp((at_s - now) / FADING_S) / FADING_S)
            for at_s, _roles, _chunks, counts in self._batches
        ]
        return (
            np.concatenate([batch[1] for batch in self._batches]),
            np.concatenate([batch[2] for batch in self._batches]),
            np.concatenate(rates),
        )

    def _places(self, picked: Sequence[int]) -> tuple[Places, Places]:
        """Return roles and member chunks that the accesses *picked* use.

        A write uses the parities of its chunk, too. Any copy may have answered a read.
        """
        layout, code = self._context.layout, self._context.code
        found: list[tuple[int, int]] = []
        for access in picked:
            chunk = ~access if access < 0 else access
            if chunk >= layout.chunks:
                continue  # the image has become smaller
            stripe, cell = layout.locate(chunk)
            found.append(layout.place(Stripe(stripe), cell))
            if access < 0 or code.is_copies:
                found += [
                    layout.place(Stripe(stripe), CellIndex(code.data_count + parity))
                    for parity, support in enumerate(code.support)
                    if support >> cell & 1
                ]
        roles, chunks = np.array(found, np.int64).reshape(-1, 2).T
        return roles, chunks
