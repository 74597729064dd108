"""Jobs that move what lives: they never skip anything, but wait until somebody mends what is amiss.

A host without room is tried again now and then; at content that cannot be had a job pauses until
it is told to go on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from raidx_fuse.errors import MemberError, NoSpaceError, RaidxError
from raidx_fuse.jobs.window import Job

NO_SPACE_S = 5.0  # until a host without room is tried again
TRY_AGAIN_S = 1.0  # until something else is

log = logging.getLogger(__name__)


class MendingJob(Job):
    """A job that waits for whoever mends; *error* says for what."""

    @property
    def title(self) -> str:
        """Its name in the log."""
        return self.kind

    def note_wait(self, error: MemberError | NoSpaceError) -> None:
        """Say what is waited for; the log says it once."""
        if self.error is None:
            log.error("the %s waits: %s", self.title, error)
        self.error = str(error)

    def retry_s(self) -> float:
        """Return when, on the array's clock, what was in the way may be tried again."""
        return self.core.store.clock() + (NO_SPACE_S if self.error else 0.0)

    async def insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do *step*, again and again until the members let it be done.

        Raises what they raise if the array is closed meanwhile.
        """
        while True:
            try:
                await step()
                break
            except (MemberError, NoSpaceError) as error:
                if self._cancelled:
                    raise
                self.note_wait(error)
            await trio.sleep(TRY_AGAIN_S)
        self.error = None

    def stall(self, where: str, error: RaidxError) -> None:
        """Pause at something, *where*, that cannot be had: whoever mends it lets the job go on."""
        log.error("the %s is paused at %s: %s", self.title, where, error)
        self.error = f"{error}; then let it go on: `raidx job ARRAY resume`, or cancel it"
        self.pause()

    def resume(self) -> None:
        """Go on after a pause; what could not be read is tried again."""
        if self.state == "paused":
            self.error = None
        super().resume()
