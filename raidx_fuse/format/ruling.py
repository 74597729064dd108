"""Which configuration is valid, if members hold several: the newest, or none (a split brain).

A *round* is one call of `write_config`. These rules hold while an array runs:

* The engine acknowledges nothing that depends on a configuration before the round of the
  configuration has reached every member that has a role in it and is not excluded.
* A member that missed a round is excluded (failed) by the next one.
* A start excludes absent members (missing) and increments `starts`.
* Whenever a member that the last round reached is excluded, `lineage` gets a new, unique entry.

So for a member with a role, `starts` and `lineage` only grow. W *extends* S if the lineage of S is
a prefix of that of W and W has at least as many starts. Which configuration is valid, W or S?

 1. W extends S: W is valid. Every acknowledged round of S reached the members from which W
    continued, and W names the members that it excluded. If lineage and starts are equal, the
    higher event counter wins: the rounds followed each other, and a crash interrupted the last one.
 2. Neither extends the other: they diverged. If S counts on a member with a role that holds W, then
    no round of S reached all of its members: otherwise the configuration of that member would
    extend S. So a crash interrupted S, nothing was acknowledged on it, and W is valid. (Event
    counters do not help here: a round that reached a single member may have the higher one.)
 3. They diverged, neither counts on a holder of the other, and each counts on a member that holds
    neither it nor an extension: no round of either reached all of its members, so nothing was
    acknowledged on either, and each is right. For example, a power cut interrupts the round that
    lets a new disk take a role, and another one the next start, without the disk that knew. The one
    with more members that it can use is valid.
 4. Else, if they diverged (a split brain), both may have acknowledged writes, as two halves of a
    mirror that were mounted one at a time. No choice is right, so the assembly is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raidx_fuse.errors import AssemblyError, Reason
from raidx_fuse.format.configuration.config import ACTIVE, REBUILDING, ArrayConfig
from raidx_fuse.format.superblock import Superblock
from raidx_fuse.members.base import Member


@dataclass(frozen=True, slots=True)
class Given:
    """A member with its newest superblock."""

    member: Member
    superblock: Superblock

    @property
    def uuid(self) -> str:
        """The UUID of the member."""
        return self.superblock.member_uuid


@dataclass(frozen=True, slots=True)
class _Side:
    """All given members that hold one and the same configuration."""

    config: ArrayConfig
    holders: tuple[Given, ...]

    def diverged(self, other: _Side) -> bool:
        """Return whether neither side extends the other."""
        return not self.config.extends(other.config) and not other.config.extends(self.config)

    def is_void_beside(self, other: _Side) -> bool:
        """Return whether this side diverged from *other* and counts on a member that holds *other*.

        Then this side is not valid (rule 2).
        """
        counted_on = self._counted_on()
        return self.diverged(other) and any(g.uuid in counted_on for g in other.holders)

    def _counted_on(self) -> set[str]:
        return {r.member_uuid for r in self.config.members if r.state in (ACTIVE, REBUILDING)}

    def usable(self, given: Sequence[Given]) -> list[Given]:
        """Return those of *given* that this side counts on, and that hold it or an older one."""
        counted_on = self._counted_on()
        return [
            one
            for one in given
            if one.uuid in counted_on and self.config.extends(one.superblock.config)
        ]

    def is_interrupted(self, given: Sequence[Given]) -> bool:
        """Return whether a member that it counts on missed its rounds; no old copy of a member."""
        base_events = max(one.superblock.base_events for one in self.holders)
        return any(
            not one.superblock.config.extends(self.config) and one.superblock.events >= base_events
            for one in self.usable(given)
        )

    def rank(self) -> tuple[int, int, int]:
        """Return a key that orders sides of which one extends the other."""
        return len(self.config.lineage), self.config.starts, self.config.events


def paths_of(given: Sequence[Given]) -> str:
    """Return the paths of *given* as text."""
    return ", ".join(sorted(one.member.path for one in given))


def ruling_config(given: Sequence[Given]) -> ArrayConfig:
    """Return the valid configuration. Raises AssemblyError if there is none (a split brain)."""
    sides = _sides(given)
    valid = [side for side in sides if not any(side.is_void_beside(other) for other in sides)]
    diverged = [side for side in valid if any(side.diverged(other) for other in valid)]
    if diverged:
        if not all(side.is_interrupted(given) for side in diverged):
            raise _split(valid)
        valid = [max(diverged, key=lambda side: (len(side.usable(given)), side.rank()))]
    if not valid:
        raise _split(sides)
    best = max(side.rank() for side in valid)
    rulers = [side for side in valid if side.rank() == best]
    if len(rulers) > 1:
        raise AssemblyError(
            f"{' and '.join(paths_of(side.holders) for side in rulers)} contradict each other at "
            f"event {rulers[0].config.events}",
            action="start with one side alone, then replace the other's members",
            reason=Reason.SPLIT,
        )
    return rulers[0].config


def _sides(given: Sequence[Given]) -> list[_Side]:
    """Group the members by the configuration that they hold."""
    sides: list[_Side] = []
    for one in given:
        config = one.superblock.config
        for index, side in enumerate(sides):
            if side.config == config:
                sides[index] = _Side(config, (*side.holders, one))
                break
        else:
            sides.append(_Side(config, (one,)))
    return sides


def _split(sides: Sequence[_Side]) -> AssemblyError:
    ways: dict[tuple[str, ...], list[Given]] = {}
    for side in sides:
        if not any(o is not side and o.config.extends(side.config) for o in sides):
            ways.setdefault(side.config.lineage, []).extend(side.holders)
    named = " and ".join(f"[{paths_of(holders)}]" for holders in ways.values())
    return AssemblyError(
        f"array {sides[0].config.name!r} was split: {named} each went on without the other, and "
        "both may hold writes that the other lacks",
        action="start with one side alone, then replace the other's members",
        reason=Reason.SPLIT,
    )
