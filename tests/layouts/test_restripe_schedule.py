"""Windows of a restripe, walked from end to end: nothing is lost on the way, wherever it stops."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.codes.horizontal import replicas
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.pattern import PatternLayout
from raidx_fuse.layouts.placements.restriping import RestripeLayout, numbering_for, restripe
from raidx_fuse.layouts.planning.restripe_schedule import RestripeSchedule, Window
from raidx_fuse.layouts.registry import make_layout
from tests.support.patterns import patterned

Place = tuple[int, int]
SHAPES = [
    *(("raid0", 2), ("raid0", 3), ("raid4", 4), ("raid5", 3), ("raid5", 4), ("raid5", 5)),
    *(("raid1", 2), ("raid1", 3), ("rdp", 5), ("rdp", 6), ("evenodd", 5)),
    *(("xcode", 5), ("pcode", 6), ("upc", 4), ("upc", 6)),
]
PATTERNS = [("of-parity", 4), ("of-parity", 5), ("of-rdp", 5), ("of-copies", 3)]
SHAPES += PATTERNS
ROWS = 36
LOG_CHUNKS = 160


def made(name: str, width: int) -> Layout:
    if (name, width) in PATTERNS:
        return patterned(name, width, ROWS)
    return make_layout(name, width, ROWS, 4096)


def both(old: tuple[str, int], new: tuple[str, int], chunks: int | None = None) -> RestripeLayout:
    """Return the layout at the begin of a move between shapes; *chunks* limits the image."""
    before, after = made(*old), made(*new)
    return restripe(before, after, min(before.chunks, chunks or before.chunks))


def places(layout: RestripeLayout, first: int, end: int) -> set[Place]:
    """Return where the stripes of the indexes first..end-1 lie now: these, and all parity."""
    found: set[Place] = set()
    for chunk in range(first, end):
        stripe, cell = layout.locate_index(chunk)
        found.add(layout.place(stripe, cell))
        for parity in layout.code.affects[cell]:
            found.add(layout.place(stripe, parity))
    return found


class Walk:
    """Moves the watermark window by window; *saved* follows as seldom as the course allows."""

    def __init__(
        self, layout: RestripeLayout, upward: bool, limit: int, log_chunks: int = LOG_CHUNKS
    ) -> None:
        self.layout = layout
        self.limit = limit
        self.log_chunks = log_chunks
        self.schedule = RestripeSchedule(layout, upward, log_chunks)
        self.saved = layout.watermark
        self.windows: list[Window] = []

    def at(self, watermark: int) -> RestripeLayout:
        """Return the same layout as it was with *watermark*."""
        layout = RestripeLayout(
            self.layout.below, self.layout.above, self.layout.image_chunks, self.layout.rises
        )
        layout.watermark = watermark
        return layout

    def step(self) -> None:
        """Move one window, and check what it overwrites."""
        window = self.schedule.window(self.saved, self.limit)
        if window is None:
            assert self.saved != self.layout.watermark
            self.saved = self.layout.watermark
            window = self.schedule.window(self.saved, self.limit)
        assert window is not None
        target = self.schedule.target
        parities = range(target.code.data_count, len(target.code.cells))
        counted = places(self.at(self.saved), 0, self.layout.image_chunks)
        counted |= places(self.layout, 0, self.layout.image_chunks)
        logged = 0
        for stripe in window.targets:
            held = range(target.first_of(stripe), target.first_of(stripe + 1))
            cells = [target.locate(c)[1] for c in held if window.first <= c < window.end]
            assert cells
            every = [*cells, *parities]
            written = {target.place(stripe, cell) for cell in every}
            if stripe in window.direct:
                assert not written & counted, "a place that counts is overwritten past the log"
            else:
                logged += len(every)
        assert logged <= self.log_chunks
        self.layout.watermark = window.mark
        stays = places(self.layout, 0, self.layout.image_chunks)
        moved = places(self.layout, window.first, window.end)
        rest = range(window.end) if window.mark == window.first else None
        outside = (
            places(self.layout, 0, window.first)
            if rest is not None
            else places(self.layout, window.end, self.layout.image_chunks)
        )
        assert not moved & outside, "moved chunks lie where others count"
        assert moved <= stays
        self.windows.append(window)

    def to_the_end(self) -> None:
        """Step until nothing is left."""
        while self.schedule.rest:
            assert len(self.windows) < 10_000
            self.step()


PAIRS = [
    pair
    for pair in itertools.permutations(SHAPES, 2)
    if pair[1][1] >= pair[0][1] and made(*pair[1]).chunks >= made(*pair[0]).chunks
]


@pytest.mark.parametrize("limit", [1, 40])
def test_every_pair_moves_without_overwriting_what_counts(limit: int) -> None:
    for old, new in PAIRS:
        layout = both(old, new)
        RestripeSchedule(layout, layout.rises, LOG_CHUNKS).check()
        walk = Walk(layout, layout.rises, limit)
        walk.to_the_end()
        covered = sorted((window.first, window.end) for window in walk.windows)
        assert covered[0][0] == 0
        assert covered[-1][1] == layout.image_chunks
        assert all(one[1] == other[0] for one, other in itertools.pairwise(covered))


def test_a_smaller_image_moves_to_a_less_dense_layout_from_its_end() -> None:
    for old, new in (
        (("raid0", 3), ("raid5", 3)),
        (("raid5", 4), ("raid1", 4)),
        (("raid5", 5), ("rdp", 5)),
        (("raid5", 5), ("of-parity", 5)),
        (("of-parity", 4), ("of-copies", 3)),
    ):
        layout = both(old, new, chunks=made(*new).chunks - 1)
        assert not layout.rises
        RestripeSchedule(layout, False, LOG_CHUNKS).check()
        walk = Walk(layout, False, 25)
        walk.to_the_end()
        assert layout.watermark == 0


GROWN: list[tuple[str, list[int], list[int], int]] = [  # layout, history, rule, chunks in use
    ("raid5", [4, 6], [2, 1], 3 * ROWS + 30),
    ("raid5", [4, 6], [1, 1], 3 * ROWS + 1),
    ("raid5", [4, 6], [16, 0], 3 * ROWS + 2 * ROWS - 1),  # no whole region
    ("raid0", [3, 5], [1, 2], 3 * ROWS + 20),
]


def all_alike(name: str, history: list[int], rule: list[int], used: int) -> RestripeLayout:
    """Return the layout at the begin of a move of a grown array, used in part, onto itself."""
    grown = make_layout(name, history[-1], ROWS, 4096, history=history, rules=[rule])
    order = numbering_for(grown, used)
    assert order is not None
    after = make_layout(name, history[-1], ROWS, 4096, order=order.as_dict())
    return restripe(grown, after, used)


@pytest.mark.parametrize(("name", "history", "rule", "used"), GROWN)
@pytest.mark.parametrize("turn_after", [10_000, 1, 6])
def test_stripes_of_a_growth_in_part_use_are_made_alike_and_back(
    name: str, history: list[int], rule: list[int], used: int, turn_after: int
) -> None:
    layout = all_alike(name, history, rule, used)
    assert layout.rises
    assert used <= layout.image_chunks <= layout.above.chunks
    for upward in (True, False):
        RestripeSchedule(layout, upward, LOG_CHUNKS).check()
    for limit in (1, 40):
        walk = Walk(layout, True, limit)
        while walk.schedule.rest and len(walk.windows) < turn_after:
            walk.step()
        back = Walk(layout, False, limit)
        back.to_the_end()
        assert layout.watermark == 0


@pytest.mark.parametrize("turn_after", [1, 3, 7])
def test_turned_round_it_goes_back_the_same_way(turn_after: int) -> None:
    for old, new in PAIRS:
        layout = both(old, new)
        walk = Walk(layout, layout.rises, 12)
        while walk.schedule.rest and len(walk.windows) < turn_after:
            walk.step()
        back = Walk(layout, not layout.rises, 12)
        back.to_the_end()
        assert layout.watermark in (0, layout.image_chunks)
        assert layout.watermark == layout.start


def test_a_log_that_is_too_small_for_the_smallest_safe_window_is_named() -> None:
    layout = both(("raid5", 5), ("upc", 6))
    with pytest.raises(LayoutError, match=r"the log of these members holds 10"):
        RestripeSchedule(layout, True, 10).check()


def test_a_restripe_moves_every_chunk_and_keeps_cells_of_the_other_side_dead() -> None:
    layout = both(("raid4", 4), ("raid5", 5))
    for mark in range(0, layout.image_chunks + 1, 7):
        layout.watermark = mark
        for chunk in range(layout.image_chunks):
            stripe, cell = layout.locate(chunk)
            assert layout.logical(stripe, cell) == chunk
            side = layout.below if chunk < mark else layout.above
            assert layout.place(stripe, cell) == side.place(*side.locate(chunk))
            assert layout.inverse(*layout.place(stripe, cell)) in ((stripe, cell), None) or mark
        rows = layout.logical_rows(0, layout.stripes)
        for number in range(layout.stripes):
            stripe = Stripe(number)
            own = [layout.logical(stripe, cell) for cell in range(layout.code.data_count)]
            assert rows[stripe].tolist() == own
        live = rows[rows != layout.nowhere]
        assert sorted(live.tolist())[: layout.image_chunks] == list(range(layout.image_chunks))


def test_a_leap_ends_where_the_watermark_may_stand() -> None:
    for old, new in PAIRS:
        layout = both(old, new)
        for upward in (True, False):
            layout.watermark = 0 if upward else layout.image_chunks
            schedule = RestripeSchedule(layout, upward, LOG_CHUNKS)
            while schedule.rest:
                window = schedule.skip(50)
                if window is None:  # no place to stand on so near
                    window = schedule.window(layout.watermark, 50)
                else:
                    assert not window.direct
                assert window is not None
                moved = places(layout, window.first, window.end)
                layout.watermark = window.mark
                stays = (
                    places(layout, window.end, layout.image_chunks)
                    if upward
                    else places(layout, 0, window.first)
                )
                assert not places(layout, window.first, window.end) & stays
                assert moved


def test_members_that_the_old_layout_lacks_count_as_losses_of_it_too() -> None:
    """A record lies on two members here: two that are lost may be all that have it."""
    old = make_layout("raid5", 5, 240, 4096, history=[4, 5])
    assert isinstance(old, ElasticLayout)
    union = restripe(old, make_layout("evenodd", 8, 240, 4096), old.generations[0].end)
    assert union.code.tolerance == 1
    assert all(union.tolerates(frozenset({Role(role)})) for role in range(8))
    assert not union.tolerates(frozenset({Role(6), Role(7)}))


def smallest_log(layout: RestripeLayout) -> int:
    """Return the fewest chunks of a record with which a restripe may begin, in both directions."""
    for chunks in range(1, 1000):
        with contextlib.suppress(LayoutError):
            for upward in (True, False):
                RestripeSchedule(layout, upward, chunks).check()
            return chunks
    raise AssertionError


@pytest.mark.parametrize("width", [5, 6])
def test_the_smallest_log_that_is_accepted_is_enough_to_the_end(width: int) -> None:
    """Whole rows first, then all choices of members: the largest step is not the first one."""
    rows = [range(at, at + 2) for at in range(0, width - 1, 2)] if width % 2 == 0 else []
    code = replicas(2)
    pattern = [*map(list, rows), *map(list, itertools.combinations(range(width), 2))]
    uneven = PatternLayout("uneven", code, 4096, 600, width, pattern)
    for name in ("raid5", "raid1", "raid0"):
        even = make_layout(name, width, 600, 4096)
        for old, new in ((even, uneven), (uneven, even)):
            layout = restripe(old, new, min(old.chunks, new.chunks))
            for upward in (layout.rises, not layout.rises):
                layout.watermark = 0 if upward else layout.image_chunks
                walk = Walk(layout, upward, 400, smallest_log(layout))
                walk.to_the_end()
