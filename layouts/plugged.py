"""Layouts of other packages beside the built-in ones, and the origin that arrays keep of them.

A plug-in is a function from a number of members to a `Code`, or to a `Placement`, a code with the
pattern by which its columns lie on the members (placements/pattern.py). Its first line of
documentation is the title, and it raises `LayoutError` for a width that it does not have. Title,
tolerance and efficiency follow from the code. What it builds is proved each time (proof.py).

An array of such a layout keeps in its parameters

    {"made_by": {"package": "raidx-raid50", "version": "1.0", "code": fingerprint}}

the fingerprint that of the chains and the pattern, and is refused where the installed package has
others for the same name and width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from raidx_fuse import plugins
from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.layout_info import LayoutInfo
from raidx_fuse.layouts.placements.pattern import Pattern, Placement
from raidx_fuse.layouts.proof import fingerprint, problem_of

MADE_BY = "made_by"
PLUGIN_WIDTH_MAX = 64
_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,39}")
_PARAMS = {
    "rotate": "true rotates the columns by one each stripe",
    MADE_BY: "package, version and fingerprint of the code, kept by an array",
}


class Layouts(Mapping[str, LayoutInfo]):
    """The layouts by name: the built-in ones first, then those of installed packages.

    A name that is not built in is looked for among the packages when it is asked for, and raises
    LayoutError if its package cannot be used. Iteration leaves such layouts out.
    """

    def __init__(self, built_in: Sequence[LayoutInfo]) -> None:
        self._built_in = {info.name: info for info in built_in}

    def __getitem__(self, name: str) -> LayoutInfo:
        info = self._built_in.get(name)
        if info is not None:
            return info
        if not _NAME.fullmatch(name) or not plugins.offered(plugins.LAYOUT_GROUP, name):
            raise KeyError(name)
        return _info_of(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        for name in plugins.names(plugins.LAYOUT_GROUP):
            if name not in self._built_in and self.problem(name) is None:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def problem(self, name: str) -> str | None:
        """Return in words why the plug-in *name* is not used, or None."""
        packages = plugins.packages(plugins.LAYOUT_GROUP, name)
        if name in self._built_in:
            return f"layout {name!r} of {packages} is not used: raidx has that name itself"
        if not _NAME.fullmatch(name):
            return f"layout {name[:40]!r} of {packages} is not used: no layout can have that name"
        try:
            info = _info_of(name)
            if not any(map(info.allows, range(1, PLUGIN_WIDTH_MAX + 1))):
                return f"layout {name!r} of {packages} is not used: it has no width"
        except LayoutError as error:
            return str(error)
        return None

    def problems(self) -> list[str]:
        """Return a line for each plug-in that cannot be used."""
        found = map(self.problem, plugins.names(plugins.LAYOUT_GROUP))
        return [problem for problem in found if problem is not None]


@lru_cache(maxsize=64)
def _info_of(name: str) -> LayoutInfo:
    """Return the entry of the plug-in *name*. Raises LayoutError."""
    try:
        plugin = plugins.load(plugins.LAYOUT_GROUP, name)
    except plugins.PluginError as error:
        raise LayoutError(f"layout {error}") from error
    title = (getattr(plugin.target, "__doc__", None) or "").strip().partition("\n")[0]
    near = partial(_nearest, plugin)
    return LayoutInfo(
        name,
        plugins.one_line(ValueError(title)).partition(": ")[2],
        f"see package {plugin.package}",
        "",
        1,
        lambda width: _proved(plugin, width)[0],
        width_max=PLUGIN_WIDTH_MAX,
        allows_width=lambda width: _call(plugin, width) is not None,
        pattern=lambda width: _proved(plugin, width)[1],
        params=dict(_PARAMS),
        package=plugin.origin,
        tolerance=lambda width: near(width).tolerance,
        efficiency=lambda width: near(width).data_count / len(near(width).cells),
    )


@lru_cache(maxsize=256)
def _call(plugin: plugins.Plugin, width: int) -> object:
    """Return what *plugin* builds for *width* members, None if it has no such width.

    Raises LayoutError if it fails.
    """
    try:
        return plugin.target(width)
    except LayoutError:
        return None
    except (Exception, SystemExit) as error:
        raise LayoutError(
            f"layout {plugin.name!r} of package {plugin.origin} fails for {width} members: "
            f"{plugins.one_line(error)}"
        ) from error


def _nearest(plugin: plugins.Plugin, width: int) -> Code:
    """Return the code for *width* members, or for the next width that exists. Raises LayoutError.

    Tolerance and efficiency are also asked of a layout as such: does it have parity at all?
    """
    widths = (*range(width, PLUGIN_WIDTH_MAX + 1), *range(width - 1, 0, -1))
    return _proved(plugin, next((w for w in widths if _call(plugin, w) is not None), width))[0]


@lru_cache(maxsize=256)  # codes compare by identity
def _proved(plugin: plugins.Plugin, width: int) -> tuple[Code, Pattern | None]:
    """Return the proved code of *plugin*, and the pattern of its placement. Raises LayoutError."""
    built = _call(plugin, width)
    if built is None:
        raise LayoutError(f"{plugin.name} does not exist for {width} members")
    problem = problem_of(built, width)
    if problem is None and isinstance(built, Code):
        return built, None
    if problem is None and isinstance(built, Placement):
        return built.code, tuple(map(tuple, built.pattern))
    raise LayoutError(
        f"layout {plugin.name!r} of package {plugin.origin} is wrong for {width} members: {problem}"
    )


# -- the origin that arrays keep -------------------------------------------------------------------


def origin_params(layouts: Layouts, name: str, width: int) -> dict[str, Any]:
    """Return the parameters that say where layout *name* comes from; none if it is built in.

    Raises LayoutError.
    """
    info = layouts[name]
    if not info.package or info.build is None:
        return {}
    package, _, version = info.package.rpartition(" ")
    code = fingerprint(info.build(width), info.pattern(width))
    return {MADE_BY: {"package": package, "version": version, "code": code}}


def require_origin(layouts: Layouts, name: str, width: int, params: Mapping[str, object]) -> None:
    """Raise LayoutError unless layout *name* is here, with the code with which *params* were made.

    Parameters without an origin are those of a built-in layout, or of a new array.
    """
    made = params.get(MADE_BY)
    if made is None:
        return
    wanted, code = _origin(made)
    info = layouts.get(name)
    if info is None:
        raise LayoutError(
            f"layout {name!r} is of package {wanted}, which is not installed here; install it"
        )
    if not info.package:
        raise LayoutError(
            f"layout {name!r} is of package {wanted}, and this raidx has another one of that "
            "name itself; use the raidx that made the array"
        )
    if origin_params(layouts, name, width)[MADE_BY]["code"] != code:
        raise LayoutError(
            f"layout {name!r} of package {info.package} has other chains or places than that of "
            f"{wanted}, which made the array; install that version"
        )


def _origin(made: object) -> tuple[str, str]:
    """Return the package, for messages, and the fingerprint of the code. Raises LayoutError."""
    match made:
        case {"package": str(package), "version": str(version), "code": str(code)}:
            return " ".join(f"{package[:80]} {version[:40]}".split()), code
    raise LayoutError("the package that made the layout is not named as it should be")
