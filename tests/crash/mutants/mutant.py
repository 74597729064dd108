"""What a mutant is: one realistic bug, planted by replacing one short text, and who is to find it.

Also the cells of the campaign (lab/crash/state.py) that several mutants name.
"""

from __future__ import annotations

from dataclasses import dataclass

LOGGED = ("raid5:partial", "raid5:full", "raid4:partial")
UNLOGGED = ("raid5:none", "raid4:none", "raid0:none", "raid1:none")
TWO_LOSSES = ("evenodd:partial", "xcode:none", "rdp:full", "upc:partial")
STREAMS = ("upc:partial:streams", "raid5:partial:streams", "evenodd:full:streams")
REFUSALS = ("raid0:full:refusals", "raid5:partial:refusals", "raid1:full:refusals")
DEFERRAL = ("raid5:partial:door", "raid1:full:door", "evenodd:partial:door")
DISKS = (
    "raid5:partial:disks",
    "raid1:partial:disks",
    "raid5:none:disks",
    "evenodd:full:disks",
    "raid4:full:disks",
)
RETURNS = (
    "raid5:none:returns",
    "raid5:partial:returns",
    "rdp:full:returns",
    "raid1:partial:returns",
    "raidx-parity:none:returns",
)
LATENT = (
    "raid5:partial:latent",
    "raid5:none:latent",
    "rdp:full:latent",
    "raid1:partial:latent",
    "raidx-parity:none:latent",
)
REPLACES = (
    "raid5:partial:replaces",
    "raid5:none:replaces",
    "raid0:partial:replaces",
    "rdp:full:replaces",
    "raidx-parity:partial:replaces",
)
SCRUB = ("raid5:partial:scrub", "raid4:none:scrub", "evenodd:partial:scrub")
REMOUNTS = ("raid5:partial:remounts", "raid0:full:remounts", "raid5:none:remounts")
MOVES = ("raidx-parity:partial:moves", "raidx-copy:full:moves", "raidx-zero:none:moves")
MEMBERS = ("raidx-parity:partial:members", "raidx-copy:none:members", "raidx-zero:full:members")
GROWTH = ("raid4:partial:growth", "raid4:none:growth", "raid0:full:growth", "raid5:partial:growth")
SQUEEZE = ("raid5:full:squeeze", "raid4:partial:squeeze", "evenodd:partial:squeeze")
HUGE = ("raid5:partial:huge", "raid0:none:huge", "raid5:none:huge")
ENDS = ("raid5:partial:ends", "raid1:full:ends", "raid0:none:ends")
HANGS = ("raid5:partial:hangs", "raid0:none:hangs", "raid4:full:hangs")
DISCARDS = ("raid5:partial:discards", "raid0:full:discards", "evenodd:none:discards")
POOL = ("raid5:partial:pool", "raid1:full:pool")
RESTRIPE = ("raid5:partial:restripe", "upc:full:restripe", "raid0:none:restripe")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: in *file* the text *old*, which stands there once, becomes *new*.

    *why* it is one; *cells* of the campaign and *tests*, files or one test of a file, that look for
    it first. *equivalent*: the reason why nothing can tell it from the original, if that is so.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    cells: tuple[str, ...]
    tests: tuple[str, ...]
    equivalent: str = ""

    def planted(self, source: str) -> str:
        """Return *source* with the bug. Raises ValueError unless there is one place for it."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: {self.file} has its text {count} times: {self.old!r}")
        return source.replace(self.old, self.new)
