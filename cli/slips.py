"""Slips that people make on the command line, and what they have meant.

Each is recognised by the words as they were typed, and refused with the words to type instead:
arguments in the other order, a size in two words, options of other programs. Nothing is guessed.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Sequence

import click

from raidx_fuse.daemon import paths
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.fuse import mountpoint

_TYPED = "raidx.typed"
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_UNIT = re.compile(r"[KMGTPE]i?B", re.IGNORECASE)  # a letter alone may be the name of a disk
_LEVELS = {"--level", "--raid-level", "-l"}
_LAYOUT_OF = {"0": "raid0", "1": "raid1", "4": "raid4", "5": "raid5", "6": "rdp"}


def note(ctx: click.Context, words: Sequence[str]) -> None:
    """Remember the *words* behind the command. Raises UsageError for a size in two of them."""
    ctx.meta[_TYPED] = [*words]
    for number, unit in itertools.pairwise(words):
        if _NUMBER.fullmatch(number) and _UNIT.fullmatch(unit) and not os.path.exists(unit):
            raise UsageError(
                f"{number} {unit} is one word", action=f"write {number}{unit}, or {number!r} alone"
            )


def check_order(ctx: click.Context, param: click.Parameter, array: str, named: str) -> None:
    """Raise UsageError if the first argument *array* is none, and one that is comes behind it.

    *named*: where the array is mounted that it names, as one of its members say; or *array*.
    """
    words = _words(ctx)
    if array not in words or _is_mounted(array):
        return
    behind = next((word for word in words[words.index(array) + 1 :] if _is_mounted(word)), None)
    # The name of one array may stand before another one, to which something moves.
    if behind is not None and (named == array or mountpoint.real_path(behind) == named):
        rest = [word for word in ctx.meta[_TYPED] if word != behind]
        raise UsageError(
            f"{param.make_metavar(ctx)} comes first",
            action=shlex.join([*ctx.command_path.split(), behind, *rest]),
        )


def found(error: click.UsageError) -> UsageError | None:
    """Return what to say instead of *error*, None if it is no known slip."""
    ctx = error.ctx
    if ctx is None:
        return None
    words, path = _words(ctx), ctx.command_path
    if isinstance(error, click.NoSuchOption):
        if error.option_name in _LEVELS and any(p.name == "layout" for p in ctx.command.params):
            return _level(error.option_name, ctx.meta.get(_TYPED, ()))
    elif isinstance(error, click.MissingParameter):
        array = ctx.params.get("array")
        if words and words[0] == array and not _is_mounted(array):
            usage = " ".join(ctx.command.collect_usage_pieces(ctx)[1:])
            return UsageError(
                f"{array} is no running array, and there is nothing behind it",
                action=f"{path} {usage}",
                reason=Reason.MISSING_ARGUMENT,
            )
    elif ctx.command.name == "set" and len(words) == 3 and "=" not in words[1]:
        array, key, value = words
        return UsageError(
            f"{key} {value} is one word",
            action=shlex.join([*path.split(), array, f"{key}={value}"]),
        )
    return None


def _level(option: str, typed: Sequence[str]) -> UsageError:
    value = ""
    for number, word in enumerate(typed):
        if word == option:
            value = "".join(typed[number + 1 : number + 2])
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    layout = _LAYOUT_OF.get(value.lower().removeprefix("raid"))
    return UsageError(
        f"{option} is --layout here",
        action=f"--layout {layout}" if layout else "see raidx layout list",
        reason=Reason.UNKNOWN_OPTION,
    )


def _words(ctx: click.Context) -> list[str]:
    """Return what was typed behind the command without options."""
    return [word for word in ctx.meta.get(_TYPED, ()) if not word.startswith("-")]


def _is_mounted(text: str) -> bool:
    mount, _array = mountpoint.split_array(text)
    found = mountpoint.find(mount)
    return paths.is_served(mount) or (found is not None and found.fs_type == mountpoint.FUSE_TYPE)
