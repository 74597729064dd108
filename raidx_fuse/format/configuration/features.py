"""Features of the format that earlier programs cannot read, and how an array says that it has them.

Programs up to commit 79fb2b4 refuse one thing that they do not know by name: a parameter of a
layout. So an array that uses such a feature has the parameter `needs`, a list of the features'
names; during a restripe both shapes have it. A program that does not know one of them refuses the
array (journal/announce.py says when it is written).

In memory, the names are a field of the configuration (`ArrayConfig.needs`), not a parameter: no
layout depends on them, and they outlive growths and restripes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raidx_fuse.errors import OtherVersionError
from raidx_fuse.format.configuration.names import brief
from raidx_fuse.format.regions import PAGE_BYTES

NEEDS = "needs"
RESTRIPE = "restripe"
_SHAPES = ("from", "to")
Params = dict[str, object]
Regions = dict[str, Any]
ENDS = "ends"
LOG_MOVED = "log.moved"
_MOVED_KEY = "moved_log"
_LOG_FOR_EARLIER_BYTES = 3 * PAGE_BYTES  # the least that regions with a log have for it
FEATURES: dict[str, str] = {
    ENDS: "superblocks also at the end of members of 64 MiB and more: for ever, from its creation",
    "sums": "each write changes checksums (sums.py); a write without them damages what it writes",
    "sums.tail": "checksums that changed are in a tail (sum_tail.py), not in their table yet",
    LOG_MOVED: "the log lies elsewhere than behind the written map, while it does",
}
"""The features that this program knows, and what of an array each of them changes."""


def with_needs(params: Params, needs: Sequence[str]) -> Params:
    """Return the parameters of a superblock: *params* with the features *needs*."""
    if not needs:
        return params
    moving = params.get(RESTRIPE)
    if not isinstance(moving, Mapping):
        return {**params, NEEDS: list(needs)}
    shapes = {
        side: {**moving[side], "params": with_needs(moving[side]["params"], needs)}
        for side in _SHAPES
    }
    return {**params, RESTRIPE: {**moving, **shapes}}


def parted(params: Params) -> tuple[Params, tuple[str, ...]]:
    """Return the parameters of a superblock without the features that it needs, and these.

    Raises OtherVersionError for a feature that is not known here, ValueError if they are no list of
    names, or not the same in both shapes of a restripe.
    """
    moving = params.get(RESTRIPE)
    if not isinstance(moving, Mapping):
        return _parted(params)
    parts = {}
    for side in _SHAPES:
        shape = moving.get(side)
        if not isinstance(shape, Mapping) or not isinstance(shape.get("params"), dict):
            return params, ()  # what is wrong with it is said where the shapes are made
        parts[side] = _parted(shape["params"])
    old, new = (parts[side][1] for side in _SHAPES)
    if old != new:
        raise ValueError("the two shapes of a restripe need different features")
    shapes = {side: {**moving[side], "params": parts[side][0]} for side in _SHAPES}
    return {**params, RESTRIPE: {**moving, **shapes}}, old


def with_moved_log(regions: Regions) -> Regions:
    """Return the regions of a superblock, whose log lies elsewhere than behind the written map.

    Earlier programs call regions impossible whose log is not there, before they see what the array
    needs, and would go by an older superblock. So they find one of the least size there, which
    nothing uses, and refuse the array for its needs.
    """
    end = sum(regions["written"])
    small = {"log": [end, _LOG_FOR_EARLIER_BYTES], "table": [end + _LOG_FOR_EARLIER_BYTES, 0]}
    return {**regions, **small, _MOVED_KEY: regions["log"]}


def without_moved_log(regions: Regions) -> Regions:
    """Return the regions of a superblock with the log, and the table, as in memory.

    Raises ValueError if that is impossible.
    """
    if _MOVED_KEY not in regions:
        return regions
    written = regions.get("written")
    if not isinstance(written, list) or [type(each) for each in written] != [int, int]:
        raise ValueError(f"written is {written!r}")
    rest = {name: region for name, region in regions.items() if name != _MOVED_KEY}
    return {**rest, "log": regions[_MOVED_KEY], "table": [sum(written), 0]}


def _parted(params: Params) -> tuple[Params, tuple[str, ...]]:
    if NEEDS not in params:
        return params, ()
    rest = {name: value for name, value in params.items() if name != NEEDS}
    names = params[NEEDS]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ValueError("the features that it needs are no list of names")
    for name in names:
        if name not in FEATURES:
            raise OtherVersionError(f"the array needs {brief(repr(name))}, unknown to this raidx")
    if sorted(set(names)) != names:
        raise ValueError("the features that it needs are not in order")
    return rest, tuple(names)
