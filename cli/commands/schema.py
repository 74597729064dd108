"""`raidx schema`: what the documents under --json are made of."""

from __future__ import annotations

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.schema import schema_names, schema_of
from raidx_fuse.errors import Reason, unknown


@verb()
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def schema(out: Output, words: tuple[str, ...]) -> None:
    """Print the JSON Schema of what a command prints under --json, with the unit of every number.

    COMMAND is a command of raidx, such as `status` or `volume list`; `error` is what any command
    prints that fails. Without one, the commands are listed.
    """
    names = schema_names()
    if not words:
        out.emit({"commands": names}, "\n".join(names))
        return
    name = " ".join(words)
    if name not in names:
        raise unknown("command with a schema", name, names, reason=Reason.UNKNOWN_COMMAND)
    if out.json:
        out.emit({"command": name, "schema": schema_of(name)})
        return
    import json

    click.echo(json.dumps(schema_of(name), indent=2))
