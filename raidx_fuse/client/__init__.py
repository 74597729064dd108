"""A running array from Python: `Client`.

    from raidx_fuse.client import Client, RaidxError

    array = Client("/mnt/disk")
    if array.status()["state"] == "degraded":
        job = array.replace_disk(2, "/srv/new.img", create=True)
        array.wait_job(job["job"])

This is what the `raidx` command itself does: one request on the control socket of the mount, as
the user who mounted or as root. The documents are those of ``--json`` (documents.py has their
types, `raidx schema` their schemas), and the same promise holds for them. An error is a
`RaidxError`; its *kind* says which one in a word, its *action* what to do. A program
with an event loop calls it in a thread, with `trio.to_thread.run_sync` for instance; the package
itself needs no trio.
"""

from typing import TYPE_CHECKING, Any

from raidx_fuse.client.client import Client
from raidx_fuse.errors import RaidxError, TimedOutError

if TYPE_CHECKING:
    from raidx_fuse.documents import Event, Job, Member, Plan, Started, Stats, Status, Volume

__all__ = [
    "Client",
    "Event",
    "Job",
    "Member",
    "Plan",
    "RaidxError",
    "Started",
    "Stats",
    "Status",
    "TimedOutError",
    "Volume",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from raidx_fuse import documents  # late: some 10 ms, and most programs run without

    return getattr(documents, name)
