"""What is known of a layout without particular members: names, widths, tolerance, efficiency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.placements.pattern import Pattern

WIDTH_MAX = 255
"""A role must fit into one byte of the look-up table (raidx paper, section IV.D)."""


@dataclass(frozen=True)
class LayoutInfo:
    """The properties of a layout that do not depend on particular members.

    * *name*; *title*: one line; *widths*: the allowed widths in words; *source*: the paper.
    * *width_min*, *width_max*; *allows_width*: a further condition on the width.
    * *build*: returns the code for a width; None if the placement needs more than the width. If
      there is a parameter "prime", it takes one, too.
    * *pattern*: returns the placement's pattern for a width, None if columns are fixed or rotated.
    * *rotation*: the default rotation of `RotatedLayout`, "fixed" or "left".
    * *params*: the meaning of each parameter, by name.
    * *package*: the package that brought the layout, with its version; "" for those of raidx.
    * *bundled*: a raidx layout, with members of different sizes and a look-up table.
    * *members_by*: how members join and leave: by "migration" of chunks, as "copies", or by the
      moves of a layout that is "bundled" (raidx_fuse/array/member_changes.py).
    * *tolerance*: how many of a number of members, any of them, may be lost; *efficiency*: the
      share of the members' chunks that holds data, 0 to 1. For raidx layouts they hold for members
      of equal size and the shortest bundle.
    """

    name: str
    title: str
    widths: str
    source: str
    width_min: int
    build: Callable[..., Code] | None = None
    width_max: int = WIDTH_MAX
    allows_width: Callable[[int], bool] = lambda _width: True
    pattern: Callable[[int], Pattern | None] = lambda _width: None
    rotation: str = "fixed"
    params: dict[str, str] = field(default_factory=dict)
    bundled: bool = False
    members_by: str = "migration"
    package: str = ""
    tolerance: Callable[[int], int] = lambda _width: 1
    efficiency: Callable[[int], float] = lambda width: (width - 1) / width

    def allows(self, width: int) -> bool:
        return self.width_min <= width <= self.width_max and self.allows_width(width)

    def check_width(self, width: int) -> None:
        """Raise LayoutError, naming the nearest widths, unless the layout exists for *width*."""
        if self.allows(width):
            return
        below = next((w for w in range(min(width, self.width_max), 0, -1) if self.allows(w)), None)
        above = next((w for w in range(max(width, 1), self.width_max + 1) if self.allows(w)), None)
        near = " or ".join(str(w) for w in (below, above) if w is not None)
        raise LayoutError(
            f"{self.name} does not exist for {width} members ({self.widths})"
            + (f"; nearest: {near}" if near else "")
        )
