"""The schedule of a restripe: which chunks move next, and which may be written in place directly.

    rows of the members
    0 ...... [ target stripes ] ....... [ source stripes of the window ] ......
             ^ end of the moved chunks  ^ rows before the first source stripe that has not moved
                                          are free, once the saved watermark has passed them

A target stripe in free rows is written to its place directly, because it overwrites no valid chunk.
Other target stripes are written through the redo log, in one record with the watermark that frees
their rows. These are:

* the first stripes, whose old and new places overlap (md's critical section, for which mdadm needs
  a backup file);
* every stripe, if both layouts take equally many rows for a chunk;
* a target stripe that the previous window filled in part, because its parity changes.

If the watermark falls, the same holds in the opposite direction. A window consists of whole source
stripes, so that no source stripe is left half moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.layouts.placements.views import View

STRIPES_MAX = 1 << 14  # looked at for the largest step


def _stripe_behind(view: View, chunk: int) -> int:
    """Return the first stripe of *view* that holds no chunk before *chunk*."""
    stripe = view.stripe_at(chunk)
    return stripe if view.first_of(stripe) == chunk else stripe + 1


@dataclass(frozen=True, slots=True)
class Window:
    """One step of a restripe: the chunks *first* .. *end* - 1 move.

    *mark* is the watermark after the step. *sources* and *targets* are the stripes of the old and
    the new layout that are concerned; the target stripes in *direct* need no log.
    """

    first: int
    end: int
    mark: int
    sources: range
    targets: range
    direct: range


class RestripeSchedule:
    """Chooses the windows by which the watermark of *layout* moves, *upward* or downward.

    *record_chunks* is the number of chunks, parity included, that one log record can hold.
    """

    def __init__(self, layout: RestripeLayout, upward: bool, record_chunks: int) -> None:
        self.layout = layout
        self.upward = upward
        self.record_chunks = record_chunks
        self.source = layout.above if upward else layout.below
        self.target = layout.below if upward else layout.above
        views = self.source, self.target
        self.even = all(view.data_count == view.least_count for view in views)
        self.aligned = lcm(self.source.data_count, self.target.data_count)

    @property
    def rest(self) -> range:
        """The chunks that have not moved yet."""
        mark, chunks = self.layout.watermark, self.layout.image_chunks
        return range(mark, chunks) if self.upward else range(min(mark, chunks))

    def check(self) -> None:
        """Raise LayoutError if a step between two safe places does not fit into one log record."""
        whole_rows = self.source.tile()[0] == self.target.tile()[0] == 1
        needed = self._first_step() if whole_rows else self._largest_step()
        if needed > self.record_chunks:
            raise LayoutError(
                f"moving from {self.source.name} to {self.target.name} takes {needed} chunks in "
                f"one change, the log of these members holds {self.record_chunks}"
            )

    def _first_step(self) -> int:
        """Return the chunks of the first step, parity included.

        Where stripes are whole rows, no later one is larger.
        """
        source, target = self.source, self.target
        stripes = 1
        while not self._clears(source.first_of(stripes)):
            stripes += 1
        all_stripes = _stripe_behind(source, self.layout.image_chunks)
        chunks = source.first_of(min(stripes, all_stripes))
        touched = _stripe_behind(target, chunks)
        rows, target_rows = source.tile()[1], target.tile()[1]
        if rows * target.data_count != target_rows * source.data_count:
            touched += 1  # a window need not begin at a stripe boundary of both layouts
        return chunks + touched * target.code.parity_count

    def _largest_step(self) -> int:
        """Return the chunks of the largest step, parity included; of one that is too large.

        Of patterns that both begin again at a safe place, later steps are no larger than those
        before. Steps behind STRIPES_MAX stripes are not looked at: should one be larger than the
        log, the restripe pauses there, and can be cancelled.
        """
        source, target, image = self.source, self.target, self.layout.image_chunks
        tiles = [view.tile()[0] * view.data_count for view in (source, target)]
        largest = saved = 0
        for stripe in range(1, STRIPES_MAX):
            at = min(source.first_of(stripe), image)
            step = at - saved + len(self._targets(saved, at)) * target.code.parity_count
            if step > self.record_chunks:
                return step
            if at < image and not self._clears(at):
                continue
            largest, saved = max(largest, step), at
            if at == image or not any(at % tile for tile in tiles):
                return largest
        return largest

    def _clears(self, chunks: int) -> bool:
        """Return whether moving *chunks* uses only rows that the same move frees.

        The move begins where both layouts have a stripe boundary.
        """
        source, target = self.source, self.target
        stripe = source.stripe_at(chunks)
        if self.upward:
            end = target.rows_until(_stripe_behind(target, chunks))
            return end <= source.rows_before(stripe)
        return target.rows_before(target.stripe_at(chunks)) >= source.rows_until(stripe)

    def _aligned(self, chunk: int, limit_chunks: int, *, up: bool = False) -> int:
        """Return the boundary of source stripes before *chunk*, or not before it with *up*.

        In large windows that is one of target stripes, too, where all stripes have equally many.
        """
        source = self.source
        if self.even and 2 * self.aligned <= limit_chunks:
            return -(-chunk // self.aligned) * self.aligned if up else chunk - chunk % self.aligned
        return source.first_of(_stripe_behind(source, chunk) if up else source.stripe_at(chunk))

    def window(self, saved: int, limit_chunks: int) -> Window | None:
        """Return the next window of about *limit_chunks*, None to save the watermark first.

        *saved* is the watermark that recovery would find after a crash. There must be chunks left
        to move. Raises LayoutError if no step fits into the log.
        """
        rest = self.rest
        behind = saved != self.layout.watermark
        cut = self._direct_cut(saved)
        mark = self._cut_directly(cut, limit_chunks)
        enough = min(limit_chunks, len(rest)) // 2
        if behind and abs(mark - self.layout.watermark) < max(1, enough):
            return None
        by_log = self._cut_by_log(cut, limit_chunks)
        if abs(by_log - self.layout.watermark) > abs(mark - self.layout.watermark):
            mark = by_log
        if mark == self.layout.watermark:
            if behind:
                return None
            raise LayoutError("no change of the layout fits in the log")
        return self._window(mark, cut)

    def skip(self, limit_chunks: int) -> Window | None:
        """Return a window of up to *limit_chunks* that only moves the watermark, None if none can.

        The caller has found that no chunk of it was ever written. Nothing is written or logged for
        it, so the watermark need not be saved before.
        """
        mark, rest = self.layout.watermark, self.rest
        if self.upward:
            end = mark + limit_chunks
            end = rest.stop if end >= rest.stop else self._aligned(end, limit_chunks)
            return self._window(end, 0) if end > mark and self._safe(end) else None
        first = self._aligned(max(0, mark - limit_chunks), limit_chunks, up=True)
        return (
            self._window(first, self.target.chunks) if first < mark and self._safe(first) else None
        )

    def _safe(self, mark: int) -> bool:
        """Return whether the watermark may be *mark*: moved chunks then overlap no valid chunk."""
        return mark == (self.rest.stop if self.upward else 0) or self._clears(mark)

    def _direct_cut(self, saved: int) -> int:
        """Return the chunk up to which (falling: from which) target stripes lie in free rows."""
        source, target = self.source, self.target
        if self.upward:
            if saved >= self.layout.image_chunks:
                return self.target.chunks
            rows = source.rows_before(source.stripe_at(saved))
            return target.first_of(target.stripes_within(rows))
        rows = source.rows_until(_stripe_behind(source, saved))
        return target.first_of(target.stripes_behind(rows))

    def _cut_directly(self, cut: int, limit: int) -> int:
        """Return the watermark after a window whose target stripes all lie in free rows."""
        mark = self.layout.watermark
        if self.upward:
            end = min(self.rest.stop, mark + limit, cut)
            if end < self.rest.stop:
                end = self._aligned(end, limit)
            return max(mark, end)
        return min(mark, self._aligned(max(0, mark - limit, cut), limit, up=True))

    def _cut_by_log(self, cut: int, limit: int) -> int:
        """Return the watermark after the largest safe window that fits into one log record."""
        mark, source = self.layout.watermark, self.source
        best = mark
        step, last = (1, self.rest.stop) if self.upward else (-1, 0)
        stripe = source.stripe_at(mark) + 1 if self.upward else source.stripe_at(mark - 1)
        while True:
            at = min(source.first_of(stripe), self.rest.stop)
            first, end = sorted((mark, at))
            if self._logged_chunks(first, end, cut) > self.record_chunks:
                return best
            if self._safe(at):
                best = at
            if at == last or (best != mark and end - first >= limit):
                return best
            stripe += step

    def _targets(self, first: int, end: int) -> range:
        return range(self.target.stripe_at(first), _stripe_behind(self.target, end))

    def _direct(self, first: int, end: int, cut: int) -> range:
        """Return the target stripes of the window that may be written in place directly."""
        target, targets = self.target, self._targets(first, end)
        if self.upward:  # a target stripe that is partly filled already must be logged
            begin, stop = _stripe_behind(target, first), target.stripe_at(max(0, cut))
        else:
            begin, stop = _stripe_behind(target, cut), target.stripe_at(end)
            if end >= self.layout.image_chunks:
                stop = targets.stop
        begin, stop = max(begin, targets.start), min(stop, targets.stop)
        return range(begin, max(begin, stop))

    def _logged_chunks(self, first: int, end: int, cut: int) -> int:
        """Return how many chunks, parity included, the window first..end-1 logs."""
        first_of = self.target.first_of
        targets, direct = self._targets(first, end), self._direct(first, end, cut)
        covered = min(end, first_of(direct.stop)) - max(first, first_of(direct.start))
        moved = end - first - (covered if direct else 0)
        return moved + (len(targets) - len(direct)) * self.target.code.parity_count

    def _window(self, mark: int, cut: int) -> Window:
        first, end = sorted((mark, self.layout.watermark))
        end = min(end, self.layout.image_chunks)
        sources = range(self.source.stripe_at(first), _stripe_behind(self.source, end))
        direct = self._direct(first, end, cut)
        return Window(first, end, mark, sources, self._targets(first, end), direct)
