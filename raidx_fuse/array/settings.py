"""Settings that can be changed while the array runs: names, types, limits and effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raidx_fuse.array.services import RunningArray
from raidx_fuse.engine.parity_policy.own import is_name, problem_of, why_not_asked
from raidx_fuse.engine.parity_policy.policy import check_policy
from raidx_fuse.errors import UsageError, unknown
from raidx_fuse.format.configuration.config import require_known
from raidx_fuse.jobs.rebundle.self_heal import AFTER_S as RESTORE_AFTER_S
from raidx_fuse.jobs.regular_scrub import EACH_S as SCRUB_EACH_S
from raidx_fuse.journal.journal import MODES
from raidx_fuse.members.unreadable import ERRORS_MAX_DEFAULT
from raidx_fuse.units import parse_seconds, parse_size

POLICY, TRADITIONAL = "parity.policy", "traditional"
SCRUB_EACH = "scrub_each_s"
KEPT_AS = {SCRUB_EACH: "tuner.scrub"}
"""Settings that the superblocks keep under an earlier name, which `setting_named` takes as well."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an array.

    *parse* makes a value from text (raises UsageError); *apply* puts it into force. *in_force*, if
    given, returns the value in force where no value is kept. *keeps*, if given, returns the values
    to keep in the superblocks, keyed by setting name; otherwise the value itself is kept.
    """

    name: str
    default: Any
    help: str
    parse: Callable[[str], Any]
    apply: Callable[[RunningArray, Any], None]
    in_force: Callable[[RunningArray], Any] | None = None
    keeps: Callable[[RunningArray, Any], dict[str, Any]] | None = None

    def value(self, array: RunningArray) -> Any:
        """Return the value of the setting in *array*."""
        if self.in_force is not None:
            return self.in_force(array)
        return array.member_set.config.settings.get(self.name, self.default)

    def restored(self, value: Any) -> Any:
        """Return *value* from a superblock if `parse` can produce it. Raises UsageError if not."""
        if value is None:
            texts = ["auto", "off"]
        elif isinstance(value, str):
            texts = [value]
        else:
            texts = [repr(value)] if type(value) in (int, float) else []
        for text in texts:
            try:
                if self.parse(text) == value:
                    return value
            except UsageError:
                continue
        raise UsageError(f"{str(value)[:40]!r} is not a value of {self.name}")

    def kept(self, array: RunningArray, value: Any) -> dict[str, Any]:
        """Return what the superblocks keep when the setting of *array* becomes *value*."""
        return {self.name: value} if self.keeps is None else self.keeps(array, value)


def _seconds(text: str) -> float:
    value = parse_seconds(text)
    if not 0.1 <= value <= 86400:
        raise UsageError(f"{text} is outside 0.1 s to 86400 s")
    return value


def _set_policy(array: RunningArray, value: Any) -> None:
    array.context.use_policy(value)


def _policy(array: RunningArray) -> str:
    kept = str(array.member_set.config.settings.get(POLICY, TRADITIONAL))
    return TRADITIONAL if why_not_asked(kept, array.context.policy) else kept


def _journal_mode(text: str) -> str:
    if text not in MODES:
        raise UsageError(f"unknown journal mode {text!r}", action=f"choose {', '.join(MODES)}")
    return text


def _set_journal(array: RunningArray, value: Any) -> None:
    array.context.journal.set_mode(value)


def _cache_size(text: str) -> int:
    value = parse_size(text)
    if value and not CACHE_MIN_BYTES <= value <= CACHE_MAX_BYTES:
        raise UsageError(
            f"a cache of {text} is outside {CACHE_MIN_BYTES >> 10} KiB to "
            f"{CACHE_MAX_BYTES >> 40} TiB",
            action="0 means none",
        )
    return value


def _set_cache(array: RunningArray, value: Any) -> None:
    array.context.use_cache(value)


_QUEUE_S_MAX = 3600.0


def _queue_time(text: str) -> float | None:
    """Parse a queue length or a service time in seconds; None for "auto"."""
    if text == "auto":
        return None
    value = parse_seconds(text)
    if value > _QUEUE_S_MAX:
        raise UsageError(f"{text} is longer than {_QUEUE_S_MAX:g} s")
    return value


def _pre_reads(text: str) -> int | None:
    return None if text == "auto" else _number(text, "chunks", 255)


def _number(text: str, of: str, most: int) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) > most:
        raise UsageError(f"{text[:40]!r} is not a number of {of} from 0 to {most}")
    return int(text)


def _switch(text: str) -> str:
    if text not in ("on", "off"):
        raise UsageError(f"{text!r} is neither on nor off")
    return text


def _threshold(name: str, parse: Callable[[str], Any], help: str) -> Setting:
    """Return the setting of one field of `bpu.Thresholds`, derived unless set by hand."""
    field = _THRESHOLDS[name]

    def apply(array: RunningArray, value: Any) -> None:
        array.context.bpu.set_threshold(field, value)

    def in_force(array: RunningArray) -> Any:
        return getattr(array.context.bpu.refresh(), field)

    return Setting(name, None, help, parse, apply, in_force)


def _service(name: str, kind: str, help: str) -> Setting:
    """Return the setting of A_R or A_W, measured for each member unless set by hand."""

    def apply(array: RunningArray, value: Any) -> None:
        array.context.bpu.set_service(kind, value)

    def in_force(array: RunningArray) -> Any:
        value = array.member_set.config.settings.get(name)
        return "auto" if value is None else value

    return Setting(name, None, help, _service_time, apply, in_force)


def _service_time(text: str) -> float | None:
    if "," in text:
        raise UsageError(
            "one service time holds for all members", action="auto measures that of each"
        )
    return _queue_time(text)


_THRESHOLDS = {
    "bpu.t_light": "t_light_s",
    "bpu.t_heavy": "t_heavy_s",
    "bpu.t_pre": "t_pre",
    "bpu.t_skew": "t_skew_s",
}
_BPU_SETTINGS = (
    _threshold("bpu.t_light", _queue_time, "mean queue (time) below which the load is light"),
    _threshold("bpu.t_heavy", _queue_time, "mean queue (time) from which the load is heavy"),
    _threshold("bpu.t_pre", _pre_reads, "additional pre-reads that a shorter queue may cost"),
    _threshold("bpu.t_skew", _queue_time, "difference of queue lengths (time) worth them"),
    _service("bpu.a_read", "read", "service time of a waiting read in the queue length"),
    _service("bpu.a_write", "write", "service time of a waiting write in the queue length"),
)


def _scrub_interval(text: str) -> float:
    value = parse_seconds(text)
    if value and value < _SCRUB_S_MIN:
        raise UsageError(f"{text} is shorter than {_SCRUB_S_MIN:g} s", action="0 means never")
    return value


def _tuner_setting(
    name: str, default: Any, help: str, parse: Callable[[str], Any], attribute: str
) -> Setting:
    """Return the setting of one attribute of the tuner; where there is none it cannot be set."""

    def apply(array: RunningArray, value: Any) -> None:
        if array.tuner is not None:
            array.tuner.configure(**{attribute: value == "on" if parse is _switch else value})

    def keeps(array: RunningArray, value: Any) -> dict[str, Any]:
        if array.tuner is None:
            raise _not_here(array, name)
        return {name: value}

    return Setting(name, default, help, parse, apply, keeps=keeps)


CACHE_MIN_BYTES = 4096
CACHE_MAX_BYTES = 1 << 40
_SCRUB_S_MIN = 60.0
_TUNER_SETTINGS = (
    _tuner_setting(
        "tuner.enabled",
        "on",
        "on: hot chunks of a raidx layout move to faster or idler members in idle time; or off",
        _switch,
        "enabled",
    ),
    _tuner_setting(
        "tuner.idle_s",
        1.0,
        "seconds without a request after which the tuner begins",
        _seconds,
        "idle_s",
    ),
)


def _not_here(array: RunningArray, name: str) -> UsageError:
    """Return the error for a setting that has no effect on the layout of *array*."""
    layout = array.member_set.config.layout
    return UsageError(f"{name} is for raidx layouts, whose chunks can move; {layout} has none")


def _set_scrub_interval(array: RunningArray, value: Any) -> None:
    array.regular_scrub.set_interval(value)


def _scrub_interval_of(array: RunningArray) -> float:
    return array.regular_scrub.each_s if array.regular_scrub.compares else 0.0


def _keep_scrub_interval(array: RunningArray, value: Any) -> dict[str, Any]:
    if value and not array.regular_scrub.compares:
        raise UsageError(
            f"{array.member_set.config.layout} has no redundancy: a scrub would compare nothing",
            action="`raidx reshape` makes it a layout with redundancy",
        )
    return {KEPT_AS[SCRUB_EACH]: value}


def _restore_after(text: str) -> float | None:
    """Parse the time until lost redundancy is restored without a new member; None for "off"."""
    return None if text == "off" else parse_seconds(text)


def _set_restore_after(array: RunningArray, value: Any) -> None:
    if array.self_heal is not None:
        array.self_heal.set_delay(value)


def _keep_restore_after(array: RunningArray, value: Any) -> dict[str, Any]:
    if array.self_heal is None:
        raise _not_here(array, "restore.after")
    return {"restore.after": value}


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            POLICY,
            TRADITIONAL,
            "how partial writes update parity: traditional (fewer pre-reads), bpu, rmw, rcw, ...",
            check_policy,
            _set_policy,
            in_force=_policy,
        ),
        Setting(
            "journal",
            "partial",
            "writes that go through the log: partial (of partial stripes), full (all) or none",
            _journal_mode,
            _set_journal,
        ),
        Setting(
            "speed_min",
            8 << 20,
            "bytes a second that background jobs may use while the array is in use",
            parse_size,
            lambda array, value: array.jobs.limit_all(minimum=value),
        ),
        Setting(
            "speed_max",
            0,
            "bytes a second that background jobs may use at most; 0: no limit",
            parse_size,
            lambda array, value: array.jobs.limit_all(maximum=value),
        ),
        Setting(
            "io.timeout_s",
            30.0,
            "seconds after which a member that does not answer is excluded",
            _seconds,
            lambda array, value: array.member_set.set_io_timeout(value),
        ),
        Setting(
            "errors.max",
            ERRORS_MAX_DEFAULT,
            "read errors of a member within an hour that are mended in place; more: it fails",
            lambda text: _number(text, "errors", 1_000_000),
            lambda array, value: array.member_set.unreadable.limit(value),
        ),
        Setting(
            "cache.size",
            0,
            "bytes of memory for the chunk cache, in addition to the page cache; 0: none",
            _cache_size,
            _set_cache,
        ),
        Setting(
            "restore.after",
            RESTORE_AFTER_S,
            "time after which a raidx array restores a lost member's chunks to free chunks; or off",
            _restore_after,
            _set_restore_after,
            keeps=_keep_restore_after,
        ),
        Setting(
            SCRUB_EACH,
            SCRUB_EACH_S,
            "time after which a scrub starts by itself when no request comes; 0: never",
            _scrub_interval,
            _set_scrub_interval,
            in_force=_scrub_interval_of,
            keeps=_keep_scrub_interval,
        ),
        *_BPU_SETTINGS,
        *_TUNER_SETTINGS,
    )
}

_MEASURED = "the queues measure it; hot.tau and hot.latency say what a hotspot is"
RETIRED = {
    "journal.parity": "the parity of logged data always follows at the checkpoint",
    "bpu.auto": "set bpu.t_light, bpu.t_heavy, bpu.t_pre and bpu.t_skew, each to auto or a value",
    "tuner.slice": "it is 50 ms; tuner.idle_s and tuner.enabled say when the tuner works",
    "hot.position": _MEASURED,
    "hot.transfer": _MEASURED,
}
"""Settings of older versions, and what holds now: superblocks may have them, nothing reads them.

A setting that goes leaves its name here, for good: any other name that is not known is refused.
"""


_HOT = ("tau", "share", "window", "interval", "latency")
_BALANCE = ("auto", "planner", "redundancy", "repaid_within", "target")
_RULES = ("stay", "together", "apart")
POOL_NAMES = frozenset(
    {f"hot.{name}" for name in _HOT} | {f"balance.{name}" for name in _BALANCE + _RULES}
)
"""The names of a pool's settings, which every array keeps: pool/hotspots/settings.py."""

_NAMES = {kept: name for name, kept in KEPT_AS.items()}


def require_not_retired(name: str) -> None:
    """Raise UsageError, which says what holds instead, if setting *name* was dropped."""
    if name in RETIRED:
        raise UsageError(f"there is no setting {name} any more: {RETIRED[name]}")


def setting_named(name: str) -> Setting:
    """Return the setting called *name*. Raises UsageError that suggests the nearest name."""
    require_not_retired(name)
    setting = SETTINGS.get(_NAMES.get(name, name))
    if setting is None:
        raise unknown("setting", name, SETTINGS)
    return setting


def restored_settings(kept: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid settings of a superblock, and a warning for each that is not valid.

    Those of an older version that are retired are left out; those of the pool are the pool's to
    judge. Raises OtherVersionError for one that is not known here.
    """
    of_pool = {key: value for key, value in kept.items() if key in POOL_NAMES}
    kept = {key: value for key, value in kept.items() if key not in of_pool}
    known = SETTINGS.keys() - KEPT_AS.keys() | RETIRED.keys() | _NAMES.keys()
    require_known("the superblocks have the setting", known, kept)
    values = {key: value for key, value in kept.items() if key not in RETIRED}
    warnings = []
    for name in sorted(values):
        try:
            setting_named(name).restored(kept[name])
        except UsageError as error:
            if name == POLICY and is_name(kept[name]):
                continue  # in force again when its package is back: `why_not_asked`
            del values[name]
            warnings.append(f"a setting in the superblocks is not valid and not used: {error}")
    return values | of_pool, warnings


def apply_saved(array: RunningArray) -> list[str]:
    """Apply the settings in the superblocks; return warnings for those that are not valid.

    Raises OtherVersionError for a setting that is not known here.
    """
    member_set = array.member_set
    kept, warnings = restored_settings(member_set.config.settings)
    member_set.change(lambda config: replace(config, settings=kept))
    for key, value in kept.items():
        if key not in POOL_NAMES and not (key == POLICY and problem_of(value)):
            setting_named(key).apply(array, value)
    return warnings


def unit_of(key: str) -> str:
    """Return the unit of a setting's number: "seconds", "bytes", or "" for a plain number."""
    parse = SETTINGS[key].parse if key in SETTINGS else None
    if parse in (_seconds, _queue_time, _service_time, _scrub_interval, _restore_after):
        return "seconds"
    return "bytes" if parse in (parse_size, _cache_size) else ""
