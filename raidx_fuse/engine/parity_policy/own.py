"""Parity policies of other packages: a function that says "rmw" or "rcw", and nothing else.

The function gets the roles that each plan would read from, and how many operations wait for each
role. It never sees a plan, so that whatever it returns, the parity that is written is right. A
function that raises, or says something else, is not asked again: `traditional` decides from then
on, and the log names the package.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from raidx_fuse import plugins
from raidx_fuse.engine.parity_policy.bpu import RCW, RMW
from raidx_fuse.engine.parity_policy.policy import (
    POLICY_NAMES,
    Policy,
    Queues,
    RoleOf,
    check_policy,
    traditional,
)
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, cells_of

log = logging.getLogger(__name__)

Chooser = Callable[[Sequence[int], Sequence[int], Sequence[int]], str]
"""(roles read by read-modify-write, by reconstruct-write, operations waiting by role) -> choice."""


def is_name(value: object) -> bool:
    """Return whether *value*, of a superblock, can be the name of a package's policy."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,79}", value) is not None


def problem_of(name: str) -> str | None:
    """Return in words why policy *name* cannot be used here, or None."""
    try:
        check_policy(name)
    except UsageError as error:
        cause = error.__cause__
        return f"cannot be used: {cause}" if cause else "is of no package that is installed here"
    return None


def why_not_asked(name: str, policy: Policy) -> str | None:
    """Return why the policy *name* that an array keeps is not asked by *policy*; or None.

    One line with the next step.
    """
    if isinstance(policy, OwnPolicy):
        why = policy.broken and f"fails: {policy.broken}"
    elif name not in POLICY_NAMES:
        why = problem_of(name) or "was not there when the array was mounted"
    else:
        why = None
    if not why:
        return None
    return (
        f"parity policy {name} {why}; traditional decides. Put its package right and mount "
        "again, or choose another one: raidx set ARRAY parity.policy=NAME"
    )


def own_policy(name: str, role_of: RoleOf, queues: Queues) -> OwnPolicy:
    """Return the policy *name* of an installed package. Raises PluginError."""
    return OwnPolicy(plugins.load(plugins.POLICY_GROUP, name), role_of, queues)


class OwnPolicy:
    """The policy of *plugin* over the queues of an array; *broken* says why it is not asked."""

    def __init__(self, plugin: plugins.Plugin, role_of: RoleOf, queues: Queues) -> None:
        self.broken: str | None = None
        self._plugin = plugin
        self._choose: Callable[..., Any] = plugin.target
        self._role_of = role_of
        self._queues = queues

    def choose_now(self, _rmw: BandPlan | None, _rcw: BandPlan | None) -> None:
        """Return None: the choice depends on the stripe."""
        return

    def __call__(
        self, rmw: BandPlan | None, rcw: BandPlan | None, stripe: Stripe, cached: int = 0, /
    ) -> BandPlan:
        """Return the plan to be carried out in *stripe*."""
        if rmw is None or rcw is None or self.broken is not None:
            return traditional(rmw, rcw, stripe, cached)
        if not rmw.pre_reads_beside(cached) or not rcw.pre_reads_beside(cached):
            return traditional(rmw, rcw, stripe, cached)
        waiting = tuple(q.queue_length() if q is not None else 0 for q in self._queues())
        try:
            chosen = self._choose(
                self._roles(rmw, stripe, cached), self._roles(rcw, stripe, cached), waiting
            )
            if chosen not in (RMW, RCW):
                raise ValueError(f"it said {chosen!r:.40}, not {RMW!r} or {RCW!r}")
        except (Exception, SystemExit) as error:
            self.broken = plugins.one_line(error)
            log.error(
                "parity policy %r of package %s fails: %s; traditional decides from now on",
                self._plugin.name,
                self._plugin.origin,
                self.broken,
            )
            return traditional(rmw, rcw, stripe, cached)
        return rmw if chosen == RMW else rcw

    def _roles(self, plan: BandPlan, stripe: Stripe, cached: int) -> tuple[int, ...]:
        return tuple(self._role_of(stripe, cell) for cell in cells_of(plan.read_mask & ~cached))
