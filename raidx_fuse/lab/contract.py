"""The contract of a code and of a parity policy, for the tests of packages that bring their own.

    from raidx_fuse.lab import contract

    def test_my_code() -> None:
        contract.check_widths(my_code)              # it exists, or says that it does not
        contract.check_code(my_code, width=6)       # the arithmetic
        contract.check_campaign("my-code")          # power cuts; the package is installed
        contract.check_policy(my_policy)

Each function raises AssertionError with what does not hold. The cells are real bytes here, and XOR
is done by this module, cell by cell: nothing is believed that the solver or the plans say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import combinations

from raidx_fuse.engine.parity_policies import Chooser
from raidx_fuse.lab.crash.campaign import run_cells
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.layouts.codes.code import Code, LayoutError, bits
from raidx_fuse.layouts.numbers import (
    MemberChunk,
    Role,
    cell_range,
    role_range,
    stripe_range,
)
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.pattern import Pattern, PatternLayout, Placement
from raidx_fuse.layouts.placements.rotated import RotatedLayout
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, write_plans
from raidx_fuse.layouts.proof import problem_of
from raidx_fuse.plugins import one_line

CHUNK_BYTES = 4096
PAIRS_MAX = 200  # small writes of two cells that are tried, beside those of one
CELL_BYTES = 16


Build = Callable[[int], Code | Placement]


def check_code(build: Build, width: int, *, seed: int = 1) -> None:
    """Check the code that *build* returns for *width* members. Raises AssertionError.

    It is possible; any tolerated loss is recovered; cells and places are one to one, fixed and
    rotated, or by the pattern of a `Placement`; full-stripe and small writes, by both plans, keep
    the parity, degraded ones too.
    """
    built = build(width)
    problem = problem_of(built, width)
    assert problem is None, f"the code for {width} members is wrong: {problem}"
    (code, pattern), (again, places) = map(_parts, (built, build(width)))
    same = (again.chains, again.data, again.tolerance) == (code.chains, code.data, code.tolerance)
    assert same, f"two calls for {width} members build different codes"
    assert pattern == places, f"two calls for {width} members build different placements"
    rng = random.Random(seed)
    check_recovery(code, rng)
    if pattern is None:
        for rotation in ("fixed", "left"):
            check_placement(RotatedLayout(code.name, code, CHUNK_BYTES, 2 * width, rotation))
    else:
        chunks = 2 * len(pattern) * len(code.cells) // width
        check_placement(PatternLayout(code.name, code, CHUNK_BYTES, chunks, width, pattern))
    check_plans(code, rng)


def _parts(built: Code | Placement) -> tuple[Code, Pattern | None]:
    return (built, None) if isinstance(built, Code) else (built.code, built.pattern)


def check_widths(build: Build, widths: Iterable[int] = range(1, 33)) -> None:
    """Check that *build* makes a code for some of *widths*, and raises LayoutError for the rest."""
    made = 0
    for width in widths:
        try:
            code = build(width)
        except LayoutError:
            continue
        except Exception as error:
            raise AssertionError(
                f"for {width} members the code raises {one_line(error)}: LayoutError is for widths "
                "that do not exist"
            ) from error
        problem = problem_of(code, width)
        assert problem is None, f"the code for {width} members is wrong: {problem}"
        made += 1
    assert made, "the code exists for no width"


def check_recovery(code: Code, rng: random.Random) -> None:
    """Lose every set of tolerated columns of a stripe of random bytes, and recover all cells."""
    stripe = _stripe(code, rng)
    for count in range(1, code.tolerance + 1):
        for columns in combinations(range(code.columns), count):
            lost = code.columns_mask(frozenset(columns))
            for cell, sources in code.solve(lost, lost):
                assert not sources & lost, f"{code.name_of(cell)} is solved from a lost cell"
                value = reduce(int.__xor__, (stripe[source] for source in bits(sources)), 0)
                assert value == stripe[cell], f"{code.name_of(cell)} is lost with {columns}"
    for column in range(code.columns if code.tolerance else 0):
        rebuilt = {cell for cell, _ in code.recover(column)}
        assert rebuilt == set(code.column_cells[column]), f"a rebuild of {column} misses cells"


def check_placement(layout: Layout) -> None:
    """Check that chunks, cells and places of *layout* are one to one."""
    seen: set[tuple[int, int]] = set()
    for stripe in stripe_range(0, layout.stripes):
        for cell in cell_range(0, len(layout.code.cells)):
            place = layout.place(stripe, cell)
            assert place not in seen, f"two cells lie at member chunk {place[1]} of role {place[0]}"
            seen.add(place)
            assert layout.inverse(*place) == (stripe, cell), f"{place} is not found again"
        for data in cell_range(0, layout.code.data_count):
            chunk = layout.logical(stripe, data)
            assert layout.locate(chunk) == (stripe, data), f"chunk {chunk} is not found again"
    everywhere = {
        (role, MemberChunk(chunk))
        for role in role_range(0, layout.width)
        for chunk in range(layout.member_chunks)
    }
    assert seen == everywhere, "some chunks of the members belong to no cell"
    for role in role_range(0, layout.width if layout.code.tolerance else 0):
        assert layout.tolerates(frozenset({Role(role)})), f"role {role} cannot be lost"


def check_plans(code: Code, rng: random.Random) -> None:
    """Write a whole stripe, each data cell, and pairs of them, healthy and after a loss.

    All chains hold afterwards, and what is on the lost columns follows from the rest.
    """
    ones = [1 << cell for cell in range(code.data_count)]
    pairs = [a | b for a, b in combinations(ones, 2)]
    touched = [*ones, *rng.sample(pairs, min(len(pairs), PAIRS_MAX)), code.data_mask]
    losses = [0]
    if code.tolerance:
        losses += code.column_masks
    for lost in losses:
        for cells in touched:
            for plan in write_plans(code, cells, lost, 0):
                if plan is not None:
                    _carry_out(code, plan, cells, lost, rng)


def check_campaign(name: str, *, states: int = 200, seed: int = 1, theme: str = "") -> None:
    """Cut the power of arrays of layout *name* in *states* moments, with losses.

    *theme*: what they do, "restripe" say; "": all that the layout can do, at random. It runs in
    this process, in virtual time. The layout must be installed. Raises AssertionError with the
    first promise that is broken.
    """
    cells = [Cell(name, journal, theme=theme) for journal in ("partial", "full")]
    tally = run_cells(cells, states, seed)
    assert not tally.violations, str(tally.violations[0])
    assert tally.total >= states, f"only {tally.total} states could be checked"


def check_policy(choose: Chooser, *, seed: int = 1, rounds: int = 500) -> None:
    """Ask *choose* about random plans and queues; it says "rmw" or "rcw", and always the same."""
    rng = random.Random(seed)
    for _ in range(rounds):
        width = rng.randint(3, 12)
        waiting = tuple(rng.choice((0, 0, rng.randint(1, 64))) for _ in range(width))
        rmw, rcw = (
            tuple(sorted(rng.sample(range(width), rng.randint(1, width - 1)))) for _ in range(2)
        )
        answer = choose(rmw, rcw, waiting)
        case = f"for reads of {rmw} or {rcw} with {waiting} waiting"
        assert answer in ("rmw", "rcw"), f"the policy says {answer!r} {case}"
        assert choose(rmw, rcw, waiting) == answer, f"the policy changes its mind {case}"


def _stripe(code: Code, rng: random.Random) -> list[int]:
    """Return random data cells with their parity, as numbers."""
    return _encoded(code, [rng.getrandbits(8 * CELL_BYTES) for _ in range(code.data_count)])


def _encoded(code: Code, data: Sequence[int]) -> list[int]:
    """Return the cells *data* with their parity, from nothing but the chains."""
    known: dict[int, int] = dict(enumerate(data))
    waiting = list(range(code.parity_count))
    while waiting:
        for parity in tuple(waiting):
            others = code.chain_masks[parity] ^ 1 << code.data_count + parity
            if all(cell in known for cell in bits(others)):
                value = reduce(int.__xor__, (known[cell] for cell in bits(others)), 0)
                known[code.data_count + parity] = value
                waiting.remove(parity)
    return [known[cell] for cell in range(len(code.cells))]


def _carry_out(code: Code, plan: BandPlan, touched: int, lost: int, rng: random.Random) -> None:
    """Carry out *plan* on a random stripe without the cells *lost*; check every chain."""
    stripe = _stripe(code, rng)
    new = {cell: rng.getrandbits(8 * CELL_BYTES) for cell in bits(touched)}
    what = f"{plan.kind} of {', '.join(map(code.name_of, new))}"
    assert not plan.read_mask & lost, f"{what} reads a lost cell"
    after: dict[int, int] = dict(enumerate(stripe))
    for output in plan.outputs:
        assert set(output.old) <= set(plan.reads), f"{what} uses a cell that it does not read"
        value = reduce(int.__xor__, (stripe[cell] for cell in output.old), 0)
        after[output.cell] = reduce(int.__xor__, (new[cell] for cell in output.new), value)
    for cell in plan.writes:
        after[cell] = new[cell]
    wanted = _encoded(code, [new.get(cell, stripe[cell]) for cell in range(code.data_count)])
    for kept in bits(code.all_mask & ~lost):
        assert after[kept] == wanted[kept], f"{what} leaves {code.name_of(kept)} wrong"
