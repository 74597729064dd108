"""Whether JSON values from outside (a socket, a superblock, a file) have the expected types."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import UnionType
from typing import (
    Any,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the types of the keys of a TypedDict, or of the fields of a dataclass."""
    return get_type_hints(kind)


def fits(value: object, hint: Any) -> bool:
    """Return whether a JSON *value* has the type *hint*: a bool is no int, an int is a float.

    A key that is missing in an object is not looked at: a daemon of an earlier version has fewer.
    """
    if hint is Any:
        return True
    if is_typeddict(hint):
        return isinstance(value, dict) and all(
            fits(value[key], each) for key, each in hints_of(hint).items() if key in value
        )
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is list:
        return isinstance(value, list) and all(fits(each, arguments[0]) for each in value)
    if origin is tuple:
        return (
            isinstance(value, list)
            and len(value) == len(arguments)
            and all(map(fits, value, arguments))
        )
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(fits(each, arguments[1]) for each in value.values())
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def wrong_key(value: Mapping[str, object], kind: Any) -> str | None:
    """Return a key of the TypedDict *kind* that *value* has with another type, None if none is.

    One that is missing counts as None, unless it is not required.
    """
    for key, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired or key in kind.__optional_keys__
        if not (optional and key not in value) and not fits(value.get(key), hints_of(kind)[key]):
            return key
    return None
