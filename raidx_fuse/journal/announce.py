"""Announcing features that earlier programs cannot read (format/configuration/features.py).

    announce - bytes of the new kind: pages, entries of the log, fields ... - retract

Laws:
 1. The announcement is durable on every member before the first byte that an earlier program would
    misread. That program then refuses the array by name.
 2. It goes when the last such byte is gone or without meaning: the log is empty, and stays so until
    the superblocks that no longer have it are durable.
 3. Between the two, every superblock has it, whatever the jobs make of the array's layout.
"""

from __future__ import annotations

from dataclasses import replace

from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.features import FEATURES
from raidx_fuse.journal.journal import Journal
from raidx_fuse.store.member_set import MemberSet


async def announce(member_set: MemberSet, feature: str) -> None:
    """Say durably on all members that the array has *feature*; before the first byte of it.

    Returns at once if they say it already. Raises as `MemberSet.update` does: then nothing of the
    feature may be written.
    """
    assert feature in FEATURES, feature
    if feature in member_set.config.needs:
        await member_set.published()
        return
    await member_set.update(lambda config: _needing(config, {*config.needs, feature}))


async def retract(journal: Journal, member_set: MemberSet, feature: str) -> None:
    """Say durably that the array has nothing of *feature* any more, with an empty log.

    The caller has made all of it go, and writes no more of it. It must not hold a stripe's lock.
    Raises as `Journal.drain` and `MemberSet.update` do.
    """

    async def update() -> None:
        await member_set.update(lambda config: _needing(config, {*config.needs} - {feature}))

    if feature in member_set.config.needs:
        await journal.drain(update)


def _needing(config: ArrayConfig, features: set[str]) -> ArrayConfig:
    return replace(config, needs=tuple(sorted(features)))
