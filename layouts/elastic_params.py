"""The parameters of a layout that has grown or grows, from the superblock: checked, and applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.elastic_mapping import Rule, choose_rule, granule_rows

ELASTIC_PARAMS = {
    "history": "list of the numbers of members, before and after each growth",
    "rules": "list of the rule of each growth: null, or granule and turn",
    "migrated": "during a growth: the first stripe that has not migrated yet",
    "parity": "during a growth: how parity is updated, live, piggyback or surrogate",
}
PARITY_WAYS = ("live", "piggyback", "surrogate")


def make_elastic(
    name: str,
    least: int,
    members: tuple[int, int],
    chunk_bytes: int,
    make_code: Callable[[int], Code],
    rotated: bool,
    params: Mapping[str, object],
) -> ElasticLayout:
    """Return layout *name* with the history in *params*.

    *members* are their number, without a surrogate, and the chunks of each; *least* is the smallest
    number of members at the beginning. Raises LayoutError.
    """
    width, member_chunks = members
    history = _checked_history(params["history"], width, least)
    way = params.get("parity", "live")
    if way not in PARITY_WAYS:
        raise LayoutError(f"parity cannot follow a growth as {way!r}")
    if way != "live" and not parity_stays(name):
        raise LayoutError(f"parity of {name} moves with its columns: it is always live")
    return ElasticLayout(
        name,
        history,
        chunk_bytes,
        member_chunks,
        _checked_migrated(params.get("migrated")),
        make_code=make_code,
        rules=_checked_rules(params.get("rules", ()), len(history) - 1),
        rotated=rotated,
        parity_stays=parity_stays(name),
        surrogate=way == "surrogate",
    )


def next_rules(
    name: str,
    history: tuple[int, ...],
    params: Mapping[str, object],
    rotated: bool,
    stripes: int,
    rows: int,
    granule: int | None = None,
    rotates: bool | None = None,
) -> list[Rule]:
    """Return the rules of an array of *stripes* stripes, *params* those it had before.

    The last number of *history* is that of the members after the growth that is about to begin; a
    stripe has *rows* chunks on each. *rotates*: whether members are rotating disks, None if that is
    not known; *granule*, in stripes, overrides what follows from it. Raises LayoutError.
    """
    known = _checked_rules(params.get("rules", ()), len(history) - 2)
    rules = (*known, *[None] * (len(history) - 2 - len(known)))
    standing = int(parity_stays(name) and name != "raid0")
    columns = tuple(count - standing for count in history)
    run = granule_rows(rotates)
    return [*rules, choose_rule(columns, rules, rotated, stripes, granule, rows, run)]


def parity_stays(name: str) -> bool:
    """Return whether the parity of layout *name*, if it has any, keeps its member in a growth."""
    return name in ("raid0", "raid4", "mcpod")


def _checked_rules(rules: Any, growths: int) -> tuple[Rule, ...]:
    """Return the *rules* of *growths* growths; missing ones are plain. Raises LayoutError."""
    known: Any = rules if isinstance(rules, list | tuple) and len(rules) <= growths else [0]
    if all(rule is None or _is_rule(rule) for rule in known):
        return tuple(rule and (rule[0], rule[1]) for rule in known)
    raise LayoutError(f"rules must say null or [granule, turn] of {growths} growths, not {rules!r}")


def _is_rule(rule: object) -> bool:
    return isinstance(rule, list | tuple) and list(map(type, rule)) == [int, int]


def _checked_history(history: object, width: int, least: int) -> tuple[int, ...]:
    """Return *history*, the numbers of members before and after each growth, as a tuple.

    Raises LayoutError unless it begins with at least *least* members and ends with *width*.
    """
    if not isinstance(history, list | tuple) or not all(isinstance(m, int) for m in history):
        raise LayoutError(f"history must be a list of numbers of members, not {history!r}")
    if not history or history[0] < least or history[-1] != width:
        raise LayoutError(
            f"history {list(history)} does not lead from {least} or more to {width} members"
        )
    return tuple(history)


def _checked_migrated(migrated: object) -> int | None:
    if migrated is None or (isinstance(migrated, int) and not isinstance(migrated, bool)):
        return migrated
    raise LayoutError(f"migrated must be a number of stripes, not {migrated!r}")
