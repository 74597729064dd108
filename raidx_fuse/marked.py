"""What a journal knows of a restripe: the watermark that moves with its records, and nothing more.

A record may carry a *mark*; the head page has the one that held at its tail. So wherever a replay
ends, it has the watermark of exactly the records that it has redone (jobs/restripe.py).
"""

from __future__ import annotations

from collections.abc import Callable

import trio


class Marked:
    """The watermark *mark* of a journal, and its *mode*: what is logged; see journal.py.

    *forced*: everything, whatever the mode is. *on_mark* hears of every new watermark.
    """

    def __init__(self, mode: str) -> None:
        self.forced = False
        self.changing = trio.Lock()  # held while the mode changes, here and in the superblocks
        self.mark = 0
        self.on_mark: Callable[[int], None] = lambda _mark: None
        self._mode = mode

    @property
    def mode(self) -> str:
        """What is logged now."""
        return "full" if self.forced else self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode = mode

    def take_mark(self, mark: int) -> None:
        """Let *mark* be the watermark."""
        self.mark = mark
        self.on_mark(mark)
