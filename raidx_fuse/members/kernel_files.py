"""What the kernel says of files, devices, processes and mounts: the files of /proc and /sys."""

from __future__ import annotations

import os
import stat


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
