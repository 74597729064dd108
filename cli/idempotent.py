"""``--if-missing`` and ``--if-exists``: a verb that has nothing left to do does nothing.

An interrupted script can be run again. The object that exists must be the one that is asked for;
any other is an error, as without the option. The document says ``"changed": false``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.parameters import FunctionT
from raidx_fuse.client.returning import member_named
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.settings import SUMS

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport, VolumeDetails


def if_missing(what: str) -> Callable[[FunctionT], FunctionT]:
    """Return the option ``--if-missing`` for a verb that makes *what*."""
    return click.option("--if-missing", is_flag=True, help=f"Do nothing if {what}.")


def if_exists(what: str) -> Callable[[FunctionT], FunctionT]:
    """Return the option ``--if-exists`` for a verb that removes *what*."""
    return click.option("--if-exists", is_flag=True, help=f"Do nothing if {what}.")


def unchanged(out: Output, document: Mapping[str, object], line: str) -> None:
    out.emit({**document, "changed": False}, line)


def has_member(out: Output, array: str, member: str) -> bool:
    """Return whether a running array has a member with this role, UUID or path."""
    return member_named(ask(out, array, "status")["members"], member) is not None


def volume_named(out: Output, mount: str, name: str) -> VolumeDetails | None:
    """Return the volume of a mount with this name or UUID; None if it has none."""
    volumes: list[VolumeDetails] = ask(out, mount, "volume-list")["volumes"]
    return next((each for each in volumes if name in (each["name"], each["uuid"])), None)


def same_array(status: ArrayReport, name: str, layout: str, sums: str | None) -> None:
    """Raise UsageError if the array of *status* has another name, layout or setting `sums`.

    *sums* None: any.
    """
    kept = status.get("sums")
    state = kept["state"] if kept else "off"
    switch = f"`raidx set ARRAY {SUMS}={sums}`"
    found = (
        ("name", status["name"], name, None),
        ("layout", status["layout"], layout, None),
        (f"setting {SUMS}", state, sums or state, switch),
    )
    for key, present, wanted, action in found:
        if present != wanted:
            raise UsageError(
                f"these members are array {status['name']} already, whose {key} is {present}, "
                f"not {wanted}",
                action=action,
                reason=Reason.EXISTS,
            )


def same_members(status: ArrayReport, members: Sequence[str]) -> bool:
    """Return whether *members* are those of the arrays of *status*.

    In the place of a member that is missing anything may be named: it was left out at the mount.
    """
    all_members = [each for array in status.get("arrays", [status]) for each in array["members"]]
    present = {os.path.realpath(str(m["path"])) for m in all_members if m["state"] != "missing"}
    given = {os.path.realpath(member) for member in members}
    return present <= given and len(given) <= len(all_members)
