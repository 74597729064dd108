"""The layout that a configuration describes, or the two layouts during a restripe.

From the start of a restripe to its end, the superblocks contain

    params {"restripe": {"from": {"layout": ..., "width": ..., "params": {...}}, "to": {...}}}

and `layout` is the old layout. "to" has "roles" if members leave: those of the members that stay,
which get the roles 0, 1, and so on when the restripe ends. The progress (watermark) is in the redo
log (`mark`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from raidx_fuse.errors import FormatError
from raidx_fuse.format.configuration import features
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.names import brief
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout, restripe
from raidx_fuse.layouts.plugged import require_origin
from raidx_fuse.layouts.registry import LAYOUTS, ORDER_PARAM, LayoutError, find_layout, make_layout

RESTRIPE = features.RESTRIPE
MIGRATED = "migrated"


@dataclass(frozen=True, slots=True)
class Shape:
    """The name of a layout, its width in members and its parameters.

    *roles*: of a restripe's members, ascending, those on which the layout is; None: the first ones.
    """

    layout: str
    width: int
    params: dict[str, Any]
    roles: tuple[int, ...] | None = None

    def as_dict(self) -> dict[str, object]:
        values = {"layout": self.layout, "width": self.width, "params": dict(self.params)}
        return values if self.roles is None else values | {"roles": list(self.roles)}

    def members(self) -> frozenset[Role]:
        """Return the roles of the members on which the layout is."""
        return frozenset(map(Role, range(self.width) if self.roles is None else self.roles))

    def make(self, config: ArrayConfig) -> Layout:
        """Return the layout for the members and chunk size of *config*. Raises LayoutError."""
        require_origin(LAYOUTS, self.layout, self.width, self.params)
        info = find_layout(self.layout)
        known = info.params if info.bundled else info.params | ORDER_PARAM
        unknown = sorted(set(self.params) - set(known))
        if unknown:
            raise LayoutError(f"{self.layout} has no parameter {unknown[0]!r}")
        chunks = config.regions.data.length // config.chunk_bytes
        return make_layout(self.layout, self.width, chunks, config.chunk_bytes, **self.params)


def shape_of(config: ArrayConfig) -> Shape:
    """Return the shape of an array that is not being restriped."""
    return Shape(config.layout, config.width, config.params)


def shapes_of(config: ArrayConfig) -> tuple[Shape, ...]:
    """Return the shape of *config*; during a restripe the old and the new one.

    Raises FormatError if the parameters of the restripe are not valid.
    """
    moving = config.params.get(RESTRIPE)
    if moving is None:
        return (shape_of(config),)
    try:
        shapes = tuple(_shape(**moving[side]) for side in ("from", "to"))
        for shape in shapes:
            require_origin(LAYOUTS, shape.layout, shape.width, shape.params)
        known = all(LAYOUTS[shape.layout].allows(shape.width) for shape in shapes)
        known = known and all(isinstance(shape.params, dict) for shape in shapes)
        known = known and max(shape.width for shape in shapes) == config.width
        known = known and all(_fits(shape, config.width) for shape in shapes)
    except (KeyError, TypeError) as error:
        raise FormatError("the restripe of the array cannot be read") from error
    except LayoutError as error:
        raise FormatError(f"array {config.name!r} cannot be used: {brief(error)}") from error
    if not known or any(LAYOUTS[shape.layout].bundled for shape in shapes):
        raise FormatError(f"the restripe of the array is not one of {config.width} members")
    return shapes


def _shape(**values: Any) -> Shape:
    shape = Shape(**values)
    return shape if shape.roles is None else replace(shape, roles=tuple(shape.roles))


def _fits(shape: Shape, width: int) -> bool:
    """Return whether the roles of *shape* are possible on *width* members."""
    roles = range(shape.width) if shape.roles is None else shape.roles
    return all(type(role) is int and 0 <= role < width for role in roles) and (
        sorted(set(roles)) == list(roles) and len(roles) == shape.width
    )


def leaving_roles(config: ArrayConfig) -> frozenset[Role]:
    """Return the roles whose members leave when the restripe under way ends."""
    if RESTRIPE not in config.params or config.jobs.get(RESTRIPE, {}).get("back"):
        return frozenset()
    old, new = shapes_of(config)
    return old.members() - new.members()


def layout_of(config: ArrayConfig) -> Layout:
    """Return the layout that *config* describes. Raises FormatError."""
    shapes = shapes_of(config)
    try:
        made = shapes[0].make(config) if len(shapes) == 1 else restriping(config, *shapes)
    except LayoutError as error:
        raise FormatError(
            f"array {config.name!r} has an impossible layout: {brief(error)}"
        ) from error
    room = config.regions.pages("written").pages * PAYLOAD_BITS
    if not made.stripes or not made.size_bytes or made.chunks > room:
        raise FormatError(
            f"array {config.name!r} has an impossible layout: {made.chunks} chunks in "
            f"{made.stripes} stripes, and a map of {room}"
        )
    return made


def restriping(config: ArrayConfig, old: Shape, new: Shape) -> RestripeLayout:
    """Return the layout at the beginning of a restripe from *old* to *new*. Raises LayoutError."""
    before = old.make(config)
    size = before.size_bytes
    if config.size_bytes is not None:
        size = min(size, config.size_bytes)
    return restripe(before, new.make(config), -(-size // config.chunk_bytes), new.roles)


def can_lose(config: ArrayConfig, lost: frozenset[Role]) -> bool:
    """Return whether all layouts of *config*, none of them bundled, tolerate the loss of *lost*."""
    return all(
        len(lost & shape.members()) <= LAYOUTS[shape.layout].tolerance(shape.width)
        for shape in shapes_of(config)
    )


def sum_copies_of(config: ArrayConfig) -> int:
    """Return how many copies of its checksums outlast all losses that the layouts tolerate."""
    return 1 + max(LAYOUTS[s.layout].tolerance(s.width) for s in shapes_of(config))
