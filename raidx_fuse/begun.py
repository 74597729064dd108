"""Writes of whole stripes that some members took at once and others did not.

member 0   new     What was there before is gone in part, and no parity goes with what is there
member 1   new     now: nobody may plan by it, and whoever loses a member gets garbage. So it is
member 2   old     never left for later: the stripes are locked in the same moment, and the rest
member 3   old     is written before anything else happens to them (Writer), even if the request
                   is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raidx_fuse.core import Core
from raidx_fuse.errors import MemberError
from raidx_fuse.store.buffers import Arena
from raidx_fuse.store.member_set import Request


@dataclass(slots=True)
class Begun:
    """*left* is to be written to *stripes*, which are locked; its buffers may lie in *arena*."""

    stripes: list[int]
    left: list[Request]
    arena: Arena


def write_at_once(core: Core, requests: Sequence[Request]) -> list[Request] | None:
    """Write *requests* without suspending; return what is left, None if nobody took anything.

    No member is lost. The caller locks the stripes before anything else runs if anything is left.
    """
    queues = core.store.readable
    left: list[Request] = []
    begun = False
    for request in requests:
        role, position, buffers, size = request
        try:
            if queues[role].try_writev(position, buffers, size):  # type: ignore[union-attr]
                begun = True
                continue
        except MemberError:
            begun = True  # perhaps; it is tried once more with the rest, then the member fails
        if not begun:
            return None
        left.append(request)
    return left


def keep_locked(
    core: Core, stripes: Iterable[int], left: list[Request], arena: Arena
) -> Begun | None:
    """Return what is *left* of *stripes*, which nobody holds, locked now; None if nothing is."""
    if left:
        return Begun(core.locks.take_free(stripes), left, arena)
    core.arenas.put(arena)
    return None
