"""Commands that print and change the settings of a running array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.parameters import ASSIGNMENT, KEY, array_argument
from raidx_fuse.errors import UsageError
from raidx_fuse.settings import SETTINGS
from raidx_fuse.units import format_seconds

if TYPE_CHECKING:
    from raidx_fuse.documents import Settings


@verb()
@array_argument
@click.argument("key", required=False, type=KEY)
def get(out: Output, array: str, key: str | None) -> None:
    """Print one setting, or all."""
    _print_settings(out, ask(out, array, "get", key=key) if key else ask(out, array, "get"))


@verb("set")
@array_argument
@click.argument("assignment", metavar="KEY=VALUE", type=ASSIGNMENT)
def set_value(out: Output, array: str, assignment: str) -> None:
    """Change a setting; it takes effect immediately and is kept in the array."""
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise UsageError(f"{assignment!r} is not KEY=VALUE", action=f"see raidx get {array}")
    _print_settings(out, ask(out, array, "set", key=key.strip(), value=value.strip()))


def _print_settings(out: Output, result: Settings) -> None:
    table = Table()
    for key, value in result["settings"].items():
        table.add_row(key, _value_text(key, value, out))
    out.emit(result, table)


def _value_text(key: str, value: Any, out: Output) -> str:
    """Return a value as `raidx set` takes it, with its unit."""
    unit = SETTINGS[key].unit if key in SETTINGS else ""
    if isinstance(value, dict):  # a pool whose arrays differ
        return ", ".join(f"{array}: {_value_text(key, one, out)}" for array, one in value.items())
    unit = unit if isinstance(value, int | float) else ""
    if unit == "seconds":
        return format_seconds(value)
    if value is None:
        return "off"
    return out.size(value) if unit == "bytes" else str(value)
