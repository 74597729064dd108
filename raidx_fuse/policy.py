"""Parity update policies: which of the two plans of a partial write is carried out.

A policy sees the finished plans and the queues; it never does I/O. `traditional` is what md does:
whichever reads fewer chunks first, read-modify-write when equal.
"""

from __future__ import annotations

from collections.abc import Callable

from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.plan import BandPlan

Policy = Callable[[BandPlan | None, BandPlan | None], BandPlan]


def _only(rmw: BandPlan | None, rcw: BandPlan | None) -> BandPlan:
    plan = rmw or rcw
    assert plan is not None, "write_plans gives at least one plan"
    return plan


def traditional(rmw: BandPlan | None, rcw: BandPlan | None) -> BandPlan:
    """Choose the plan with fewer pre-reads."""
    if rmw is None or rcw is None:
        return _only(rmw, rcw)
    return rmw if len(rmw.reads) <= len(rcw.reads) else rcw


def always_rmw(rmw: BandPlan | None, rcw: BandPlan | None) -> BandPlan:
    """Choose read-modify-write, but for full stripes."""
    if rcw is not None and not rcw.reads:
        return rcw
    return _only(rmw, rcw)


def always_rcw(rmw: BandPlan | None, rcw: BandPlan | None) -> BandPlan:
    """Choose reconstruct-write wherever losses allow it."""
    return _only(rcw, rmw)


TRADITIONAL: Policy = traditional
# They look at nothing but the plans: what one of them chose once, it always chooses.
POLICIES: dict[str, Policy] = {"traditional": traditional, "rmw": always_rmw, "rcw": always_rcw}


def policy_named(name: str) -> Policy:
    """Return the policy called *name*. Raises UsageError naming the others."""
    try:
        return POLICIES[name]
    except KeyError:
        raise UsageError(
            f"unknown parity policy {name!r}", action=f"choose one of {', '.join(POLICIES)}"
        ) from None
