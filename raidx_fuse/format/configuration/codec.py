"""Values to JSON and back, by their types: what superblocks hold is written down once, as classes.

    dataclass          an object with its fields, stored as `Stored` says
    NamedTuple         a list of its fields
    tuple[T, ...]      a list; tuple[T, U]: one of two values
    dict[str, T]       an object
    T | None           null, too
    Annotated[T, f]    T, read as f(T)
    Any                JSON as it is

Types are exact: a bool is no int, but an int is a float. A class that has UNKNOWN, the beginning of
a sentence, refuses a field that it does not know; others ignore it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NewType,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from raidx_fuse.errors import FormatError, OtherVersionError
from raidx_fuse.format.configuration.names import brief

T = TypeVar("T")


class Stored(NamedTuple):
    """How a field of a dataclass is stored: Annotated[T, Stored(...)].

    * *key*: its name there, "" if it is not stored; None: as in the class.
    * *optional*: absent where it has its default, and never null.
    * *only*: the field of the object and its value without which this one must be absent.
    * *refused*: what is said of a wrong value, with the fields before it in braces.
    """

    key: str | None = None
    optional: bool = False
    only: tuple[str, str] | None = None
    refused: str = ""


class _Codec(NamedTuple):
    """Both raise ValueError or KeyError; *read* is given the name that the error uses."""

    read: Callable[[object, str], object]
    write: Callable[[object], object]


class _Field(NamedTuple):
    name: str
    key: str
    stored: Stored
    default: object
    codec: _Codec


def encode(value: object) -> dict[str, Any]:
    """Return *value*, a dataclass, as JSON values."""
    return cast("dict[str, Any]", _codec_of(type(value)).write(value))


def decode(kind: type[T], value: object, name: str = "the value") -> T:
    """Return the *kind* that is *value* as JSON. Raises ValueError, KeyError, OtherVersionError."""
    return cast("T", _codec_of(kind).read(value, name))


def require_known(what: str, known: Collection[str], found: Iterable[str]) -> None:
    """Raise OtherVersionError, which begins with *what*, if *found* has a name not in *known*."""
    unknown = sorted(name for name in found if name not in known)
    if unknown:
        raise OtherVersionError(f"{what} {brief(repr(unknown[0]))}, unknown to this raidx")


def _codec_of(hint: Any) -> _Codec:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return _Codec(lambda value, _name: value, lambda value: value)
    if isinstance(hint, NewType):
        return _codec_of(hint.__supertype__)
    if origin is Annotated:
        plain, convert = _codec_of(arguments[0]), arguments[1]
        return _Codec(lambda value, name: convert(plain.read(value, name)), plain.write)
    if origin is UnionType:
        (inner,) = (_codec_of(each) for each in arguments if each is not type(None))
        return _Codec(
            lambda value, name: None if value is None else inner.read(value, name),
            lambda value: None if value is None else inner.write(value),
        )
    if origin is tuple and arguments[1:] == (...,):
        return _many(_codec_of(arguments[0]))
    if origin is tuple:
        return _row(tuple, tuple(map(_codec_of, arguments)), "the pair")
    if origin is dict:
        return _map(_codec_of(arguments[1]))
    if hasattr(hint, "__dataclass_fields__"):
        return _object(hint)
    if issubclass(hint, tuple):
        codecs = tuple(map(_codec_of, get_type_hints(hint, include_extras=True).values()))
        return _row(lambda values: hint(*values), codecs, f"a {hint.__name__.lower()}")
    return _scalar(hint)


def _wrong(name: str, value: object) -> ValueError:
    return ValueError(f"{name} is {value!r}")


def _scalar(kind: type) -> _Codec:
    kinds = (float, int) if kind is float else (kind,)

    def read(value: object, name: str) -> object:
        if type(value) not in kinds:
            raise _wrong(name, value)
        return value

    return _Codec(read, lambda value: read(value, "a value"))


def _many(inner: _Codec) -> _Codec:
    def read(value: object, name: str) -> object:
        if not isinstance(value, list):
            raise _wrong(name, value)
        return tuple(inner.read(one, "entry") for one in value)

    return _Codec(read, lambda value: [inner.write(one) for one in cast("tuple[object]", value)])


def _row(make: Callable[[Any], object], codecs: tuple[_Codec, ...], what: str) -> _Codec:
    def read(value: object, _name: str) -> object:
        if not isinstance(value, list) or len(value) != len(codecs):
            raise _wrong(what, value)
        try:
            return make([codec.read(one, what) for codec, one in zip(codecs, value, strict=True)])
        except ValueError:
            raise _wrong(what, value) from None

    def write(value: object) -> object:
        values = cast("tuple[object]", value)
        return [codec.write(one) for codec, one in zip(codecs, values, strict=True)]

    return _Codec(read, write)


def _map(inner: _Codec) -> _Codec:
    def read(value: object, name: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(name, value)
        return {key: inner.read(one, key) for key, one in value.items()}

    def write(value: object) -> object:
        return {key: inner.write(one) for key, one in cast("dict[str, object]", value).items()}

    return _Codec(read, write)


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    stored = Stored()
    if get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], Stored):
        stored, hint = hint.__metadata__[0], hint.__origin__
    if stored.optional and get_origin(hint) is UnionType:
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    key = field.name if stored.key is None else stored.key
    return _Field(field.name, key, stored, field.default, _codec_of(hint))


@cache
def _object(kind: Any) -> _Codec:
    hints = get_type_hints(kind, include_extras=True)
    every = [_field(field, hints[field.name]) for field in dataclasses.fields(kind)]
    every = [field for field in every if field.key]
    unknown: str | None = getattr(kind, "UNKNOWN", None)
    is_plain = all(field.stored.only is None for field in every)

    def among(values: dict[str, object]) -> list[_Field]:
        if is_plain:
            return every
        only = ((field, field.stored.only) for field in every)
        return [field for field, at in only if at is None or values.get(at[0]) == at[1]]

    def read(value: object, name: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(name, value)
        present = among(value)
        if unknown is not None:
            require_known(unknown, [field.key for field in present], value)
        found: dict[str, object] = {}
        for field in present:
            if field.stored.optional and field.key not in value:
                continue
            try:
                found[field.name] = field.codec.read(value[field.key], field.key)
            except (ValueError, KeyError, FormatError):
                if not field.stored.refused:
                    raise
                raise ValueError(field.stored.refused.format(**found)) from None
        return kind(**found)

    def write(value: object) -> object:
        values = {field.name: getattr(value, field.name) for field in every}
        return {
            field.key: field.codec.write(values[field.name])
            for field in among(values)
            if not field.stored.optional or values[field.name] != field.default
        }

    return _Codec(read, write)
