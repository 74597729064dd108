"""The `raidx` command: all commands under one group. See `raidx_fuse.cli.app` for their manners."""

from __future__ import annotations

from importlib.metadata import version

import click
from click.shell_completion import get_completion_class

from raidx_fuse.cli import (
    change,
    create,
    explain,
    layouts,
    mount,
    replay,
    setting,
    show,
    simulate,
    tune,
)
from raidx_fuse.cli.app import Verbs, verb
from raidx_fuse.cli.output import Output


@click.group("raidx", cls=Verbs)
@click.version_option(version("raidx-fuse"), message="raidx %(version)s")
def main() -> None:
    """A virtual disk over member disks: RAID to mount, break, grow and study.

    ARRAY is the mount point of a running array, MEMBER the path of a file or block device.
    Sizes: K and KiB are 1024, KB is 1000, likewise M, G, T.
    """


@verb()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completions(out: Output, shell: str) -> None:
    """Print the completion script of a shell.

    Use it so: eval "$(raidx completions bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click knows the three
    script = kind(main, {}, "raidx", "_RAIDX_COMPLETE").source()
    if out.json:
        out.emit({"shell": shell, "script": script})
    else:
        click.echo(script)


COMMANDS = (
    create.create,
    mount.mount,
    mount.umount,
    show.status,
    show.stats,
    show.examine,
    show.check,
    explain.explain,
    replay.replay,
    change.add_disk,
    change.reshape,
    change.remove_disk,
    change.fail_disk,
    change.replace_disk,
    change.scrub,
    tune.tune,
    change.job,
    setting.get,
    setting.set_value,
    simulate.simulate,
    layouts.layout,
    completions,
)
for command in COMMANDS:
    main.add_command(command)

if __name__ == "__main__":
    main()
