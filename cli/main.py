"""The `raidx` command: all commands in one group; `raidx_fuse.cli.app` has what they share."""

from __future__ import annotations

import sys

try:
    from raidx_fuse.late import put_off

    put_off("numpy", "trio")
    import click

    from raidx_fuse.cli.app import HELP_OPTIONS, Commands, Verbs
    from raidx_fuse.version import VERSION
except (ImportError, MemoryError, OSError) as error:
    # Under ulimit -v or -n the libraries may fail to load; any other missing module is a bug.
    if isinstance(error, ImportError) and "failed to map segment" not in str(error):
        raise
    sys.exit("raidx: not enough memory or files to begin; allow more: ulimit -v, ulimit -n")


@click.group("raidx", cls=Verbs, commands=Commands(), context_settings=HELP_OPTIONS)
@click.version_option(VERSION, message="raidx %(version)s")
def main() -> None:
    """A virtual disk over member disks: RAID to mount, break, grow and study.

    ARRAY is the mount point of a running array. MEMBER is the path of a file or block device.
    Sizes: K and KiB are 1024, KB is 1000, likewise M, G, T.
    """


if __name__ == "__main__":
    main()
