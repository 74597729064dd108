"""Flush rounds: callers that arrive before a flush has started share that flush.

A caller that arrives while a round runs waits for the next round: the running round may already
have flushed the member that the caller wrote to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from raidx_fuse.errors import ArrayFailedError


class _Round:
    """One flush of all members, shared by any number of callers."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Let every caller of this round raise *error*."""
        self.error = error


class FlushRounds:
    """Runs *flush_members* in rounds, one round at a time."""

    def __init__(self, flush_members: Callable[[], Awaitable[None]]) -> None:
        self._flush_members = flush_members
        self._running = trio.Lock()
        self._next_round: _Round | None = None

    async def flush(self) -> None:
        """Return when every write completed before the call is durable.

        Raises what *flush_members* raised in the round, and ArrayFailedError if the task that ran
        the round was cancelled.
        """
        current = self._next_round
        if current is not None:
            await current.done.wait()
        else:
            current = self._next_round = _Round()
            try:
                async with self._running:
                    self._next_round = None  # later callers' writes may miss this round
                    await self._flush_members()
            except Exception as error:
                current.fail(error)
            except BaseException:
                current.fail(ArrayFailedError("the array stopped during a flush"))
                raise
            finally:
                if self._next_round is current:
                    self._next_round = None
                current.done.set()
        if current.error is not None:
            raise current.error
