"""Do the arguments of a request fit the command that it names? By type, and members by name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from raidx_fuse.errors import UsageError


def check_arguments(name: str, handler: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Raise UsageError unless *arguments* fit the parameters and types of *handler*."""
    parameters = inspect.signature(handler).parameters
    hints = typing.get_type_hints(handler)
    for key in arguments:
        if key not in parameters:
            raise UsageError(f"{name} has no argument {key!r}")
    for key, parameter in parameters.items():
        if key not in arguments:
            if parameter.default is inspect.Parameter.empty:
                raise UsageError(f"{name} needs the argument {key!r}")
        elif not _fits(arguments[key], hints[key]):
            raise UsageError(f"{name}: {key} cannot be {arguments[key]!r}")


def refuse_twice(members: Sequence[str]) -> None:
    """Raise UsageError if *members*, as users name them, name a path twice."""
    paths = [member.split(",")[0] for member in members]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"{path} is named twice", action="give as many members as are meant")


def _fits(value: Any, hint: Any) -> bool:
    """Say whether a JSON *value* is of the type *hint*: bool is no int, an int is a float."""
    options = typing.get_args(hint) if typing.get_origin(hint) is not list else ()
    if options:
        return any(_fits(value, option) for option in options)
    if typing.get_origin(hint) is list:
        (item,) = typing.get_args(hint)
        return isinstance(value, list) and all(_fits(each, item) for each in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)
