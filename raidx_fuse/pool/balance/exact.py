"""The plan of least cost, by mixed-integer programming. Ours; for pools of some hundred volumes.

    x_ij = 1 if volume i is on array j afterwards
    minimise    sum of s_i * x_ij over j != where(i)                  Eq. 3
    subject to  sum of x_ij over j = 1 for each i, x_ij <= allowed_ij
                sum of s_i * x_ij over i <= S_j                       Eq. 1
                sum of b_ij * x_ij over i <= tau_j * B_j              Eq. 2
                sum of x_ij over i in G <= 1 for each set G that is kept apart

It says how far a greedy plan is from the best, and whether there is a plan at all. The solver is
HiGHS, in scipy, an optional dependency: ``pip install raidx-fuse[exact]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.pool.balance.plan import Plan, make_plan
from raidx_fuse.pool.balance.system import Assignment, Ints, System, violations

CELLS_MAX = 20_000
"""Volumes times arrays: beyond it the program is too large to be solved in reasonable time."""

LIMIT_S = 30.0
OPTIMAL = 0  # scipy's status


def exact(system: System) -> Plan:
    """Return the plan of least cost; `Plan.proven` says that the solver ended before LIMIT_S.

    Without a solution the plan leaves everything where it is. Raises UsageError if the pool is too
    large or scipy is not installed.
    """
    m, n = system.need.shape
    if m * n > CELLS_MAX:
        raise UsageError(
            f"{m} volumes on {n} arrays are too many for the planner exact",
            action="use --planner dswap",
        )
    if not Assignment(system).overloaded().size:
        return make_plan("exact", system, system.where, proven=True)
    # The solver satisfies a row up to 1e-6 of its unit. Whole units keep Eq. 1 exact where sizes
    # are multiples of an extent; whatever comes out is checked once more below.
    unit = int(np.gcd.reduce(np.concatenate([system.size, system.capacity])))
    for slack in (0.0, 1e-5):
        result = _milp(system, unit, slack)
        if result.x is None:
            return make_plan("exact", system, system.where)
        array_of: Ints = np.asarray(result.x).reshape(m, n).argmax(axis=1)
        plan = make_plan("exact", system, array_of, proven=result.status == OPTIMAL and not slack)
        if plan.solved and not violations(system, array_of):
            return plan
    raise RaidxError("the solver of the planner exact gave a plan that breaks a constraint")


def _milp(system: System, unit: int, slack: float) -> Any:
    """Return scipy's result for the program above; *slack*: share by which limits are lowered."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix, vstack
    except ImportError:
        raise UsageError(
            "the planner exact needs scipy",
            action="pip install raidx-fuse[exact]",
            reason=Reason.NOT_INSTALLED,
        ) from None
    m, n = system.need.shape
    volume, array = np.repeat(np.arange(m), n), np.tile(np.arange(n), m)
    column = np.arange(m * n)
    size = system.size // unit
    cost = np.repeat(size, n).astype(np.float64)
    cost[np.arange(m) * n + system.where] = 0.0
    rows = [
        csr_matrix((np.ones(m * n), (volume, column)), (m, m * n)),
        csr_matrix((np.repeat(size, n).astype(np.float64), (array, column)), (n, m * n)),
        csr_matrix((system.need.ravel() / system.bandwidth[array], (array, column)), (n, m * n)),
    ]
    space = system.capacity // unit * (1 - slack)
    upper = [np.ones(m), np.maximum(space, 0), system.tau * (1 - slack)]
    lower = [np.ones(m), np.full(n, -np.inf), np.full(n, -np.inf)]
    for group in system.apart:
        chosen = np.array(sorted(group))
        cells = (chosen[:, None] * n + np.arange(n)).ravel()
        rows.append(
            csr_matrix(
                (np.ones(len(cells)), (np.tile(np.arange(n), len(chosen)), cells)), (n, m * n)
            )
        )
        held = np.bincount(system.where[chosen], minlength=n)
        upper.append(np.maximum(held, 1).astype(np.float64))
        lower.append(np.full(n, -np.inf))
    return milp(
        cost,
        integrality=np.ones(m * n),
        bounds=Bounds(0, system.allowed.ravel().astype(np.float64)),
        constraints=LinearConstraint(vstack(rows), np.concatenate(lower), np.concatenate(upper)),
        options={"time_limit": LIMIT_S},
    )
