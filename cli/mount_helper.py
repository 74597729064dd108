"""`mount.raidx`: what mount(8) calls for a line of fstab of type raidx (`FSTAB`).

mount(8) calls it as ``mount.raidx SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]``, and looks for it in
/sbin (mount(8), "EXTERNAL HELPERS"). It becomes one `raidx mount`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from raidx_fuse.cli.app import complain
from raidx_fuse.cli.main import main as raidx
from raidx_fuse.errors import Reason, UsageError

FSTAB = """\
disk             /mnt/disk  raidx  allow_other,scan=/srv/disks,nofail  0  0
disk,archive     /mnt/pool  raidx  scan=/srv/disks,nofail              0  0
disk             /mnt/disk  raidx  when_complete,degraded_after=30s    0  0
/srv/a,/srv/b    /mnt/both  raidx  ro,nofail                           0  0"""
USAGE = "usage: mount.raidx SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]"
MOUNT_FAILED = 32  # mount(8), "EXIT STATUS"
WRONG_CALL = 1
FLAGS = {
    "ro": "--read-only",
    "allow_other": "--allow-other",
    "degraded": "--start-degraded",
    "when_complete": "--when-complete",
}
WORDS = {"mode": "--mode", "nbd": "--nbd", "tls": "--tls", "degraded_after": "--degraded-after"}
# What mount(8), systemd or the kernel see to, or what a FUSE mount is anyway.
FOR_OTHERS = {
    *("rw", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "group"),
    *("dev", "nodev", "suid", "nosuid", "exec", "noexec", "atime", "noatime", "relatime"),
    "by=uuid",
    *("sync", "async", "diratime", "nodiratime", "lazytime", "nolazytime", "strictatime"),
}


def command_line(words: Sequence[str]) -> list[str] | None:
    """Return the arguments of `raidx` for those of mount.raidx; None: only pretend (``-f``).

    Raises UsageError for what it does not know.

    >>> command_line(["disk", "/mnt/disk", "-o", "rw,nofail,allow_other,mode=640"])
    ['mount', '--name', 'disk', '--allow-other', '--mode', '640', '/mnt/disk']
    """
    places: list[str] = []
    options: list[str] = []
    is_real = True
    rest = iter(words)
    for word in rest:
        if word in ("-o", "-t", "-N"):
            value = next(rest, "")
            options += value.split(",") if word == "-o" else []
        elif word.startswith("-") and set(word[1:]) <= set("sfnv"):
            is_real = is_real and "f" not in word
        elif word.startswith("-"):
            raise UsageError(f"unknown option {word!r}", action=USAGE, reason=Reason.UNKNOWN_OPTION)
        else:
            places.append(word)
    if len(places) != 2:
        raise UsageError("a source and a mount point are needed", action=USAGE)
    source, mountpoint = places
    if source.startswith("/") or "://" in source:
        members = source.split(",")
        arguments = ["mount", *_given(options), *members, mountpoint]
    else:
        kind = "--uuid" if "by=uuid" in options else "--name"
        arrays = [word for array in source.split(",") for word in (kind, array)]
        arguments = ["mount", *arrays, *_given(options), mountpoint]
    return arguments if is_real else None


def _given(options: Sequence[str]) -> Iterator[str]:
    """Yield the options of `raidx mount` that the fstab *options* mean."""
    for option in options:
        word, _, value = option.partition("=")
        if option in FLAGS:
            yield FLAGS[option]
        elif word in WORDS and value:
            yield from (WORDS[word], value)
        elif word == "scan" and value:
            for folder in value.split(":"):
                yield from ("--scan", folder)
        elif option and option not in FOR_OTHERS and not word.startswith(("x-", "X-")):
            known = ", ".join([*FLAGS, *(f"{name}=" for name in WORDS), "scan=", "by=uuid"])
            raise UsageError(
                f"unknown mount option {option!r}",
                action=f"known: {known}",
                reason=Reason.UNKNOWN_OPTION,
            )


def main() -> None:
    """Mount as mount(8) asks, and exit with a status of mount(8)."""
    try:
        arguments = command_line(sys.argv[1:])
    except UsageError as error:
        complain(error)
        sys.exit(WRONG_CALL)
    status = 0 if arguments is None else raidx.main(arguments, standalone_mode=False)
    sys.exit(MOUNT_FAILED if status else 0)


if __name__ == "__main__":
    main()
