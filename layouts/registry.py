"""The table of layouts by name: what exists, for which widths, at what cost; and how to make one.

A name or width that does not exist raises `LayoutError` with one line that names the nearest ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field

from raidx_fuse.layouts.code import Code, LayoutError
from raidx_fuse.layouts.horizontal import replicas, single_parity, striping
from raidx_fuse.layouts.layout import Layout, RotatedLayout

CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = 1 << 20
WIDTH_MAX = 255
"""A role must fit one byte of the lookup table (raidx paper, section IV.D), 0 meaning none."""


@dataclass(frozen=True)
class LayoutInfo:
    """What is known of a layout before any member is given.

    *name*; *title*, one line; *widths*, the allowed widths in words; *width_min*; *width_max*;
    *build*, width to code, None for layouts whose placement needs more than a width (they are
    pure arithmetic here); *allows_width*, further condition on the width; *rotation*, the default
    placement; *params*, name of each parameter to its meaning; *source*, the paper.
    """

    name: str
    title: str
    widths: str
    source: str
    width_min: int
    build: Callable[[int], Code] | None = None
    width_max: int = WIDTH_MAX
    allows_width: Callable[[int], bool] = lambda _width: True
    rotation: str = "fixed"
    params: dict[str, str] = field(default_factory=dict)
    losses: Callable[[int], int] = lambda _width: 1
    share: Callable[[int], float] = lambda width: (width - 1) / width

    def allows(self, width: int) -> bool:
        """Say whether the layout exists for *width* members."""
        return self.width_min <= width <= self.width_max and self.allows_width(width)

    def tolerance(self, width: int) -> int:
        """Return how many of *width* members, any of them, may be lost."""
        return self.losses(width)

    def efficiency(self, width: int) -> float:
        """Return the share of the members' chunks that holds data, 0 to 1."""
        return self.share(width)

    def check_width(self, width: int) -> None:
        """Raise LayoutError, naming the nearest widths, unless the layout exists for *width*."""
        if self.allows(width):
            return
        below = next((w for w in range(min(width, self.width_max), 0, -1) if self.allows(w)), None)
        above = next((w for w in range(max(width, 1), self.width_max + 1) if self.allows(w)), None)
        near = " or ".join(str(w) for w in (below, above) if w is not None)
        raise LayoutError(
            f"{self.name} does not exist for {width} members ({self.widths}); nearest: {near}"
        )


LAYOUTS: dict[str, LayoutInfo] = {
    info.name: info
    for info in (
        LayoutInfo(
            "raid0", "striping, no redundancy", "1 or more", "", 1, striping,
            losses=lambda _width: 0, share=lambda _width: 1.0,
        ),
        LayoutInfo(
            "raid1", "every member a copy", "2 or more", "", 2, replicas,
            losses=lambda width: width - 1, share=lambda width: 1 / width,
        ),
        LayoutInfo(
            "raid4", "single parity on the last member", "3 or more", "mcpod", 3, single_parity
        ),
        LayoutInfo(
            "raid5", "single parity, rotated (left-symmetric)", "3 or more", "bpu", 3,
            single_parity, rotation="left",
        ),
    )
}  # fmt: skip


def find_layout(name: str) -> LayoutInfo:
    """Return the entry of *name*. Raises LayoutError naming the nearest names."""
    info = LAYOUTS.get(name)
    if info is not None:
        return info
    near = difflib.get_close_matches(name.lower(), LAYOUTS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(LAYOUTS)}"
    raise LayoutError(f"unknown layout {name!r}; {hint}")


def allowed_widths(name: str, width_max: int = 32) -> tuple[int, ...]:
    """Return the widths up to *width_max* for which layout *name* exists. Raises LayoutError."""
    info = find_layout(name)
    return tuple(width for width in range(1, width_max + 1) if info.allows(width))


def make_code(name: str, width: int) -> Code:
    """Return the code of layout *name* for *width* members.

    Raises LayoutError for unknown names and widths, and for layouts without a fixed code.
    """
    info = find_layout(name)
    info.check_width(width)
    if info.build is None:
        raise LayoutError(f"{name} has no code of its own width: its placement is not by columns")
    return info.build(width)


def make_layout(
    name: str, width: int, member_chunks: int, chunk_bytes: int, **params: object
) -> Layout:
    """Return layout *name* over *width* members with *member_chunks* chunks of *chunk_bytes* each.

    Chunks that do not fill a last stripe stay unused. Raises LayoutError in one line for unknown
    names, widths, parameters, and for sizes that make no layout.
    """
    info = find_layout(name)
    code = make_code(name, width)
    check_chunk_bytes(chunk_bytes)
    unknown = sorted(set(params) - set(info.params))
    if unknown:
        known = ", ".join(info.params) or "none"
        raise LayoutError(f"{name} has no parameter {unknown[0]!r} (parameters: {known})")
    rotate = params.get("rotate", info.rotation == "left")
    rotation = "left" if rotate else "fixed"
    return RotatedLayout(name, code, chunk_bytes, member_chunks // code.rows, rotation)


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Raise LayoutError unless *chunk_bytes* is a power of two from 4 KiB to 1 MiB."""
    if chunk_bytes & (chunk_bytes - 1) or not CHUNK_BYTES_MIN <= chunk_bytes <= CHUNK_BYTES_MAX:
        raise LayoutError(
            f"a chunk of {chunk_bytes} bytes is not possible: powers of two from "
            f"{CHUNK_BYTES_MIN} (4 KiB) to {CHUNK_BYTES_MAX} (1 MiB)"
        )
