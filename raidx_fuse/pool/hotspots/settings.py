"""What the settings of a pool are now: thresholds of hotspots, and rules for moving volumes.

They are rows of `raidx_fuse.settings`, kept in the superblocks of the arrays, beside the arrays'
own. Those of EACH may differ from array to array; the others hold for the whole pool, every array
keeps a copy, and that of the first array of the mount counts.

Rules name volumes. They are kept by UUID, so a renamed volume keeps its rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.errors import UsageError
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.pool.monitor import HotspotRule
from raidx_fuse.settings import EACH, NONE, restored, setting_named


class PoolSettings:
    """The settings of the pool of *arrays*."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays

    def value(self, key: str, array: Array | None = None) -> Any:
        """Return the value of *key* in force, for *array* if arrays may differ."""
        setting = setting_named(key)
        of = array if array is not None and setting.of == EACH else self._arrays[0]
        kept = of.member_set.config.settings.get(key)
        if kept is None:
            return setting.default
        try:  # a superblock may hold anything
            return restored(key, kept, setting.parse)
        except UsageError:
            return setting.default

    async def set(self, key: str, text: str, array: Array | None = None) -> Any:
        """Put *text* into force, for *array* alone if arrays may differ. Raises UsageError."""
        setting = setting_named(key)
        value = setting.parse(text)
        arrays = [array] if array is not None and setting.of == EACH else list(self._arrays)
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
