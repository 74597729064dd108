"""The first sentence of every command's help, for `raidx --help` and completion.

They stand here once more because a list of all commands would otherwise import every one of them,
the engine and the simulator included: half a second of CPU. A test compares them with the commands.
"""

from __future__ import annotations

SUMMARIES = {
    "create": "Create an array of members.",
    "rename": "Give an array that is not mounted another name; all of its members are needed.",
    "destroy": "Destroy an array: unmount it, and make all of its members forget it.",
    "wipe": "Make members forget their array: overwrite their superblocks with zeros.",
    "mount": "Assemble arrays from their members and mount all their volumes.",
    "serve": "Assemble arrays from their members and serve all their volumes by NBD, without a "
    "mount.",
    "umount": "Flush the array, mark it clean and unmount it, or end its `raidx serve`.",
    "status": "Show state, members, jobs, and the next step to take.",
    "wait": "Wait until an array has a state.",
    "stats": "Print operations, bytes and latencies.",
    "events": "Show what happened to arrays on this machine: failures, rebuilds, scrubs, starts, "
    "ends.",
    "scan": "Find arrays by the superblocks of their members.",
    "examine": "Show the superblock of each member.",
    "check": "Check an array that is not mounted, without writing.",
    "explain": "Print what the array would do for a request, and why: the state of its stripes, "
    "the route of a write, the log record, reads, writes and XORs.",
    "peek": "Show the bytes of a stripe, cell by cell, and whether the XOR of each chain is zero.",
    "watch": "Watch an array: members, throughput, jobs, and a map of the chunks of each member.",
    "replay": "Replay a trace on a mounted array.",
    "add-disk": "Grow the array onto one or more new members; raidx layouts take members of any "
    "size.",
    "reshape": "Restripe (reshape) the array to another layout, to more members, or both.",
    "remove-disk": "Remove a spare, a copy of raid1, or a member whose content fits the others.",
    "fail-disk": "Take a member out as if it had failed.",
    "replace-disk": "Replace a member by a new one.",
    "scrub": "Read all written chunks, compare the parity, and report each mismatch.",
    "tune": "Print what the tuner of a raidx array does, and why; with --now, move hot chunks.",
    "advise": "Say what a raidx layout, or tuning, would gain for the load seen so far.",
    "job": "List, pause, resume, cancel, limit or wait for background jobs.",
    "get": "Print one setting, or all.",
    "set": "Change a setting; it takes effect immediately and is kept in the array.",
    "inject": "Give a member a fault, as disks have them; only on a mount made with --lab.",
    "crash": "Cut the power of all members and mount again; only on a mount made with --lab.",
    "lab": "A scratch array for a lesson: made, reset and removed in one command each.",
    "resize": "Give the image of an array another size, up to what there is.",
    "trim": "Discard a range of a volume: it reads as zeros, and whole stripes give their "
    "space back.",
    "volume": "Volumes: the image files of a mount, each a part of an array.",
    "array": "The arrays of a mount.",
    "balance": "Find hotspots among the arrays of a mount, and move or swap the volumes that "
    "relieve them with the fewest bytes, online.",
    "simulate": "Run experiments in virtual time.",
    "layout": "Show codes and placements of a layout; no array is needed.",
    "quiz": "Print questions: where chunks lie, what parity holds, what writes and rebuilds "
    "cost, which volumes Dswap moves.",
    "view": "Show an array as a web page: stripes, requests as they pass, plans, jobs, events.",
    "schema": "Print the JSON Schema of what a command prints under --json, with the unit of "
    "every number.",
    "completions": "Print the completion script of a shell, or install those of all shells.",
}
