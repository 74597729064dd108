"""`raidx inject` and `raidx crash`: break a mount that was made for it (`raidx mount --lab`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.commands.change import reference
from raidx_fuse.cli.commands.mount import kill_daemon, ready_text
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import MEMBER, SIZE, array_argument
from raidx_fuse.client.status_document import document
from raidx_fuse.daemon import control_client, paths
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.errors import BusyError, UsageError
from raidx_fuse.fuse import mountpoint

if TYPE_CHECKING:
    from raidx_fuse.daemon.serve import MountRequest

FAULTS = {  # name -> what it does, for the line that confirms it
    "rot": "bits of {length} at {at} have flipped",
    "bad-area": "{length} from {at} on can be neither read nor written",
    "bad-sector": "{length} from {at} on cannot be read until they are written",
    "lose-write": "the next {count} will be acknowledged and lost",
    "torn-write": "the next {count} will be stored in part",
    "misdirect": "the next {count} will go {shift} bytes too far",
    "hang": "{operations} will not be answered until `return`",
    "slow": "{operations} will take {delay_s:g} s longer, until `return`",
    "vanish": "every operation fails until `return`",
    "return": "works again; no fault is left",
}


@verb()
@array_argument
@click.argument("member", type=MEMBER)
@click.argument("fault", type=click.Choice(list(FAULTS)))
@click.option(
    "--at",
    type=SIZE,
    metavar="OFFSET",
    help="A byte of the member, as `raidx explain` prints them. Default for rot, bad-area and "
    "bad-sector: a "
    "written place, by the seed; for the others: any place of a chunk.",
)
@click.option(
    "--count",
    type=int,
    help="rot: bytes (1); bad-area, bad-sector: sectors of 512 bytes (8; 1); lose-write, "
    "torn-write, misdirect: writes (1); hang, slow: operations (all, until `return`).",
)
@click.option("--delay", "delay_s", type=float, help="slow: seconds (0.5).")
@click.option("--seed", type=int, default=0, help="Of every random choice (0).")
def inject(out: Output, array: str, member: str, fault: str, **how: Any) -> None:
    """Give a member a fault, as disks have them; only on a mount made with --lab.

    rot flips bits; bad-area gives I/O errors, bad-sector only to reads, until it is written (a
    latent sector error); lose-write and torn-write report success; misdirect
    writes a few chunks too far; hang and slow answer late; vanish is a pulled cable. `return` ends
    the faults of the member: what it missed meanwhile, it does not have.
    """
    document = ask(out, array, "inject", member=reference(member), fault=fault, **how)
    number = document["count"]
    words = FAULTS[fault].format(
        at=document["at"],
        length=plural(document["length"] or 0, "byte"),
        count=plural(number or 0, "write"),
        operations="operations" if number is None else f"the next {plural(number, 'operation')}",
        delay_s=document["delay_s"] or 0.0,
        shift=document.get("shift"),
    )
    out.emit(document, f"{document['member']} (role {document['role']}): {words}")


@verb()
@array_argument
@click.option(
    "--keep",
    type=click.Choice(["none", "some", "all"]),
    default="some",
    help="What the members have of the writes that no flush has covered (some).",
)
@click.option("--seed", type=int, default=0, help="Decides for each write with --keep some (0).")
@click.option(
    "--writing",
    type=SIZE,
    metavar="OFFSET",
    help="Let the power go while a write at OFFSET of the image is in flight, and no other.",
)
@click.option("--length", type=SIZE, default=4096, help="Bytes of that write (4 KiB).")
@click.option(
    "--lose", multiple=True, metavar="MEMBER", type=MEMBER, help="Does not return (repeat)."
)
@click.option(
    "--start-degraded", is_flag=True, help="Mount again even if blocks may read back wrong."
)
def crash(out: Output, array: str, lose: tuple[str, ...], start_degraded: bool, **how: Any) -> None:
    """Cut the power of all members and mount again; only on a mount made with --lab.

    Writes that no flush has covered are kept, lost or torn, each member for itself. The same
    seed on the same array and writes gives the same state.
    """
    from raidx_fuse.daemon import daemonize  # late: other commands need no engine
    from raidx_fuse.daemon.serve import body

    mount, _ = mountpoint.split_array(array)
    path = mountpoint.real_path(mount)
    found = mountpoint.find(path)
    if found is not None and found.is_foreign:  # its daemon would say what is mounted again
        raise UsageError(f"the mount on {path} belongs to another user (uid {found.owner})")
    for device, image in mountpoint.loop_devices(path):
        raise BusyError(f"{device} is on {image}", action=f"type: losetup -d {device}")
    lost = [reference(member) for member in lose]
    with control_client.Connection(array) as connection:
        result = connection.call("crash", lose=lost, **how)
        request = _request(result.pop("again", None), path, start_degraded)
        result = out.fit(result)
        pid = connection.daemon_pid
    kill_daemon(path, pid)
    if mountpoint.find(path) is not None:
        mountpoint.unmount(path)
    if not out.json:
        out.note("\n".join(_cut_lines(result)))
    status = out.fit(daemonize.start(body(request), paths.own_files(path).log))
    out.emit({**document([status]), "crash": result}, ready_text(out, status, path))


def _cut_lines(result: dict[str, Any]) -> list[str]:
    lines = [f"the power was cut (keep {result['keep']}, seed {result['seed']})"]
    for cut in result["cut"]:
        gone = "; does not return" if cut["member"] in result["lost_members"] else ""
        unflushed = cut["kept"] + cut["lost"] + cut["torn"]
        lines.append(
            f"  {cut['member']}: {plural(unflushed, 'unflushed write')}, of which {cut['kept']} "
            f"kept, {cut['lost']} lost, {cut['torn']} torn{gone}"
        )
    return lines


def _request(again: Any, path: str, start_degraded: bool) -> MountRequest:
    """Return the request of a mount like the one before. Raises ControlError."""
    from raidx_fuse.daemon.serve import MountRequest

    try:
        members = tuple(map(str, again["members"]))
        changed = {"members": members, "start_degraded": start_degraded}
        request = MountRequest(**{**again, **changed})
    except (TypeError, KeyError):
        request = None
    if request is None or request.mountpoint != path:
        raise ControlError(f"the daemon of {path} sent an answer that is not valid")
    return request
