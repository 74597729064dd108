"""Settings that can be changed while the array runs: their names, types, limits and effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from raidx_fuse.errors import UsageError
from raidx_fuse.journal import MODES
from raidx_fuse.policy import policy_named
from raidx_fuse.sizes import parse_size

if TYPE_CHECKING:
    from raidx_fuse.array import Array


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: *parse* makes a value of text (raises UsageError), *apply* makes it work."""

    name: str
    default: Any
    help: str
    parse: Callable[[str], Any]
    apply: Callable[[Array, Any], None]


def _policy(text: str) -> str:
    policy_named(text)
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number of seconds") from None
    if not 0.1 <= value <= 86400:
        raise UsageError(f"{text} s is outside 0.1 to 86400")
    return value


def _set_policy(array: Array, value: Any) -> None:
    array.core.policy = policy_named(value)


def _set_speed_min(array: Array, value: Any) -> None:
    array.jobs.speed_min_bytes = value
    for job in array.jobs.running():
        job.speed_min_bytes = value


def _set_speed_max(array: Array, value: Any) -> None:
    array.jobs.speed_max_bytes = value
    for job in array.jobs.running():
        job.speed_max_bytes = value


def _journal_mode(text: str) -> str:
    if text not in MODES:
        raise UsageError(f"unknown journal mode {text!r}", action=f"choose {', '.join(MODES)}")
    return text


def _set_journal(array: Array, value: Any) -> None:
    array.core.journal.mode = value


def _set_timeout(array: Array, value: Any) -> None:
    array.store.io_timeout_s = value


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "parity.policy",
            "traditional",
            "how partial writes update parity: traditional (fewer pre-reads), rmw or rcw",
            _policy,
            _set_policy,
        ),
        Setting(
            "journal",
            "partial",
            "what is logged before it changes its place: partial stripes, full ones too, or none",
            _journal_mode,
            _set_journal,
        ),
        Setting(
            "speed_min",
            8 << 20,
            "bytes a second that background jobs may use while users work",
            parse_size,
            _set_speed_min,
        ),
        Setting(
            "speed_max",
            0,
            "bytes a second that background jobs may use at all; 0: no limit",
            parse_size,
            _set_speed_max,
        ),
        Setting(
            "io.timeout_s",
            30.0,
            "seconds after which a member that does not answer is failed",
            _seconds,
            _set_timeout,
        ),
    )
}


def setting_named(name: str) -> Setting:
    """Return the setting called *name*. Raises UsageError naming the nearest."""
    setting = SETTINGS.get(name)
    if setting is None:
        near = get_close_matches(name, SETTINGS, 1)
        raise UsageError(
            f"unknown setting {name!r}",
            action=f"did you mean {near[0]}?" if near else f"known: {', '.join(SETTINGS)}",
        )
    return setting
