"""The planners by name: `make` plans with one of them, rules included.

dswap            few bytes, quickly: displace, then swap                       the default
dswap-paper      the same as the paper's text has it, without our two optimisations
exact            the fewest bytes, for small pools                             needs scipy
random-reassign, random-packing, best-fit, worst-fit, bsr                      the baselines
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from raidx_fuse.errors import UsageError
from raidx_fuse.pool.balance import baselines
from raidx_fuse.pool.balance.dswap import dswap, paper_dswap
from raidx_fuse.pool.balance.exact import exact
from raidx_fuse.pool.balance.plan import Plan, Reason, make_plan
from raidx_fuse.pool.balance.rules import merge
from raidx_fuse.pool.balance.system import System

Planner = Callable[[System], Plan]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A planner with its *title*; *seeded*: it takes a keyword *seed*."""

    name: str
    title: str
    plan: Callable[..., Plan]
    seeded: bool = False

    def run(self, system: System, *, seed: int = 0) -> Plan:
        """Return the plan for *system*; *seed* counts where chance has a part."""
        return self.plan(system, seed=seed) if self.seeded else self.plan(system)


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("dswap", "displace and swap by bandwidth-to-space ratio", dswap),
        Strategy("dswap-paper", "the same without our two optimisations", paper_dswap),
        Strategy("exact", "least bytes, by integer programming (small pools)", exact),
        Strategy(
            "random-reassign",
            "random volumes of overloaded arrays to random arrays",
            baselines.random_reassign,
            seeded=True,
        ),
        Strategy("random-packing", "from scratch, random", baselines.random_packing, seeded=True),
        Strategy(
            "best-fit", "from scratch, least free space left", baselines.best_fit, seeded=True
        ),
        Strategy(
            "worst-fit", "from scratch, most free space left", baselines.worst_fit, seeded=True
        ),
        Strategy("bsr", "from scratch, by bandwidth-to-space ratio", baselines.bsr),
    )
}


def make(
    name: str,
    system: System,
    *,
    together: Iterable[Collection[str]] = (),
    seed: int = 0,
) -> Plan:
    """Return the plan of strategy *name* for *system*; volumes of *together* move as one.

    Raises UsageError for an unknown name, and what the planner raises.
    """
    strategy = strategy_named(name)
    return planned(system, together, lambda merged: strategy.run(merged, seed=seed))


def strategy_named(name: str) -> Strategy:
    """Return the strategy called *name*. Raises UsageError."""
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise UsageError(f"there is no planner {name}; there are: {', '.join(STRATEGIES)}")
    return strategy


def planned(
    system: System, together: Iterable[Collection[str]], plan_of: Callable[[System], Plan]
) -> Plan:
    """Return the plan of *plan_of* for *system*; volumes of *together* move as one."""
    merged, number_of = merge(system, together)
    plan = plan_of(merged)
    if merged is system:
        return plan
    reasons: dict[int, Reason] = {}
    for move in plan.moves:
        for volume in np.flatnonzero(number_of == move.volume).tolist():
            reasons[volume] = move.reason
    return make_plan(plan.strategy, system, plan.array_of[number_of], reasons, proven=plan.proven)
