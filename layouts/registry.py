"""The registry of layouts: for each name the allowed widths, tolerance, efficiency and builder.

`make_code` and `make_layout` build them. An unknown name or an impossible width raises
`LayoutError` with one line that names the nearest valid ones. A new layout is a builder of its code
in codes/, a row in `LAYOUTS` here, and its fields in layout_info.py; one of another package:
plugged.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.code import LayoutError as LayoutError
from raidx_fuse.layouts.codes.horizontal import (
    evenodd,
    is_prime,
    rdp,
    replicas,
    single_parity,
    striping,
)
from raidx_fuse.layouts.codes.vertical import pcode, upc, xcode
from raidx_fuse.layouts.elastic_params import ELASTIC_PARAMS, make_elastic
from raidx_fuse.layouts.elastic_params import PARITY_WAYS as PARITY_WAYS
from raidx_fuse.layouts.layout_info import WIDTH_MAX as WIDTH_MAX
from raidx_fuse.layouts.layout_info import LayoutInfo as LayoutInfo
from raidx_fuse.layouts.placements.bundled import bundle_code, make_bundles
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.numbering import OrderedLayout, numbering_from
from raidx_fuse.layouts.placements.pattern import PatternLayout
from raidx_fuse.layouts.placements.rotated import RotatedLayout, rotation_pattern
from raidx_fuse.layouts.plugged import Layouts, require_origin

CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = 1 << 20
WIDTH_MAX_TWO_LOSSES = 64
"""The cells of a two-loss code grow with the square of the width: 64 columns have 4000 cells."""


def _two_losses(
    name: str,
    title: str,
    build: Callable[..., Code],
    allowed: Callable[[int], bool] | None = None,
    widths: str = "4 to 64",
) -> LayoutInfo:
    """Return the entry of a two-loss code. Without *allowed* it is horizontal and can be rotated.

    *allowed* says whether a vertical code exists for a width; *widths* says it in words.
    """
    return LayoutInfo(
        name,
        title,
        widths,
        "upc",
        4,
        build,
        width_max=WIDTH_MAX_TWO_LOSSES,
        allows_width=allowed or (lambda _width: True),
        params={}
        if allowed
        else {
            "rotate": "true rotates the columns by one each stripe",
            "prime": "the prime of the code, which limits the number of members",
            **ELASTIC_PARAMS,
        },
        tolerance=lambda _width: 2,
        efficiency=lambda width: (width - 2) / width,
    )


def _bundled(
    name: str, title: str, length_min: int, losses: int, share: Callable[[int], float]
) -> LayoutInfo:
    """Return the entry of a raidx layout, whose bundles have at least *length_min* chunks."""
    return LayoutInfo(
        name,
        title,
        f"{length_min} or more, of any sizes",
        "raidx",
        length_min,
        params={
            "length": f"chunks in a bundle, from {length_min}",
            "chunk_counts": "list with the number of chunks of each member",
            "bundles": "number of bundles; as many as possible if not given",
            "founding": "counts, bundles and roles with which the array was created",
            "numbering": "turns: bundles of one chunk lie on the members in turn",
        },
        bundled=True,
        members_by="bundles",
        tolerance=lambda _width: losses,
        efficiency=share,
    )


ORDER_PARAM = {"order": "after a restripe of a grown array: the order of its chunks"}

LAYOUTS = Layouts(
    [
        LayoutInfo(
            "raid0",
            "striping, no redundancy",
            "1 to 255",
            "",
            1,
            striping,
            params=ELASTIC_PARAMS,
            tolerance=lambda _width: 0,
            efficiency=lambda _width: 1.0,
        ),
        LayoutInfo(
            "raid1",
            "every member a copy",
            "2 to 255",
            "",
            2,
            replicas,
            members_by="copies",
            tolerance=lambda width: width - 1,
            efficiency=lambda width: 1 / width,
        ),
        LayoutInfo(
            "raid4",
            "single parity on one member, grows by the elastic mapping",
            "3 to 255",
            "mcpod",
            3,
            single_parity,
            params=ELASTIC_PARAMS,
        ),
        LayoutInfo(
            "raid5",
            "single parity, rotated (left-symmetric)",
            "3 to 255",
            "bpu",
            3,
            single_parity,
            rotation="left",
            params=ELASTIC_PARAMS,
        ),
        _two_losses("rdp", "row-diagonal parity", rdp),
        _two_losses("evenodd", "row parity and adjusted diagonals", evenodd),
        _two_losses(
            "xcode",
            "vertical, two diagonal parities in each column",
            xcode,
            lambda width: width >= 5 and is_prime(width),
            "primes from 5: 5, 7, 11, 13, ...",
        ),
        _two_losses(
            "pcode",
            "vertical, one parity in each column, pairs in rising order",
            pcode,
            lambda width: is_prime(width + 1),
            "primes less one: 4, 6, 10, 12, 16, ...",
        ),
        _two_losses(
            "upc",
            "Uniform P-code: P-code with its pairs spread evenly over the rows",
            upc,
            lambda width: is_prime(width + 1),
            "primes less one: 4, 6, 10, 12, 16, ...",
        ),
        LayoutInfo(
            "mcpod", "raid4 under the elastic mapping, grown or to be grown", "3 to 255", "mcpod", 3
        ),
        _bundled("raidx-zero", "bundles without redundancy on unlike members", 1, 0, lambda _: 1.0),
        _bundled("raidx-copy", "bundles of copies (length 2 or more)", 2, 1, lambda _: 1 / 2),
        _bundled(
            "raidx-parity", "bundles with parity (length 3 or more)", 3, 1, lambda _width: 2 / 3
        ),
    ]
)


OTHER_NAMES = {  # of the field: the layouts here that do the same
    "raid6": ("rdp", "evenodd", "upc"),
    "raid10": ("raidx-copy",),
    "mirror": ("raid1",),
    "stripe": ("raid0",),
}


def find_layout(name: str) -> LayoutInfo:
    """Return the entry of *name*. Raises LayoutError naming the layouts that may be meant."""
    info = LAYOUTS.get(name)
    if info is not None:
        return info
    wanted = name.lower()
    near = OTHER_NAMES.get(wanted) or difflib.get_close_matches(wanted, LAYOUTS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(LAYOUTS)}"
    raise LayoutError(f"unknown layout {name!r}; {hint}")


def allowed_widths(name: str, width_max: int = 32) -> tuple[int, ...]:
    """Return the widths up to *width_max* for which layout *name* exists. Raises LayoutError."""
    info = find_layout(name)
    return tuple(width for width in range(1, width_max + 1) if info.allows(width))


def make_code(name: str, width: int) -> Code:
    """Return the code of layout *name* for *width* members.

    Raises LayoutError for unknown names and widths, for layouts without a fixed code, and for
    a plug-in that fails.
    """
    info = find_layout(name)
    info.check_width(width)
    if info.build is None:
        raise LayoutError(
            f"{name} places chunks one by one: it has no stripes as wide as the array"
        )
    return info.build(width)


def _maker(name: str, width: int, params: Mapping[str, object]) -> Callable[[int], Code]:
    """Return what makes the code for a number of members; of *width* members without a growth.

    The prime of a code is the one in *params*, or was chosen for the first members. Raises
    LayoutError.
    """
    info = find_layout(name)
    if "prime" not in info.params:
        return lambda members: make_code(name, members)
    prime, history = params.get("prime"), params.get("history")
    if prime is None:
        first = history[0] if isinstance(history, list | tuple) and history else width
        prime = make_code(name, first).rows + 1
    if type(prime) is not int:
        raise LayoutError(f"prime must be a number, not {prime!r}")

    def make(members: int) -> Code:
        info.check_width(members)
        assert info.build is not None
        return info.build(members, prime)

    return make


def code_for(name: str, width: int, params: Mapping[str, object]) -> Code:
    """Return the code of a stripe, or of a bundle, of layout *name* with *params*.

    Raises LayoutError for the same reasons as `make_code`, and for a wrong bundle length or prime.
    """
    info = find_layout(name)
    if not info.bundled:
        return _maker(name, width, params)(width)
    info.check_width(width)
    code = bundle_code(name, params.get("length"))
    if code.columns > width:
        raise LayoutError(f"bundles of {code.columns} chunks need {code.columns} members")
    return code


def make_layout(
    name: str, width: int, member_chunks: int, chunk_bytes: int, **params: object
) -> Layout:
    """Return layout *name* over *width* members with *member_chunks* chunks of *chunk_bytes* each.

    Chunks that do not fill a whole last stripe stay unused. Raises LayoutError, one line, for an
    unknown name, width or parameter, and for members that are too small.
    """
    info, code = _checked(name, width, chunk_bytes, params)
    counts = params.get("chunk_counts") if info.bundled else None
    if counts is not None:
        more = (params.get(key) for key in ("bundles", "founding", "numbering"))
        return make_bundles(name, counts, chunk_bytes, code.columns, *more)
    if params.get("history") is not None:
        return _elastic(info, width, member_chunks, chunk_bytes, params)
    rotation, pattern = "left" if is_rotated(name, params) else "fixed", info.pattern(width)
    if pattern is not None and rotation == "left":
        raise LayoutError(f"{name} has a placement of its own: its columns are not rotated")
    if "order" in params:
        order, known = numbering_from(params["order"]), pattern or rotation_pattern(width, rotation)
        return OrderedLayout(order, name, code, chunk_bytes, member_chunks, width, known)
    if pattern is not None:
        return PatternLayout(name, code, chunk_bytes, member_chunks, width, pattern)
    return RotatedLayout(name, code, chunk_bytes, member_chunks // code.rows, rotation)


def make_grown(
    name: str, width: int, member_chunks: int, chunk_bytes: int, **params: object
) -> ElasticLayout:
    """Return layout *name* as `make_layout` does, with the history that *params* have.

    Raises LayoutError.
    """
    info, _ = _checked(name, width, chunk_bytes, params)
    return _elastic(info, width, member_chunks, chunk_bytes, params)


def _checked(
    name: str, width: int, chunk_bytes: int, params: Mapping[str, object]
) -> tuple[LayoutInfo, Code]:
    """Return the entry of *name* and the code for *params*. Raises LayoutError."""
    require_origin(LAYOUTS, name, width, params)
    info = find_layout(name)
    counts = params.get("chunk_counts") if info.bundled else None
    surrogate = params.get("parity") == "surrogate"  # the last role is not a column of the code
    listed = counts is not None or not info.bundled
    code = code_for(name, width - surrogate, params) if listed else make_code(name, width)
    check_chunk_bytes(chunk_bytes)
    allowed = info.params if info.bundled else info.params | ORDER_PARAM
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        known = ", ".join(info.params) or "none"
        raise LayoutError(f"{name} has no parameter {unknown[0]!r} (parameters: {known})")
    return info, code


def _elastic(
    info: LayoutInfo, width: int, member_chunks: int, chunk_bytes: int, params: Mapping[str, object]
) -> ElasticLayout:
    if "order" in params:
        raise LayoutError("an array that was restriped after a growth does not grow in place")
    name, members = info.name, (width - (params.get("parity") == "surrogate"), member_chunks)
    maker, rotated = _maker(name, width, params), is_rotated(name, params)
    return make_elastic(name, info.width_min, members, chunk_bytes, maker, rotated, params)


def is_rotated(name: str, params: Mapping[str, object]) -> bool:
    """Return whether the columns of layout *name* with *params* turn from stripe to stripe."""
    return bool(params.get("rotate", find_layout(name).rotation == "left"))


def grows_in_place(name: str) -> bool:
    """Return whether arrays of layout *name* grow by the elastic mapping, without a restripe."""
    return "history" in find_layout(name).params


# -- how far arrays can grow in place: the prime of a two-loss code limits the members -------------


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


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Raise LayoutError unless *chunk_bytes* is a power of two from 4 KiB to 1 MiB."""
    if chunk_bytes & (chunk_bytes - 1) or not CHUNK_BYTES_MIN <= chunk_bytes <= CHUNK_BYTES_MAX:
        raise LayoutError(
            f"a chunk of {chunk_bytes} bytes is not possible: powers of two from "
            f"{CHUNK_BYTES_MIN} (4 KiB) to {CHUNK_BYTES_MAX} (1 MiB)"
        )
