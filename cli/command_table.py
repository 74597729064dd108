"""The table of commands: where each one's code is, and what `raidx --help` says about it.

The summaries repeat the first sentence of each command's help, because a list of all commands would
otherwise import every one of them, the engine and the simulator included. A test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One command: "show.status" is the *place* of `status` in commands/show.py.

    *aliases* are mdadm's words for it, with spaces between them.
    """

    place: str
    summary: str
    aliases: str = ""


SECTIONS = {
    "Arrays": {
        "create": Row("create.create", "Create an array of members."),
        "mount": Row(
            "mount.mount",
            "Assemble arrays from their members and mount all their volumes.",
            "assemble",
        ),
        "serve": Row(
            "mount.serve",
            "Assemble arrays from their members and serve all their volumes by NBD, without a "
            "mount.",
        ),
        "umount": Row(
            "mount.umount",
            "Flush the array, mark it clean and unmount it, or end its `raidx serve`.",
            "stop unmount",
        ),
        "rename": Row(
            "create.rename",
            "Give an array that is not mounted another name; all of its members are needed.",
        ),
        "destroy": Row(
            "destroy.destroy",
            "Destroy an array: unmount it, and make all of its members forget it.",
        ),
        "wipe": Row(
            "create.wipe",
            "Make members forget their array: overwrite their superblocks with zeros.",
        ),
        "save-metadata": Row(
            "metadata.save_metadata",
            "Save the configuration of an array in a file, for members that lose their "
            "superblocks.",
        ),
        "restore-metadata": Row(
            "metadata.restore_metadata",
            "Give members that have lost their superblocks new ones from a saved configuration.",
        ),
    },
    "Look": {
        "status": Row(
            "show.status", "Show state, members, jobs, and the next step to take.", "detail"
        ),
        "watch": Row(
            "teach.watch.watch",
            "Watch an array: members, throughput, jobs, and a map of the chunks of each member.",
        ),
        "wait": Row("show.wait", "Wait until an array has a state."),
        "stats": Row("show.stats", "Print operations, bytes and latencies."),
        "events": Row(
            "events.events",
            "Show what happened to arrays on this machine: failures, rebuilds, scrubs, starts, "
            "ends.",
        ),
        "scan": Row("scan.scan", "Find arrays by the superblocks of their members."),
        "examine": Row("show.examine", "Show the superblock of each member."),
        "check": Row("show.check", "Check an array that is not mounted, without writing."),
        "damage": Row("show.damage", "List the ranges of the image whose bytes are lost, and why."),
        "explain": Row(
            "explain.explain",
            "Print what the array would do for a request, and why: the state of its stripes, the "
            "route of a write, the log record, reads, writes and XORs.",
        ),
        "peek": Row(
            "teach.peek.peek",
            "Show the bytes of a stripe, cell by cell, and whether the XOR of each chain is zero.",
        ),
        "advise": Row(
            "tune.advise",
            "Say what a raidx layout, or tuning, would gain for the load seen so far.",
        ),
    },
    "Change": {
        "add-disk": Row(
            "change.add_disk",
            "Grow the array onto one or more new members; raidx layouts take members of any size.",
            "add grow",
        ),
        "reshape": Row(
            "change.reshape",
            "Restripe (reshape) the array to another layout, to more members, or both.",
        ),
        "remove-disk": Row(
            "change.remove_disk",
            "Remove a spare, a copy of raid1, or a member whose content fits the others.",
            "remove",
        ),
        "fail-disk": Row("change.fail_disk", "Take a member out as if it had failed.", "fail"),
        "replace-disk": Row("change.replace_disk", "Replace a member by a new one.", "replace"),
        "online": Row(
            "change.online",
            "Take back a member that had failed or was absent, and is there again.",
        ),
        "clear": Row(
            "change.clear",
            "Forget the errors and repairs that were counted of a member, or of all.",
        ),
        "resize": Row(
            "volume.resize_image", "Give the image of an array another size, up to what there is."
        ),
        "scrub": Row(
            "job.scrub",
            "Read all written chunks, compare the parity, and report each mismatch.",
        ),
        "tune": Row(
            "tune.tune",
            "Print what the tuner of a raidx array does, and why; with --now, move hot chunks.",
        ),
        "job": Row("job.job", "List, pause, resume, cancel, limit or wait for background jobs."),
        "get": Row("setting.get", "Print one setting, or all."),
        "set": Row(
            "setting.set_value",
            "Change a setting; it takes effect immediately and is kept in the array.",
        ),
    },
    "Volumes": {
        "volume": Row(
            "volume.volume", "Volumes: the image files of a mount, each a part of an array."
        ),
        "trim": Row(
            "volume.trim",
            "Discard a range of a volume: it reads as zeros, and whole stripes give their space "
            "back.",
        ),
        "array": Row("balance.array", "The arrays of a mount, or of this machine."),
        "balance": Row(
            "balance.balance",
            "Find hotspots among the arrays of a mount, and move or swap the volumes that relieve "
            "them with the fewest bytes, online.",
        ),
    },
    "Experiment": {
        "replay": Row("experiments.replay", "Replay a trace on a mounted array."),
        "simulate": Row("experiments.simulate", "Run experiments in virtual time."),
        "lab": Row(
            "teach.scratch.lab",
            "A scratch array for a lesson: made, reset and removed in one command each.",
        ),
        "inject": Row(
            "teach.lab.inject",
            "Give a member a fault, as disks have them; only on a mount made with --lab.",
        ),
        "crash": Row(
            "teach.lab.crash",
            "Cut the power of all members and mount again; only on a mount made with --lab.",
        ),
        "view": Row(
            "teach.view.view",
            "Show an array as a web page: stripes, requests as they pass, plans, jobs, events.",
        ),
    },
    "Learn (no array needed)": {
        "layout": Row(
            "layout.commands.layout", "Show codes and placements of a layout; no array is needed."
        ),
        "quiz": Row(
            "teach.quiz.quiz",
            "Print questions: where chunks lie, what parity holds, what writes and rebuilds cost, "
            "which volumes Dswap moves.",
        ),
    },
    "Scripts": {
        "schema": Row(
            "schema.schema",
            "Print the JSON Schema of what a command prints under --json, with the unit of every "
            "number.",
        ),
        "completions": Row(
            "completions.completions",
            "Print the completion script of a shell, or install those of all shells.",
        ),
    },
}
TABLE = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
ALIASES = {alias: name for name, row in TABLE.items() for alias in row.aliases.split()}
