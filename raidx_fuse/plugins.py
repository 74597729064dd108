"""Layouts and parity policies of other packages, found by their entry points.

A package names them in its pyproject.toml:

    [project.entry-points."raidx.layouts"]
    raid50 = "raidx_raid50:raid50"

Packages are searched only when a name is asked for that is not built in, or all names are wanted,
so commands that need no plug-in do not pay for them. A plug-in that cannot be used is an error only
if it is asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

LAYOUT_GROUP = "raidx.layouts"
POLICY_GROUP = "raidx.policies"
SHOWN_CHARS = 200  # of what a plug-in's own error says


class PluginError(ValueError):
    """A plug-in cannot be used; one line that names its package."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """The object *target* that a *package* of *version* offers under *name*."""

    name: str
    package: str
    version: str
    target: Any = field(compare=False)  # it may have no hash

    @property
    def origin(self) -> str:
        """The package with its version, for messages."""
        return f"{self.package} {self.version}"


def one_line(error: BaseException) -> str:
    """Return the kind and the text of a plug-in's error as one short line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown[:SHOWN_CHARS].removesuffix(": ")


def names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages offer in *group*, in order; imports none of them."""
    return tuple(sorted(_entries(group)))


def offered(group: str, name: str) -> bool:
    return name in _entries(group)


def packages(group: str, name: str) -> str:
    """Return the packages that offer *name*, for messages."""
    found = sorted((package, version) for package, version, _ in _entries(group)[name])
    return " and ".join(f"{package} {version}" for package, version in found)


@lru_cache(maxsize=256)
def load(group: str, name: str) -> Plugin:
    """Import *name* of *group*, which a package offers. Raises PluginError."""
    found = _entries(group)[name]
    if len(found) > 1:
        raise PluginError(f"{name!r} is offered by {packages(group, name)}: uninstall all but one")
    package, version, entry = found[0]
    try:
        target = entry.load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{name!r} of package {package} {version} cannot be imported: {one_line(error)}"
        ) from error
    if not callable(target):
        raise PluginError(f"{name!r} of package {package} {version} is no function")
    return Plugin(name, package, version, target)


@lru_cache(maxsize=8)
def _entries(group: str) -> dict[str, list[tuple[str, str, EntryPoint]]]:
    """Return (package, version, entry point) of all that is offered in *group*, by name."""
    from importlib.metadata import distributions  # late: it takes longer than a short command

    found: dict[str, list[tuple[str, str, EntryPoint]]] = {}
    seen: set[str] = set()  # of two copies of a package, the first in the path counts
    for distribution in distributions():
        try:
            entries = list(distribution.entry_points.select(group=group))
            if not entries:
                continue
        except Exception:  # metadata of any package on the machine; not readable, so not ours
            continue
        package, version = _name_of(distribution)
        key = package.lower().replace("_", "-").replace(".", "-")
        if key not in seen:
            seen.add(key)
            for entry in entries:
                found.setdefault(entry.name, []).append((package, version, entry))
    return found


def _name_of(distribution: Distribution) -> tuple[str, str]:
    """Return the package and its version, for messages, whatever of its metadata is missing."""
    try:  # the backport importlib_metadata, once imported by any module, raises if there is none
        metadata = distribution.metadata
        return metadata["Name"] or "without a name", metadata["Version"] or "?"
    except Exception:
        return "without a name", "?"
