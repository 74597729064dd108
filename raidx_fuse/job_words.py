"""What kinds of jobs are called: a row for each, for status, events, mdstat and pools.

A kind of job without a row is called by its kind.
"""

from __future__ import annotations

from typing import NamedTuple


class JobWords(NamedTuple):
    """The words for one kind of job.

    *noun* names it in sentences, *mdstat* in the lines of /proc/mdstat, *event* begins the names of
    its events. While it runs, the array is *state*, of several jobs that of the first row.
    *moves_chunks*: chunks have other places afterwards.
    """

    noun: str
    mdstat: str
    state: str = ""
    event: str = "Job"
    moves_chunks: bool = False


WORDS = {
    "rebuild": JobWords("rebuild", "recovery", "rebuilding", "Rebuild"),
    "restore": JobWords("restoration", "recovery", "restoring", moves_chunks=True),
    "resync": JobWords("resync", "resync", "resyncing"),
    "restripe": JobWords("restripe", "reshape", "restriping", moves_chunks=True),
    "evacuate": JobWords("evacuation", "reshape", "evacuating", moves_chunks=True),
    "grow": JobWords("growth", "reshape", "growing", moves_chunks=True),
    "replace": JobWords("replacement", "replace"),
    "scrub": JobWords("scrub", "check", event="Scrub"),
    "tuning": JobWords("tuning", "tuning", moves_chunks=True),
}
RECOVERY = "recovery"  # the verb of what restores redundancy


def words_of(kind: str) -> JobWords:
    """Return the words for a *kind* of job."""
    return WORDS.get(kind) or JobWords(kind, kind)


def has_begun(kind: str) -> str:
    """Return the sentence that says so.

    >>> has_begun("evacuate")
    'an evacuation has begun'
    """
    noun = words_of(kind).noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun} has begun"
