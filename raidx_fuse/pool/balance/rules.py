"""Rules for planners: volumes that keep together, and moves that must be repaid.

Volumes that keep together are planned as one volume, then taken apart again.

The volumes of a rule that are on one array now move together or not at all. If a rule was made when
its volumes were on several arrays, each part may only move to an array where another part is: no
move takes volumes further apart, and a move may bring them together.

A move is repaid when the time for which it keeps the overloaded array from its users is made up by
the load that it removes: a volume of s bytes and utilisation u, copied at r bytes a second,
after s / (r * u) seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.pool.balance.system import Assignment, Bools, Ints, System


def merge(system: System, together: Iterable[Collection[str]]) -> tuple[System, Ints]:
    """Return a system in which volumes that keep *together* are one, and the new number of each.

    *together* holds names. Rules that share a volume are one rule. Raises UsageError for an unknown
    name, and if volumes are to be kept together and apart.
    """
    rule_of = _rules(system, together)
    number_of: dict[tuple[int, int], int] = {}  # (rule, or ~volume; array) -> merged volume
    merged = np.empty(len(system.volumes), dtype=np.int64)
    for i, array in enumerate(system.where.tolist()):
        merged[i] = number_of.setdefault((rule_of.get(i, ~i), array), len(number_of))
    for group in system.apart:
        rules = [rule_of[i] for i in group if i in rule_of]
        if len(set(rules)) < len(rules):
            listed = ", ".join(sorted(system.volumes[i] for i in group))
            raise UsageError(f"the volumes {listed} are to be kept together and apart")
    count = len(number_of)
    if count == len(system.volumes) and not rule_of:
        return system, merged
    where = np.empty(count, dtype=np.int64)
    where[merged] = system.where
    size = np.zeros(count, dtype=np.int64)
    np.add.at(size, merged, system.size)
    need = np.zeros((count, len(system.arrays)))
    np.add.at(need, merged, system.need)
    allowed = np.ones((count, len(system.arrays)), dtype=np.bool_)
    np.logical_and.at(allowed, merged, system.allowed)
    _stay_near(allowed, where, number_of)
    allowed[np.arange(count), where] = True
    names = [""] * count
    for i, name in enumerate(system.volumes):
        names[merged[i]] += ("+" if names[merged[i]] else "") + name
    apart = tuple(frozenset(int(merged[i]) for i in group) for group in system.apart)
    volumes = tuple(names)
    changed = replace(
        system, volumes=volumes, size=size, need=need, where=where, allowed=allowed, apart=apart
    )
    return changed, merged


def repaid(system: System, copy_bytes_s: float, within_s: float) -> System:
    """Return *system* where volumes stay on overloaded arrays if their move is not repaid in time.

    *copy_bytes_s* is the rate at which a volume is copied. Volumes on other arrays may still move:
    they make room in a swap.
    """
    hot = np.isin(system.where, Assignment(system).overloaded())
    used = system.own_need() / system.bandwidth[system.where]
    late = hot & (system.size > within_s * copy_bytes_s * used)
    allowed = system.allowed.copy()
    allowed[late] = False
    allowed[late, system.where[late]] = True
    return replace(system, allowed=allowed)


def _rules(system: System, together: Iterable[Collection[str]]) -> dict[int, int]:
    """Return the number of the rule of each volume that has one; rules that meet are one."""
    at = {name: i for i, name in enumerate(system.volumes)}
    rule_of: dict[int, int] = {}
    for number, names in enumerate(together):
        for name in names:
            if name not in at:
                raise UsageError(
                    f"there is no volume {name} to be kept together with others",
                    reason=Reason.NO_SUCH_VOLUME,
                )
            old = rule_of.get(at[name])
            if old is not None:
                rule_of = {i: number if rule == old else rule for i, rule in rule_of.items()}
            rule_of[at[name]] = number
    return rule_of


def _stay_near(allowed: Bools, where: Ints, number_of: dict[tuple[int, int], int]) -> None:
    """Let the parts of a rule that is on several arrays move to those arrays only."""
    parts: dict[int, list[int]] = {}
    for (rule, _), number in number_of.items():
        parts.setdefault(rule, []).append(number)
    for numbers in parts.values():
        if len(numbers) > 1:
            near = np.zeros(allowed.shape[1], dtype=np.bool_)
            near[where[numbers]] = True
            allowed[numbers] &= near
