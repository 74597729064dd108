"""What each setting of an array does: how its value is put into force and kept.

The settings themselves are rows of `raidx_fuse.settings`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from raidx_fuse.array.services import RunningArray
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.parity_policies import check_policy, is_name, problem_of, why_not_asked
from raidx_fuse.errors import (
    JobRunningError,
    NotWithLayoutError,
    RaidxError,
    UsageError,
)
from raidx_fuse.format.configuration.codec import require_known
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.jobs.tuner.tuner import Tuner
from raidx_fuse.settings import (
    KEPT_AS,
    LOG_SIZE,
    OF_ARRAY,
    OF_POOL,
    POLICY,
    RETIRED,
    SCRUB_EACH,
    SETTINGS,
    SPARES_SHARED,
    SUMS,
    TRADITIONAL,
    restored,
    setting_named,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Receiver:
    """What a setting does in an array.

    *apply* puts a value into force. *in_force*, if given, returns the value in force where no value
    is kept. *require*, if given, raises UsageError if the array cannot have the value.
    """

    apply: Callable[[RunningArray, Any], None]
    in_force: Callable[[RunningArray], Any] | None = None
    require: Callable[[RunningArray, Any], None] | None = None


def parse(name: str, text: str) -> Any:
    """Return the value of setting *name* that *text* means. Raises UsageError."""
    value = SETTINGS[name].parse(text)
    return check_policy(value) if name == POLICY else value


def value_of(array: RunningArray, name: str) -> Any:
    """Return the value of setting *name* in *array*."""
    in_force = RECEIVERS[name].in_force
    if in_force is not None:
        return in_force(array)
    return array.member_set.config.settings.get(name, SETTINGS[name].default)


async def put(array: RunningArray, name: str, value: object) -> None:
    """Put *value* of setting *name* into force in *array*, and keep it in the superblocks.

    Raises UsageError if the array cannot have it.
    """
    receiver = RECEIVERS[name]
    if receiver.require is not None:
        receiver.require(array, value)
    receiver.apply(array, value)
    kept = {KEPT_AS.get(name, name): value}
    await array.member_set.update(
        lambda config: replace(config, settings={**config.settings, **kept})
    )


# -- receivers -------------------------------------------------------------------------------------


def _policy(array: RunningArray) -> str:
    kept = str(array.member_set.config.settings.get(POLICY, TRADITIONAL))
    return TRADITIONAL if why_not_asked(kept, array.context.policies.current) else kept


def _threshold(field: str) -> Receiver:
    """Return the receiver of one field of `bpu.Thresholds`, derived unless set by hand."""
    return Receiver(
        lambda array, value: array.context.policies.bpu.set_threshold(field, value),
        in_force=lambda array: getattr(array.context.policies.bpu.refresh(), field),
    )


def _service(name: str, kind: str) -> Receiver:
    """Return the receiver of A_R or A_W, measured for each member unless set by hand."""

    def in_force(array: RunningArray) -> Any:
        value = array.member_set.config.settings.get(name)
        return "auto" if value is None else value

    return Receiver(
        lambda array, value: array.context.policies.bpu.set_service(kind, value), in_force=in_force
    )


def _of_raidx(
    name: str, part_of: Callable[[RunningArray], T | None], put_into: Callable[[T, Any], None]
) -> Receiver:
    """Return the receiver of a setting of *part_of* an array, which only a raidx layout has."""

    def apply(array: RunningArray, value: Any) -> None:
        part = part_of(array)
        if part is not None:
            put_into(part, value)

    def require(array: RunningArray, _value: object) -> None:
        if part_of(array) is None:
            layout = array.member_set.config.layout
            raise NotWithLayoutError(
                f"{name} is for raidx layouts, whose chunks can move; {layout} has none"
            )

    return Receiver(apply, require=require)


def _tuner_of(array: RunningArray) -> Tuner | None:
    return array.tuner


def _require_redundancy(array: RunningArray, value: Any) -> None:
    if value and not array.regular_scrub.compares:
        raise NotWithLayoutError(
            f"{array.member_set.config.layout} has no redundancy: a scrub would compare nothing",
            action="`raidx reshape` makes it a layout with redundancy",
        )


RECEIVERS = {
    POLICY: Receiver(lambda array, value: array.context.policies.use(value), in_force=_policy),
    "journal": Receiver(lambda array, value: array.context.journal.set_mode(value)),
    "speed_min": Receiver(lambda array, value: array.jobs.limit_all(minimum=value)),
    "speed_max": Receiver(lambda array, value: array.jobs.limit_all(maximum=value)),
    "io.timeout_s": Receiver(lambda array, value: array.member_set.set_io_timeout(value)),
    "errors.max": Receiver(lambda array, value: array.member_set.unreadable.limit(value)),
    "misfits.max": Receiver(lambda array, value: array.misfit_limit.limit(value)),
    "cache.size": Receiver(lambda array, value: array.context.use_cache(value)),
    "restore.after": _of_raidx(
        "restore.after", lambda array: array.self_heal, lambda heal, value: heal.set_delay(value)
    ),
    SCRUB_EACH: Receiver(
        lambda array, value: array.regular_scrub.set_interval(value),
        in_force=lambda array: array.regular_scrub.each_s if array.regular_scrub.compares else 0.0,
        require=_require_redundancy,
    ),
    SUMS: Receiver(lambda _array, _value: None),  # array/switch_sums.py
    LOG_SIZE: Receiver(  # array/log_size.py; the regions say it, no setting is kept
        lambda _array, _value: None,
        in_force=lambda array: array.member_set.config.regions.log.length,
    ),
    SPARES_SHARED: Receiver(lambda _array, _value: None),  # daemon/shared_spares.py
    "sums.cache": Receiver(
        lambda array, value: array.member_set.limit_sums(value),
        in_force=lambda array: array.member_set.sum_cache_bytes,
    ),
    "bpu.t_light": _threshold("t_light_s"),
    "bpu.t_heavy": _threshold("t_heavy_s"),
    "bpu.t_pre": _threshold("t_pre"),
    "bpu.t_skew": _threshold("t_skew_s"),
    "bpu.a_read": _service("bpu.a_read", "read"),
    "bpu.a_write": _service("bpu.a_write", "write"),
    "tuner.enabled": _of_raidx(
        "tuner.enabled", _tuner_of, lambda tuner, value: tuner.configure(enabled=value == "on")
    ),
    "tuner.idle_s": _of_raidx(
        "tuner.idle_s", _tuner_of, lambda tuner, value: tuner.configure(idle_s=value)
    ),
}

assert RECEIVERS.keys() == OF_ARRAY.keys(), "each setting of an array has a receiver"


# -- the superblocks -------------------------------------------------------------------------------


def restored_settings(kept: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid settings of a superblock, and a warning for each that is not valid.

    Retired settings of an older version are left out; those of the pool are the pool's to
    judge. Raises OtherVersionError for one that is not known here.
    """
    of_pool = {key: value for key, value in kept.items() if key in OF_POOL}
    kept = {key: value for key, value in kept.items() if key not in of_pool}
    known = OF_ARRAY.keys() - KEPT_AS.keys() | RETIRED.keys() | set(KEPT_AS.values())
    require_known("the superblocks have the setting", known, kept)
    values = {key: value for key, value in kept.items() if key not in RETIRED}
    warnings = []
    for key in sorted(values):
        name = setting_named(key).name
        try:
            restored(name, kept[key], partial(parse, name))
        except UsageError as error:
            if name == POLICY and is_name(kept[key]):
                continue  # in force again when its package is back: `why_not_asked`
            del values[key]
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
        if key not in OF_POOL and not (key == POLICY and problem_of(value)):
            RECEIVERS[setting_named(key).name].apply(array, value)
    return warnings


async def change_mode(context: ArrayContext, mode: str) -> None:
    """Put *mode* in force from now on, and after a remount.

    Raises BusyError while a resync is due or stripes are torn, or if requests do not end in time
    (`ArrayContext.closed`); RaidxError if a superblock cannot be written.

    The superblocks must describe every write that a crash may tear. If they say "none", the next
    start resyncs each stripe in flight as one that any write may have torn (write hole); otherwise
    only full-stripe writes can have torn it. So the superblocks say "none" before the first write
    without the log, and until the effects of all such writes are durable.

    The mode of the superblocks is the promise under which every marked region of the dirty bitmap
    was marked. So it does not change while regions await a resync: those that a write with the log
    has left would count as torn by any write, and a degraded array would not start. Nor while
    stripes are torn by writes that have failed, whose regions stay marked, also by a clean end.
    """
    member_set, journal, dirty = context.member_set, context.journal, context.dirty_bitmap

    def change(config: ArrayConfig) -> ArrayConfig:
        return replace(config, settings={**config.settings, "journal": mode})

    async with context.closed(drained=False):  # no write that began under the other mode is left
        if "none" in (mode, journal.mode) and mode != journal.mode:
            if dirty.pending_regions():
                raise JobRunningError(
                    f"the resync of what was written with journal={journal.mode} is not finished",
                    action="wait for it: `raidx job ARRAY wait`",
                )
            dirty.require_whole()
        if mode == "none":
            await member_set.update(change)
            journal.set_mode(mode)
        else:
            journal.set_mode(mode)
            await member_set.flush()
            await member_set.update(change)
    try:
        await journal.drain()  # otherwise logged content keeps its stripe in the log
    except RaidxError as error:
        log.error("the log cannot be emptied yet: %s", error)
