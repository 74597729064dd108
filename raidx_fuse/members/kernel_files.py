"""What the kernel says of files, devices, processes and mounts: the files of /proc and /sys."""

from __future__ import annotations

import os
import stat

_COMMAND_CHARS = 200


def kernel_text(path: str | os.PathLike[str]) -> str:
    """Return a file of the kernel (/proc, /sys), or of the system, as text. Raises OSError.

    Users choose what names of files, processes and mounts in it contain: the bytes become text as
    in paths, which cannot fail. Lines end at "\\n" alone, so callers split there: `splitlines` and
    files opened as text also end them at CR, form feed, NEL and others.
    """
    with open(path, "rb") as file:
        return os.fsdecode(file.read())


def rotates(status: os.stat_result) -> bool | None:
    """Return whether a file or block device lies on a rotating disk, by what the kernel says of it.

    None if it says nothing: a file system in memory, over a network, or of several devices.
    """
    device = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    place = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for queue in ("queue", "../queue"):  # a partition's is that of its disk
        try:
            return kernel_text(f"{place}/{queue}/rotational").startswith("1")
        except OSError:
            continue
    return None


def lock_holder(status: os.stat_result) -> tuple[str, int | None]:
    """Return "process PID (its command)" of a process that has locked a file (flock), and its PID.

    "another process" if the kernel does not say which: it may run in another container.
    """
    device = status.st_dev
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    try:
        for line in kernel_text("/proc/locks").split("\n"):
            words = line.split()  # 1: FLOCK ADVISORY WRITE 1234 fe:00:42 0 EOF
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                typed = kernel_text(f"/proc/{words[4]}/cmdline").rstrip("\0").split("\0")
                if os.path.basename(typed[0]).startswith("python"):
                    typed = typed[1:]
                command = " ".join([os.path.basename(typed[0]), *typed[1:]])
                return f"process {words[4]} ({command[:_COMMAND_CHARS]})", int(words[4])
    except (OSError, IndexError):
        pass
    return "another process", None
