"""Parameter types of the commands: sizes, layouts, running arrays; with shell completion.

Options that several commands have stand here, too. What `-n` prints: jobs/costs.py.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from raidx_fuse.daemon import control_client
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.fuse import mountpoint
from raidx_fuse.settings import SETTINGS, text_of
from raidx_fuse.units import parse_seconds, parse_size

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
COMPLETION_S = 1.0  # for the daemon to answer while a user waits for the shell


class ParameterType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """The base of the types of parameters: values stay the text that they are."""

    def offers(self, ctx: click.Context) -> Iterable[CompletionItem]:
        """Return the values that a shell may complete."""
        return ()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [item for item in self.offers(ctx) if item.value.startswith(incomplete)]


class Measure(ParameterType):
    """A text that *parse* reads: a size, or a time, with its unit."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, (int, float)):
            return value
        try:
            return self._parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Permissions(ParameterType):
    """Permissions of a file in octal digits, such as 660."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not re.fullmatch("0?[0-7]{3}", value):
            self.fail(f"{value!r} is not a mode such as 660", param, ctx)
        return int(value, 8)


class LayoutName(ParameterType):
    """The name of a layout; the error for an unknown one suggests a similar name."""

    name = "layout"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises LayoutError."""
        from raidx_fuse.layouts.registry import find_layout  # late: few commands name a layout

        return find_layout(str(value).lower()).name

    def offers(self, ctx: click.Context) -> Iterable[CompletionItem]:
        from raidx_fuse.layouts.registry import LAYOUTS

        return (CompletionItem(info.name, help=info.title) for info in LAYOUTS.values())


class MemberPath(ParameterType):
    """A path, not checked: `click.Path` would call stat, which may hang on a failed disk."""

    name = "path"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class MountedArray(ParameterType):
    """A running array: its mount point, MOUNT:ARRAY, name, UUID, image or member.

    Unless *named*, the command finds out itself what was meant.
    """

    name = "array"

    def __init__(self, *, named: bool = True) -> None:
        self._named = named

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return MOUNT or MOUNT:ARRAY; an unknown name as it is."""
        from raidx_fuse.cli import slips  # late: completion and help do without
        from raidx_fuse.cli.asking import array_named

        named = array_named(str(value)) if self._named else str(value)
        if ctx is not None and param is not None and param.param_type_name == "argument":
            slips.check_order(ctx, param, str(value), named)
        return named

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the mount points of this machine, else directories."""
        found = super().shell_complete(ctx, param, incomplete)
        return found or [CompletionItem(incomplete, type="dir")]

    def offers(self, ctx: click.Context) -> Iterable[CompletionItem]:
        return map(CompletionItem, running())


class MountPoint(MountedArray):
    """What is mounted or served: a mount point, a socket, the name or UUID of an array; no file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the mount point. Raises UsageError for a member, or an image."""
        named = super().convert(value, param, ctx)
        if named != value and os.path.exists(value) and not os.path.isdir(value):
            place = mountpoint.split_array(named)[0]
            raise UsageError(
                f"{value} is no mount point, but belongs to what is mounted on {place}",
                action=f"raidx umount {shlex.quote(place)}",
            )
        return named


class SettingName(ParameterType):
    """The name of a setting of the array on the command line, before ``=VALUE`` if *assigned*."""

    name = "key"

    def __init__(self, *, assigned: bool = False) -> None:
        self._end = "=" if assigned else ""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer names, and behind the name and "=" the words that may follow, the present first."""
        settings = _answer(ctx, "get").get("settings", {})
        name, equals, _ = incomplete.partition("=")
        if not equals:
            items = (
                CompletionItem(
                    key + self._end, help=SETTINGS[key].help if key in SETTINGS else None
                )
                for key in settings
            )
        else:
            items = (CompletionItem(f"{name}={word}") for word in _values(name, settings))
        return [item for item in items if item.value.startswith(incomplete)]


def _values(name: str, settings: Mapping[str, object]) -> Iterable[str]:
    """Return the values that the setting *name* may get: the present one, its words, the default.

    *settings* are those of an array.
    """
    row = SETTINGS.get(name)
    figures = [settings.get(name), row.default if row else None]
    present, default = ("" if value is None else text_of(name, value) for value in figures)
    found = dict.fromkeys((present, *(row.words if row else ()), default))
    return (word.replace(" ", "") for word in found if word)


class Member(ParameterType):
    """A member of the array on the command line: its role, path or UUID."""

    name = "member"

    def offers(self, ctx: click.Context) -> Iterable[CompletionItem]:
        """Offer roles with their paths, and paths, spares among them."""
        members = _answer(ctx, "status").get("members", ())
        items = [CompletionItem(str(m["role"]), help=m["path"]) for m in members if m["role"] >= 0]
        return items + [CompletionItem(m["path"], help=m["state"]) for m in members if m["path"]]


def _answer(ctx: click.Context, command: str) -> dict[str, Any]:
    """Return the answer to *command* of the array on the command line, {} if there is none."""
    try:
        return control_client.call(ctx.params["array"], command, timeout_s=COMPLETION_S)
    except (RaidxError, KeyError, TypeError):
        return {}


def running() -> list[str]:
    """Return the mount points of all arrays that are mounted."""
    paths = (mount.path for mount in mountpoint.mounts() if mount.fs_type == mountpoint.FUSE_TYPE)
    return sorted(set(paths))


def together(*options: Callable[[FunctionT], FunctionT]) -> Callable[[FunctionT], FunctionT]:
    """Return *options* of several commands as one decorator; they take them as keywords."""

    def give(function: FunctionT) -> FunctionT:
        for option in reversed(options):
            function = option(function)
        return function

    return give


SIZE = Measure("size", parse_size)
TIME = Measure("time", parse_seconds)
LAYOUT_NAME = LayoutName()
ARRAY = MountedArray()
ARRAYS = MountedArray(named=False)
MOUNTPOINT = MountPoint()
PATH = MemberPath()
MEMBER = Member()
KEY = SettingName()
ASSIGNMENT = SettingName(assigned=True)
array_argument = click.argument("array", type=ARRAY)
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Only report what would be moved, and the time it takes."
)
overwrite_option = click.option(
    "--overwrite-signature",
    is_flag=True,
    help="Overwrite an array, file system or partition table found on the new member.",
)
wait_option = click.option("--wait", is_flag=True, help="Return when the job has ended.")
