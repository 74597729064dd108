"""As many copies of the checksums as the layout tolerates losses, and one more.

They lack some after a restripe to a layout that tolerates more, or as a mirror gets more copies;
and where a change of the members was cut, tables have fewer than the others. Whenever a job has
ended, and at a start, what is missing is made, if the members have room: in slots that are free, or
in another region (move_sums.py). Else the status says so.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from raidx_fuse.errors import BusyError, RaidxError, Reason
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.sums import place_for_sums, sums_of
from raidx_fuse.format.shapes import sum_copies_of
from raidx_fuse.jobs.move_sums import SumsRoom, empty_former
from raidx_fuse.jobs.reshape import Change, reshape
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.store.io_tuples import MemberLostError

log = logging.getLogger(__name__)


class Completed(NamedTuple):
    """The array as it will be: *config*, and the *room* of its tables."""

    config: ArrayConfig
    room: SumsRoom


class SumCopies:
    """Completes the copies of the checksums of one running array."""

    def __init__(self, array: ArrayServices) -> None:
        self.array = array
        self._completes = False

    def lacking(self) -> int:
        """Return how many copies more the layout wants than there is room for."""
        config, kept = self.array.member_set.config, sums_of(self.array.member_set.config)
        if kept is None or self.array.context.layout.changing:
            return 0
        wanted = sum_copies_of(config)
        if wanted > kept.copies and place_for_sums(config, wanted) is None:
            return wanted - kept.copies
        return 0

    async def complete(self) -> None:
        """Make the copies that are missing, as far as there is room; an error is logged only."""
        if self._completes or not self._can_begin() or not self._is_due(self._completed()):
            return
        self._completes = True
        former = self.array.member_set.config.regions.sums
        try:
            await reshape(
                self.array,
                Change(
                    plan=self._plan,
                    swap=lambda planned, _: self._take(planned),
                    room=lambda planned: planned.room,
                    drained=False,
                ),
            )
            await empty_former(self.array, former)
        except (RaidxError, MemberLostError) as error:  # a member has failed: after its rebuild
            log.warning("copies of checksums are not made yet: %s", error)
        finally:
            self._completes = False

    def _can_begin(self) -> bool:
        array, member_set = self.array, self.array.member_set
        return (
            member_set.sums is not None
            and not array.jobs.closing
            and not array.context.layout.changing
            and not member_set.lost
            and not member_set.watermarks
        )

    def _plan(self) -> Completed:
        if not self._can_begin():
            raise BusyError("members are missing, or change", reason=Reason.DEGRADED)
        return self._completed()

    def _completed(self) -> Completed:
        config = self.array.member_set.config
        kept, wanted = sums_of(config), sum_copies_of(config)
        assert kept is not None
        if wanted > kept.copies and (place := place_for_sums(config, wanted)) is not None:
            regions = replace(config.regions, sums=place)
            return Completed(replace(config, regions=regions), SumsRoom(regions, wanted))
        return Completed(config, SumsRoom(config.regions, kept.copies))

    def _is_due(self, completed: Completed) -> bool:
        """Return whether tables would have more copies: there is room, or a slot is free."""
        config = self.array.member_set.config
        kept = sums_of(config)
        assert kept is not None
        used = sum(len(table.slots) for table in kept.tables)
        return completed.room.copies > kept.copies or used < len(config.roles()) * kept.copies

    def _take(self, completed: Completed) -> None:
        """Have the tables in their region, in memory, without an await."""
        self.array.member_set.change(lambda _config: completed.config)
