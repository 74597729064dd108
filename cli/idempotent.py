"""``--if-missing`` and ``--if-exists``: a verb that has nothing left to do does nothing.

An interrupted script can be run again. The object that exists must be the one that is asked for;
any other is an error, as without the option. The document says ``"changed": false``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import VolumeDetails

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def if_missing(what: str) -> Callable[[FunctionT], FunctionT]:
    """Return the option ``--if-missing`` for a verb that makes *what*."""
    return click.option("--if-missing", is_flag=True, help=f"Do nothing if {what}.")


def if_exists(what: str) -> Callable[[FunctionT], FunctionT]:
    """Return the option ``--if-exists`` for a verb that removes *what*."""
    return click.option("--if-exists", is_flag=True, help=f"Do nothing if {what}.")


def unchanged(out: Output, document: Mapping[str, Any], line: str) -> None:
    """Print that nothing was to be done."""
    out.emit({**document, "changed": False}, line)


def member_named(out: Output, array: str, member: str) -> Mapping[str, Any] | None:
    """Return the member of a running array with this role, UUID or path; None if it has none."""
    status = ask(out, array, "status")
    same = (member, absolute(member), os.path.realpath(member))
    for each in status["members"]:
        here = each["path"] and os.path.realpath(each["path"])
        if member in (str(each["role"]), each["uuid"]) or each["path"] in same or here in same:
            found: Mapping[str, Any] = each
            return found
    return None


def volume_named(out: Output, mount: str, name: str) -> VolumeDetails | None:
    """Return the volume of a mount with this name or UUID; None if it has none."""
    for each in ask(out, mount, "volume-list")["volumes"]:
        if name in (each["name"], each["uuid"]):
            found: VolumeDetails = each
            return found
    return None


def same_array(status: Mapping[str, Any], **wanted: Any) -> None:
    """Raise UsageError if the array of *status* differs from what *wanted* says of it."""
    for key, value in wanted.items():
        if status[key] != value:
            raise UsageError(
                f"these members are array {status['name']} already, whose "
                f"{key.replace('_', ' ')} is {status[key]}, not {value}",
                reason=Reason.EXISTS,
            )


def same_members(status: Mapping[str, Any], members: Sequence[str]) -> bool:
    """Return whether *members* are those of the arrays of *status*.

    In the place of a member that is missing anything may be named: it was left out at the mount.
    """
    all_members = [each for array in status.get("arrays", [status]) for each in array["members"]]
    present = {os.path.realpath(m["path"]) for m in all_members if m["state"] != "missing"}
    given = {os.path.realpath(member) for member in members}
    return present <= given and len(given) <= len(all_members)
