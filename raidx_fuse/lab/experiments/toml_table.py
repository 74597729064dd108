"""Reading a TOML table key by key, with errors that name the place and the nearest known key."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from raidx_fuse.errors import UsageError
from raidx_fuse.units import parse_size

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {list: "a list", dict: "a table"}


class Table:
    """A table of the file. Its keys are taken one by one; a key that nobody takes is an error."""

    def __init__(self, place: str, values: Mapping[str, Any]) -> None:
        self.place = place
        self._values = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: type[T], default: T) -> T:
        """Return the value of *key*, or *default*. Raises UsageError if its type is not *kind*."""
        self._known.append(key)
        value: Any = self._values.pop(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is default or type(value) is kind:
            return value  # pyright: ignore[reportReturnType]  # its class is *kind*
        raise UsageError(f"{self.place}: {key} is {_WORDS[kind]}, not {value!r}")

    def size(self, key: str, default: int) -> int:
        """Return a size in bytes, given as text ("64KiB") or as a number. Raises UsageError."""
        value = self._values.get(key)
        if type(value) is int:
            return self.take(key, int, default)
        text = self.take(key, str, "")
        return parse_size(text) if text else default

    def must(self, key: str, kind: type[T], empty: T) -> T:
        """Return the value of *key*. Raises UsageError if it is missing or of another type."""
        if key not in self._values:
            raise UsageError(f"{self.place}: {key} is missing", action=f"add {key} = ...")
        return self.take(key, kind, empty)

    def has(self, key: str) -> bool:
        """Return whether the table has *key*."""
        return key in self._values

    def table(self, key: str) -> Table:
        """Return the table below *key*, empty if there is none."""
        return Table(f"{self.place} [{key}]", self.take(key, dict, {}))

    def tables(self, key: str) -> list[Table]:
        """Return the tables of the list *key*."""
        rows = self.take(key, list, [])
        if not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"{self.place}: {key} is a list of tables, written [[{key}]]")
        return [Table(f"{self.place} [[{key}]] {n}", row) for n, row in enumerate(rows, 1)]

    def end(self) -> None:
        """Raise UsageError if the table has a key that was not taken."""
        for key in self._values:
            near = get_close_matches(key, self._known, 1)
            action = f"did you mean {near[0]}?" if near else f"known: {', '.join(self._known)}"
            raise UsageError(f"{self.place}: unknown key {key!r}", action=action)
