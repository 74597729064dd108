"""What a raidx array was made of: by it places follow from numbers, whoever came or left since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raidx_fuse.layouts.codes.code import LayoutError


@dataclass(frozen=True, slots=True)
class Founding:
    """What the array began with: chunks by role (*counts*), how many *bundles* were made of them,
    and the *roles* whose member, or one rebuilt in its place, still is the founding one.
    """

    counts: tuple[int, ...]
    bundles: int
    roles: frozenset[int]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "counts": list(self.counts),
            "bundles": self.bundles,
            "roles": sorted(self.roles),
        }


def are_counts(values: object) -> bool:
    """Say whether *values* is a list of numbers of chunks."""
    return (
        isinstance(values, list | tuple)
        and bool(values)
        and all(type(value) is int and value >= 0 for value in values)
    )


def founding_from(values: object) -> Founding:
    """Return the founding that JSON *values* mean. Raises LayoutError."""
    match values:
        case {"counts": counts, "bundles": int(bundles), "roles": roles}:
            known = are_counts(counts) and (roles == [] or are_counts(roles))
            if known and bundles > 0 and all(role < len(counts) for role in roles):
                return Founding(tuple(counts), bundles, frozenset(roles))
    raise LayoutError(f"founding must say counts, bundles and roles, not {values!r}")
