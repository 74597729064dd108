"""Checks the arguments of a request against the parameters of its command.

The checks cover types, bounds and the names of members. They cost the event loop almost no time, so
that bad requests do not delay the users of the disk.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence, Sized
from types import SimpleNamespace
from typing import Any

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.layouts.registry import WIDTH_MAX
from raidx_fuse.members.spec import parse_spec
from raidx_fuse.typed import fits

Result = Mapping[str, Any]
"""The answer of a command: JSON values."""

TEXT_CHARS_MAX = 8192  # a kernel path has up to 4096 bytes, a disk model's parameters somewhat more
WORD_CHARS_MAX = 100  # of a word that an error message repeats
NUMBER_MAX = (1 << 63) - 1


def check_arguments(name: str, handler: Callable[..., Any], arguments: dict[str, object]) -> None:
    """Raise UsageError unless *arguments* fit the parameters and types of *handler*."""
    parameters = inspect.signature(handler).parameters
    # without that of the answer: its types are for mypy, and take 30 ms to load
    annotations = {key: parameter.annotation for key, parameter in parameters.items()}
    hints = typing.get_type_hints(
        SimpleNamespace(__annotations__=annotations), vars(sys.modules[handler.__module__])
    )
    for key in arguments:
        if key not in parameters:
            raise UsageError(f"{name} has no argument {key[:WORD_CHARS_MAX]!r}")
    for key, parameter in parameters.items():
        if key not in arguments:
            if parameter.default is inspect.Parameter.empty:
                raise UsageError(f"{name} needs the argument {key!r}")
            continue
        _within_bounds(name, key, arguments[key])
        if not fits(arguments[key], hints[key]):
            shown = repr(arguments[key])
            shown = shown if len(shown) <= WORD_CHARS_MAX else f"{shown[:WORD_CHARS_MAX]}..."
            raise UsageError(f"{name}: {key} cannot be {shown}")


def check_newcomers(members: Sequence[str], present: Sized) -> None:
    """Raise UsageError if *members*, as users name them, name a path twice or are too many."""
    if len(members) + len(present) > WIDTH_MAX:
        raise UsageError(
            f"{len(members)} members in addition to {len(present)} are too many: "
            f"an array has at most {WIDTH_MAX}",
            reason=Reason.LIMIT,
        )
    seen = set()
    for member in members:
        path = parse_spec(member).path
        if path in seen:
            raise UsageError(f"{path} is named twice", action="name each member once")
        seen.add(path)


def _within_bounds(name: str, key: str, value: object) -> None:
    """Raise UsageError for a list, text or number larger than any reasonable one."""
    if isinstance(value, list):
        if len(value) > WIDTH_MAX:
            many = f"{name}: {len(value)} {key} are too many"
            raise UsageError(
                f"{many}: an array has at most {WIDTH_MAX} members", reason=Reason.LIMIT
            )
        for item in value:
            _within_bounds(name, key, item)
    elif isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        raise UsageError(f"{name}: {key} is longer than {TEXT_CHARS_MAX} characters")
    elif isinstance(value, int | float) and not -NUMBER_MAX <= value <= NUMBER_MAX:
        raise UsageError(f"{name}: {key} is too large a number")
