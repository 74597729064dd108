"""Files that a command makes for people: pictures and sheets. Other files are never overwritten."""

from __future__ import annotations

import os

from raidx_fuse.errors import RaidxError, Reason, UsageError

BEGIN_CHARS = 5  # "<svg " or "<!doc": the kind of file


def save(path: str, document: str, kind: str) -> None:
    """Write *document*, a *kind* of file, to *path*.

    An empty file, or one that begins as *document* does, is overwritten. Raises UsageError for any
    other that exists, RaidxError if it cannot be written.
    """
    try:
        if os.path.lexists(path) and not _may_go(path, document):
            raise UsageError(
                f"{path} exists and is no {kind}",
                action="choose another name",
                reason=Reason.EXISTS,
            )
        with open(path, "w", encoding="utf-8") as file:
            file.write(document)
    except OSError as error:
        raise RaidxError(
            f"{path} cannot be written: {error.strerror}", reason=Reason.FILE
        ) from None


def _may_go(path: str, document: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        begin = file.read(BEGIN_CHARS)
    return begin in (b"", document[:BEGIN_CHARS].encode())
