"""The `raidx` command: all commands in one group; `raidx_fuse.cli.app` has what they share."""

from __future__ import annotations

import sys

try:
    from raidx_fuse.late import put_off

    put_off("numpy", "trio")
    import click

    from raidx_fuse.cli.app import Commands, Verbs
except (ImportError, MemoryError, OSError) as error:
    # Under ulimit -v or -n the libraries may fail to load; any other missing module is a bug.
    if isinstance(error, ImportError) and "failed to map segment" not in str(error):
        raise
    sys.exit("raidx: not enough memory or files to begin; allow more: ulimit -v, ulimit -n")

COMMANDS = {  # name -> place: the module of a command is imported when the command runs
    "create": "create.create",
    "rename": "create.rename",
    "wipe": "create.wipe",
    "destroy": "destroy.destroy",
    "mount": "mount.mount",
    "serve": "mount.serve",
    "umount": "mount.umount",
    "status": "show.status",
    "wait": "show.wait",
    "stats": "show.stats",
    "events": "events.events",
    "scan": "scan.scan",
    "examine": "show.examine",
    "check": "show.check",
    "explain": "explain.explain",
    "peek": "teach.peek.peek",
    "watch": "teach.watch.watch",
    "replay": "replay.replay",
    "add-disk": "change.add_disk",
    "reshape": "change.reshape",
    "remove-disk": "change.remove_disk",
    "fail-disk": "change.fail_disk",
    "replace-disk": "change.replace_disk",
    "scrub": "jobs.job.scrub",
    "tune": "tune.tune",
    "advise": "tune.advise",
    "job": "jobs.job.job",
    "get": "setting.get",
    "set": "setting.set_value",
    "inject": "teach.lab.inject",
    "crash": "teach.lab.crash",
    "lab": "teach.scratch.lab",
    "resize": "volume.resize_image",
    "trim": "volume.trim",
    "volume": "volume.volume",
    "array": "balance.array",
    "balance": "balance.balance",
    "simulate": "simulate.simulate",
    "layout": "layout.commands.layout",
    "quiz": "teach.quiz.quiz",
    "view": "teach.view.view",
    "schema": "scripts.schema.schema",
    "completions": "scripts.completions.completions",
}


@click.group("raidx", cls=Verbs, commands=Commands(COMMANDS))
@click.version_option(package_name="raidx-fuse", message="raidx %(version)s")
def main() -> None:
    """A virtual disk over member disks: RAID to mount, break, grow and study.

    ARRAY is the mount point of a running array. MEMBER is the path of a file or block device.
    Sizes: K and KiB are 1024, KB is 1000, likewise M, G, T.
    """


if __name__ == "__main__":
    main()
