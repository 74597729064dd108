"""The founding of a raidx array: the numbers from which the initial chunk table is computed.

The founding stays the same when members join or leave later, so that the places of chunks that
never moved need not be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import Role


@dataclass(frozen=True, slots=True)
class Founding:
    """The numbers of chunks by role (*counts*) and of *bundles* when the array was created.

    *roles* are the roles that their founding member, or one rebuilt in its place, still has.
    """

    counts: tuple[int, ...]
    bundles: int
    roles: frozenset[Role]

    def as_dict(self) -> dict[str, Any]:
        """Return the founding as JSON values; `founding_from` is the inverse."""
        return {
            "counts": list(self.counts),
            "bundles": self.bundles,
            "roles": sorted(self.roles),
        }


def are_counts(values: object) -> bool:
    """Return whether *values* is a nonempty list of numbers of chunks (integers from 0)."""
    return (
        isinstance(values, list | tuple)
        and bool(values)
        and all(type(value) is int and value >= 0 for value in values)
    )


def founding_from(values: object) -> Founding:
    """Return the founding from JSON *values*. Raises LayoutError if they are not valid."""
    match values:
        case {"counts": counts, "bundles": int(bundles), "roles": roles}:
            known = are_counts(counts) and (roles == [] or are_counts(roles))
            if known and bundles > 0 and all(role < len(counts) for role in roles):
                return Founding(tuple(counts), bundles, frozenset(roles))
    raise LayoutError(f"founding must say counts, bundles and roles, not {values!r}")
