"""How far arrays of a layout can grow in place: the prime of a two-loss code limits the members."""

from __future__ import annotations

from collections.abc import Mapping

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.registry import code_for, find_layout, make_code


def width_max(name: str, width: int, params: Mapping[str, object]) -> int:
    """Return how many members an array of *width* is to have space for in its log.

    That is *width*, or as many as the prime in *params* allows.
    """
    if "prime" not in params:
        return width
    while find_layout(name).allows(width + 1):
        try:
            code_for(name, width + 1, params)
        except LayoutError:
            break
        width += 1
    return width


def in_place_max(name: str, width: int, prime: int | None) -> int | None:
    """Return how many members an array of *width* can grow to in place; None: no prime limits it.

    *prime*: None for the smallest one. Raises LayoutError.
    """
    info = find_layout(name)
    if "prime" not in info.params or "history" not in info.params:
        return None
    return width_max(name, width, {"prime": prime_for(name, width) if prime is None else prime})


def prime_for(name: str, members: int) -> int:
    """Return the prime of layout *name* with which an array can grow to *members* members.

    Raises LayoutError for a layout that has none: it can grow to any number of members.
    """
    if "prime" not in find_layout(name).params:
        raise LayoutError(f"the number of members of {name} is not limited by a prime")
    return make_code(name, members).rows + 1
