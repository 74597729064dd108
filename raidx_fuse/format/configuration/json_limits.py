"""Limits of the JSON values in a configuration: numbers and nesting."""

from __future__ import annotations

from typing import Any

from raidx_fuse.format.regions import COUNTER_MAX

DEPTH_MAX = 12  # of nested JSON values


def impossible_number(value: object) -> int | float | None:
    """Return a number in JSON *value* that exceeds COUNTER_MAX, None if there is none."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((n for n in map(impossible_number, value) if n is not None), None)
    if isinstance(value, int | float) and not -COUNTER_MAX <= value <= COUNTER_MAX:
        return value
    return None


def is_too_deep(values: dict[str, Any]) -> bool:
    """Return whether JSON *values* are nested in more than DEPTH_MAX levels."""
    level: list[Any] = [values]
    for _ in range(DEPTH_MAX):
        inner = (v.values() if type(v) is dict else v for v in level)
        level = [value for part in inner for value in part if type(value) in (dict, list)]
    return bool(level)
