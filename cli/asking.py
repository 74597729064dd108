"""Requests to daemons: to one by its mount point, or to all on this machine, of any user.

The daemon of another user may answer nothing, endlessly, slowly, or with control characters for the
terminal (what is no status, the connection refuses). Therefore

- each daemon is asked in a thread of its own, with a limit of time and of answer size;
- the caller's own daemons are asked first;
- a problem with one daemon is reported beside the answers of the others.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from raidx_fuse.cli.output import Output
from raidx_fuse.daemon import control_client, paths
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.errors import AmbiguousError, RaidxError, Reason
from raidx_fuse.fuse import mountpoint

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport

STATUS_S = 10.0  # for each daemon
ALL_S = 60.0
AT_ONCE = 8
STATUS_BYTES_MAX = 2 << 20  # 255 members with the longest paths
UUID_CHARS_MIN = 8  # as many as messages show
PLACEHOLDER = re.compile(r"(raidx (?:[a-z-]+ ){1,2})(ARRAY|MOUNT)\b")


Show = Callable[["ArrayReport"], object]


class Found(NamedTuple):
    """The answer of a mount point, or the *problem* with it; *own*: the caller mounted it."""

    path: str
    own: bool
    status: ArrayReport | None
    problem: str | None


def ask(out: Output, array: str, command: str, **arguments: Any) -> Any:
    """Return the daemon's answer to *command*, made safe to print by *out*. Raises ControlError.

    documents.py and answers.py say what the answers are. What an error says to type names *array*.
    """
    try:
        return out.fit(control_client.call(array, command, **arguments))
    except RaidxError as error:
        error.name_in_action(lambda action: named_in(action, array))
        raise


def named_in(text: str, array: str) -> str:
    """Return *text*, in which commands of raidx name ARRAY or MOUNT, with the name of *array*.

    MOUNT is its mount point only: of `/mnt:one` that is `/mnt`.

    >>> named_in("wait: `raidx job ARRAY wait`", "/mnt/a b")
    "wait: `raidx job '/mnt/a b' wait`"
    """

    def name(found: re.Match[str]) -> str:
        whole = array if found[2] == "ARRAY" else mountpoint.split_array(array)[0]
        return found[1] + shlex.quote(whole)

    return PLACEHOLDER.sub(name, text)


def ask_all(show: Show | None = None) -> list[Found]:
    """Return the status of every mount on this machine.

    *show* is called with each status and raises if it cannot be shown. The caller's own mounts come
    first, then one of each user in turn, so that many mounts of one user do not delay the others.
    """
    turns: Counter[int | None] = Counter()
    asked: list[tuple[bool, int, str]] = []
    for path, owner in sorted(_mounts().items()):
        own = owner in (None, os.getuid())
        asked.append((not own, turns[owner], path))
        turns[owner] += 1
    asked.sort()
    if len(asked) < 2:  # no event loop for one mount: it would double the time of `raidx status`
        return [_ask_one(path, not foreign, show) for foreign, _, path in asked]
    import trio

    return trio.run(_ask_each, [(path, not foreign) for foreign, _, path in asked], show)


def is_place(text: str) -> bool:
    """Return whether *text* is a mount, a server or at least a folder, with an array or without."""
    mount, _array = mountpoint.split_array(text)
    return mountpoint.find(mount) is not None or os.path.isdir(mount) or paths.is_served(mount)


def array_named(text: str) -> str:
    """Return MOUNT, or MOUNT:ARRAY beside other arrays, of the running array that *text* names.

    *text* is its name, its UUID or the first eight digits of it, the path of an image or of a
    member. A directory, or a text that is no such name, is returned unchanged. Only mounts of the
    caller are asked: another user's daemon may claim any name. Raises UsageError if several fit.
    """
    if is_place(text):
        return text
    place, real = os.path.abspath(text), os.path.realpath(text)
    fits: dict[str, None] = {}
    for each in ask_all():
        if each.status is None or not each.own:
            continue
        arrays = each.status.get("arrays", [each.status])
        for array in arrays:
            paths_of = (member["path"] for member in array["members"])
            files = {os.path.realpath(path) for path in paths_of if path}
            images = {volume.get("path") for volume in array["volumes"]}
            by_uuid = len(text) >= UUID_CHARS_MIN and str(array["uuid"]).startswith(text)
            if text == array["name"] or by_uuid or real in files or place in images:
                fits[each.path if len(arrays) < 2 else f"{each.path}:{array['name']}"] = None
    if len(fits) > 1:
        raise AmbiguousError(f"{text} fits several arrays", action=f"name one: {', '.join(fits)}")
    return next(iter(fits), text)


def _mounts() -> dict[str, int | None]:
    """Return mount point -> user id of its owner."""
    kinds = (mount for mount in mountpoint.mounts() if mount.fs_type == mountpoint.FUSE_TYPE)
    return {mount.path: mount.owner for mount in kinds}


async def _ask_each(mounts: list[tuple[str, bool]], show: Show | None) -> list[Found]:
    import trio

    from raidx_fuse.members.threads import in_thread

    late = "not asked: the others took too long"
    found = {path: Found(path, own, None, late) for path, own in mounts}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def ask_one(path: str, own: bool) -> None:
        async with limit:
            try:
                ask_it = partial(_ask_one, path, own, show)
                found[path] = await in_thread(path, ask_it, limit_s=STATUS_S)
            except RaidxError as error:
                found[path] = Found(path, own, None, str(error))

    with trio.move_on_after(ALL_S):
        async with trio.open_nursery() as nursery:
            for path, own in mounts:
                nursery.start_soon(ask_one, path, own)
                await trio.lowlevel.checkpoint()  # in this order
    return list(found.values())


def _ask_one(path: str, own: bool, show: Show | None) -> Found:
    """Return the status of one mount, or what is wrong with it."""
    try:
        answer = control_client.call(
            path, "status", timeout_s=STATUS_S, answer_bytes_max=STATUS_BYTES_MAX
        )
        document = cast("ArrayReport", answer)
        if document.get("mountpoint") != path:
            raise ControlError(
                f"the daemon of {path} claims another mount point", reason=Reason.BAD_ANSWER
            )
        if show is not None:
            show(document)
    except RaidxError as error:
        return Found(path, own, None, str(error))
    except LookupError:  # of another version
        why = f"the daemon of {path} does not answer with a raidx status"
        return Found(path, own, None, why)
    return Found(path, own, document, None)


def running_arrays() -> dict[str, tuple[str, ArrayReport]]:
    """Return UUID -> (mount point, status) of the arrays that are mounted.

    The caller's own mounts come first: another user's daemon may claim any UUID.
    """
    found: dict[str, tuple[str, ArrayReport]] = {}
    for each in ask_all():
        for array in [] if each.status is None else each.status.get("arrays", [each.status]):
            found.setdefault(array["uuid"], (each.path, array))
    return found
