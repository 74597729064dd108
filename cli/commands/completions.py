"""`raidx completions`: the completion scripts of shells, printed or installed."""

from __future__ import annotations

import os
from pathlib import Path

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.package.raidx_build import SHELLS, completion_script, write_shared
from raidx_fuse.cli.parameters import PATH
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.members.spec import absolute


@verb()
@click.argument("shell", required=False, type=click.Choice(list(SHELLS)))
@click.option("--install", is_flag=True, help="Write those of all shells, and pages for man.")
@click.option(
    "--prefix",
    type=PATH,
    metavar="DIR",
    help="For --install: instead of ~/.local/share, or /usr/local/share for root.",
)
def completions(out: Output, shell: str | None, install: bool, prefix: str | None) -> None:
    """Print the completion script of a shell, or install those of all shells.

    To use it in this shell only: eval "$(raidx completions bash)"
    """
    if install:
        if shell is not None:
            raise UsageError("--install is for all shells: name none")
        _install(out, Path(absolute(prefix) if prefix else _shared_folder()))
        return
    if shell is None:
        raise UsageError("name a shell", action=f"one of {', '.join(SHELLS)}, or --install")
    if prefix is not None:
        raise UsageError("--prefix is for --install")
    script = completion_script(shell)
    if out.json:
        out.emit({"shell": shell, "script": script})
    else:
        click.echo(script)


def _shared_folder() -> str:
    """Return the share/ that the shells and man of this user look into."""
    if os.geteuid() == 0:
        return "/usr/local/share"
    return os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")


def _install(out: Output, folder: Path) -> None:
    try:
        files = [str(path) for path in write_shared(folder)]
    except OSError as error:
        raise RaidxError(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            action="choose another folder: --prefix DIR",
        ) from error
    scripts = [path for path in files if "/man/" not in path]
    lines = [*scripts, f"and {len(files) - len(scripts)} pages for man below {folder}/man"]
    lines.append("open a new shell; zsh finds the file if its folder is in fpath before compinit")
    out.emit({"installed": files}, "\n".join(lines))
