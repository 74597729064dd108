"""Flush rounds: callers that come while a flush waits for its turn share it (group commit).

A caller that comes while a round runs waits for the next one: the running round may have passed
the member that the caller has written to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from raidx_fuse.errors import ArrayFailedError


class _Round:
    """One flush of all members that any number of callers wait for."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None


class FlushRounds:
    """Rounds of *flush_members*, one at a time."""

    def __init__(self, flush_members: Callable[[], Awaitable[None]]) -> None:
        self._flush_members = flush_members
        self._running = trio.Lock()
        self._next_round: _Round | None = None

    async def flush(self) -> None:
        """Return when all that was written before the call is durable. Raises what a round does."""
        current = self._next_round
        if current is not None:
            await current.done.wait()
        else:
            current = self._next_round = _Round()
            try:
                async with self._running:
                    self._next_round = None  # whoever comes now has writes this round may miss
                    await self._flush_members()
            except Exception as error:
                current.error = error
            except BaseException:
                current.error = ArrayFailedError("the array stopped during a flush")
                raise
            finally:
                if self._next_round is current:
                    self._next_round = None
                current.done.set()
        if current.error is not None:
            raise current.error
