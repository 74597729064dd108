"""The settings of a pool: thresholds of hotspots, and rules for moving volumes.

They are kept in the superblocks of the arrays, beside the arrays' own settings. Those marked
*each* may differ from array to array; the others hold for the whole pool, every array keeps a copy,
and that of the first array of the mount counts.

Rules name volumes. They are kept by UUID, so a renamed volume keeps its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.array.settings import POOL_NAMES, require_not_retired
from raidx_fuse.errors import UsageError, unknown
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.pool.balance.system import TAU
from raidx_fuse.pool.monitor import INTERVAL_S, LENGTH, HotspotRule
from raidx_fuse.units import parse_seconds

PREFIXES = ("hot.", "balance.")
RULES = ("balance.stay", "balance.together", "balance.apart")
NONE = "none"


@dataclass(frozen=True, slots=True)
class PoolSetting:
    """A setting: *parse* makes its value from text (UsageError); *unit* "", "seconds", "bytes"."""

    name: str
    default: Any
    help: str
    parse: Callable[[str], Any]
    unit: str = ""
    each: bool = False


def _share(text: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a share") from None
    if not 0.01 <= value <= 1:
        raise UsageError(f"{text[:40]} is outside 1 % to 100 %", action="write 0.8 or 80%")
    return value


def _window(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= LENGTH:
        raise UsageError(f"{text[:40]!r} is not a number of observations from 1 to {LENGTH}")
    return int(text)


def _interval(text: str) -> float:
    value = parse_seconds(text)
    if not 0.1 <= value <= 3600:
        raise UsageError(f"{text} is outside 100 ms to an hour")
    return value


def _switch(text: str) -> str:
    if text not in ("on", "off"):
        raise UsageError(f"{text[:40]!r} is neither on nor off")
    return text


def _redundancy(text: str) -> str:
    if text not in ("keep", "any"):
        raise UsageError(f"{text[:40]!r} is neither keep nor any")
    return text


def _planner(text: str) -> str:
    from raidx_fuse.pool.balance.strategies import STRATEGIES  # late: most mounts never plan

    if text not in STRATEGIES:
        raise UsageError(f"there is no planner {text[:40]}; there are: {', '.join(STRATEGIES)}")
    return text


def _repaid(text: str) -> Any:
    return text if text == "off" else parse_seconds(text)


def _rule(text: str) -> str:
    return text.strip()


POOL_SETTINGS = {
    setting.name: setting
    for setting in (
        PoolSetting(
            "hot.tau", TAU, "utilisation above which an array is overloaded", _share, each=True
        ),
        PoolSetting(
            "hot.share",
            0.75,
            "an array is a hotspot if more than this share of a window's observations is above",
            _share,
            each=True,
        ),
        PoolSetting("hot.window", 10, "observations of a window", _window, each=True),
        PoolSetting(
            "hot.latency",
            0.0,
            "mean latency of requests above which an observation counts as well; 0: it does not",
            parse_seconds,
            "seconds",
            each=True,
        ),
        PoolSetting("hot.interval", INTERVAL_S, "time of an observation", _interval, "seconds"),
        PoolSetting(
            "balance.auto", "off", "on: volumes move as soon as there is a hotspot", _switch
        ),
        PoolSetting(
            "balance.target",
            "on",
            "off: no volume moves to this array, except on its way between two others",
            _switch,
            each=True,
        ),
        PoolSetting(
            "balance.redundancy",
            "keep",
            "keep: volumes move only to arrays that survive as many losses; or any",
            _redundancy,
        ),
        PoolSetting("balance.planner", "dswap", "the planner: see raidx balance", _planner),
        PoolSetting(
            "balance.repaid_within",
            "off",
            "no move that takes the array longer than it saves it in this time; or off",
            _repaid,
            "seconds",
        ),
        PoolSetting(RULES[0], NONE, "volumes that stay where they are: A,B; or none", _rule),
        PoolSetting(RULES[1], NONE, "volumes that keep together: A+B,C+D; or none", _rule),
        PoolSetting(RULES[2], NONE, "volumes that keep apart: A+B,C+D; or none", _rule),
    )
}

assert POOL_SETTINGS.keys() == POOL_NAMES, "an array refuses names that it does not know"


def is_pool_setting(key: str) -> bool:
    """Say whether *key* is, or looks like, the name of a pool's setting."""
    return key.startswith(PREFIXES)


def setting_named(key: str) -> PoolSetting:
    """Return the setting called *key*. Raises UsageError that suggests the nearest name."""
    require_not_retired(key)
    found = POOL_SETTINGS.get(key)
    if found is None:
        raise unknown("setting", key, POOL_SETTINGS)
    return found


class PoolSettings:
    """The settings of the pool of *arrays*."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays

    def value(self, key: str, array: Array | None = None) -> Any:
        """Return the value of *key* in force, for *array* if arrays may differ."""
        setting = setting_named(key)
        of = array if array is not None and setting.each else self._arrays[0]
        kept = of.member_set.config.settings.get(key)
        if kept is None:
            return setting.default
        try:  # a superblock may hold anything
            return setting.parse(kept if isinstance(kept, str) else repr(kept))
        except UsageError:
            return setting.default

    async def set(self, key: str, text: str, array: Array | None = None) -> Any:
        """Put *text* into force, for *array* alone if arrays may differ. Raises UsageError."""
        setting = setting_named(key)
        value = setting.parse(text)
        arrays = [array] if array is not None and setting.each else list(self._arrays)
        for one in arrays:
            one.require_writable()
            config = one.member_set.config
            fitted(replace(config, settings={**config.settings, key: value}), RESERVE_BYTES)
        for one in arrays:
            await one.member_set.update(
                lambda config: replace(config, settings={**config.settings, key: value})
            )
        return value

    def rule_of(self, array: Array) -> HotspotRule:
        """Return when *array* is a hotspot."""
        return HotspotRule(
            tau=self.value("hot.tau", array),
            share=self.value("hot.share", array),
            window=self.value("hot.window", array),
            latency_s=self.value("hot.latency", array),
        )

    def groups(self, key: str) -> list[list[str]]:
        """Return the sets of volumes, by UUID, that the rule *key* has."""
        return split_rule(self.value(key))


def split_rule(text: str) -> list[list[str]]:
    """Return the sets of a rule.

    >>> split_rule("a+b, c"), split_rule("none")
    ([['a', 'b'], ['c']], [])
    """
    if text in (NONE, ""):
        return []
    return [[name.strip() for name in group.split("+")] for group in text.split(",")]


def rule_text(groups: Collection[Collection[str]], names: Mapping[str, str]) -> str:
    """Return the text of a rule with the *names* of its parts; parts without a name stay."""
    return ",".join("+".join(names.get(one, one) for one in group) for group in groups) or NONE
