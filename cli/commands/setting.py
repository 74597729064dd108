"""Commands that print and change the settings of a running array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.parameters import ASSIGNMENT, KEY, array_argument
from raidx_fuse.cli.progress import ENDED
from raidx_fuse.errors import UsageError
from raidx_fuse.settings import SUMS, text_of

if TYPE_CHECKING:
    from raidx_fuse.documents import Job, Settings


@verb()
@array_argument
@click.argument("key", required=False, type=KEY)
def get(out: Output, array: str, key: str | None) -> None:
    """Print one setting, or all."""
    _print_settings(out, ask(out, array, "get", key=key) if key else ask(out, array, "get"))


@verb("set")
@array_argument
@click.argument("assignment", metavar="KEY=VALUE", type=ASSIGNMENT)
def set_value(out: Output, array: str, assignment: str) -> None:
    """Change a setting; it takes effect immediately and is kept in the array."""
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise UsageError(f"{assignment!r} is not KEY=VALUE", action=f"see raidx get {array}")
    key, value = key.strip(), value.strip()
    _print_settings(out, ask(out, array, "set", key=key, value=value))
    if (key, value) == (SUMS, "on"):
        jobs: list[Job] = ask(out, array, "job-list")["jobs"]
        for job in jobs:
            if job["kind"] == "scrub" and job["state"] not in ENDED:
                line = f"job {job['id']}, a scrub, gives checksums to what was written before"
                out.note(f"{line}: raidx job {array} wait")


def _print_settings(out: Output, result: Settings) -> None:
    table = Table()
    for key, value in result["settings"].items():
        table.add_row(key, text_of(key, value, out.size))
    out.emit(result, table)
