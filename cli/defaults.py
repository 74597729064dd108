"""Defaults of options from files: ``/etc/raidx.conf``, then the user's own ``config.toml``.

Both are TOML: a table for each command, in it option names without the dashes::

    [mount]
    allow-other = true

    [volume.create]
    sparse = true

The command line wins over the user's file, that over /etc. `RAIDX_CONFIG` names one file to read
instead of both; empty: none. Options that permit losses are refused in a file.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from pathlib import Path

import click

from raidx_fuse.errors import Reason, UsageError

SYSTEM = Path("/etc/raidx.conf")
VARIABLE = "RAIDX_CONFIG"
BYTES_MAX = 1 << 20
ONLY_BY_HAND = (
    *("lose_data", "lose_redundancy", "overwrite_signature", "start_degraded"),
    *("accepted", "accept_degraded"),
)


def places() -> list[Path]:
    """Return the files to read, the one that counts most last."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return [Path(named)] if named else []
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [SYSTEM, Path(home) / "raidx" / "config.toml"]


def read() -> dict[str, object]:
    """Return the tables of all files, merged. Raises UsageError for a file that is not right."""
    merged: dict[str, object] = {}
    for path in places():
        try:
            with open(path, "rb") as file:
                text = file.read(BYTES_MAX + 1)
        except FileNotFoundError:
            if os.environ.get(VARIABLE):
                raise UsageError(
                    f"{path}: there is no such file", action=f"see {VARIABLE}"
                ) from None
            continue
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", action="make it readable") from None
        import tomllib  # late: few machines have a file

        try:
            if len(text) > BYTES_MAX:
                raise ValueError(f"it is larger than {BYTES_MAX} bytes")
            values = tomllib.loads(text.decode())
        except (ValueError, RecursionError) as error:
            what = " ".join(str(error).split())
            raise UsageError(f"{path}: {what}", action="correct the file, or remove it") from None
        _merge(merged, values, str(path))
    return merged


def _merge(into: dict[str, object], values: Mapping[str, object], where: str) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{where}: {key} is an option and a table")
            _merge(inner, value, where)
        else:
            into[key] = value


def check_names(tables: Mapping[str, object], commands: Container[str]) -> None:
    """Raise UsageError if one of *tables* is of no command."""
    for name, value in tables.items():
        if name not in commands or not isinstance(value, dict):
            raise UsageError(
                f"the defaults file has [{name[:40]}], which is no command",
                action="see `raidx --help`",
                reason=Reason.UNKNOWN_COMMAND,
            )


def of_command(command: click.Command, table: object) -> dict[str, object]:
    """Return *table*, of the files, by the names of the parameters of *command*.

    Raises UsageError for what is no option of it, or may only be given by hand.
    """
    if not isinstance(table, dict):
        return {}
    options = {
        opt.lstrip("-"): param
        for param in command.params
        if isinstance(param, click.Option)
        for opt in (*param.opts, *param.secondary_opts)
    }
    found: dict[str, object] = {}
    for key, value in table.items():
        option = options.get(key.replace("_", "-"))
        place = f"[{command.name}] {key[:40]}"
        if option is None:
            action = f"see `raidx {command.name} --help`"
            raise UsageError(
                f"the defaults file has {place}, which is no option",
                action=action,
                reason=Reason.UNKNOWN_OPTION,
            )
        if option.name in ONLY_BY_HAND:
            raise UsageError(
                f"the defaults file has {place}: that is given by hand, each time",
                action="remove it there",
            )
        is_flag = option.is_flag and isinstance(value, bool)
        is_value = not option.is_flag and type(value) in (str, int, float)
        is_list = option.multiple and isinstance(value, list)
        if not (is_flag or is_value or is_list):
            raise UsageError(f"the defaults file has {place} = {str(value)[:40]!r}: wrong type")
        found[str(option.name)] = value if is_flag or is_list else str(value)
        if option.multiple and not is_list:
            found[str(option.name)] = [str(value)]
    return found
