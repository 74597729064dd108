"""`raidx view`: the web page of an array, for the projector and for students' browsers."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.parameters import ARRAY, LAYOUT_NAME, PATH
from raidx_fuse.errors import NotInstalledError, RaidxError, UsageError

TOKEN_FILE_BYTES_MAX = 4096


@verb()
@click.argument("array", required=False, type=ARRAY)
@click.option("--demo", is_flag=True, help="No ARRAY: a small one on disks in slow motion.")
@click.option("--layout", type=LAYOUT_NAME, default="raid5", help="Of the demo (raid5).")
@click.option("--disks", type=click.IntRange(1, 32), default=4, help="Of the demo (4).")
@click.option("--seed", type=int, default=0, help="Of the demo's requests (0).")
@click.option(
    "--operation",
    "operation_ms",
    type=click.IntRange(1, 10_000),
    default=250,
    metavar="MS",
    help="Of the demo: how many milliseconds a disk takes for one operation (250).",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8470, help="0: any free one (8470).")
@click.option("--public", is_flag=True, help="Let other machines read the page, too.")
@click.option(
    "--name", "names", multiple=True, help="--public: a host name of this machine (repeat)."
)
@click.option("--break", "may_break", is_flag=True, help="Let users with the token break members.")
@click.option(
    "--token-file",
    type=PATH,
    metavar="FILE",
    help="--break: the token; default: a new one each time, which is printed.",
)
def view(
    out: Output,
    array: str | None,
    demo: bool,
    layout: str,
    disks: int,
    seed: int,
    operation_ms: int,
    port: int,
    public: bool,
    names: tuple[str, ...],
    may_break: bool,
    token_file: str | None,
) -> None:
    """Show an array as a web page: stripes, requests as they pass, plans, jobs, events.

    Only browsers on this machine reach the page, and it is read-only. --public opens it, without
    encryption, to every client that can reach this machine: it sees the members' paths, what is
    read and written where, and events; no content of the image. With --break, the page has buttons
    that fail and replace members and inject faults, for users who enter the token; only on a mount
    made with --lab, and in the demo. ^C ends the page; the array stays mounted.
    """
    if (array is None) != demo:
        raise UsageError("give the mount point of an array, or --demo")
    if names and not public:
        raise UsageError("--name goes with --public only")
    if token_file is not None and not may_break:
        raise UsageError("--token-file goes with --break only")
    try:
        import h11  # noqa: F401  # before anything is done
    except ModuleNotFoundError:
        raise NotInstalledError(
            "raidx view needs h11, which is not installed",
            action="pip install 'raidx-fuse[view]'",
        ) from None
    from raidx_fuse.lab.demo import Demo  # late: other commands need no engine
    from raidx_fuse.view.access import check_token, new_token
    from raidx_fuse.view.run import PageRequest, serve

    token = None
    if may_break:
        token = new_token() if token_file is None else check_token(_read(token_file))
    shown = Demo(layout=layout, disks=disks, operation_s=operation_ms / 1e3, seed=seed)
    request = PageRequest(
        where=array,
        demo=shown if demo else None,
        port=port,
        is_public=public,
        names=(os.uname().nodename, *names) if public else (),
        token=token,
    )

    def ready(opened: int) -> None:
        _announce(out, request, opened, None if token_file else token)
        sys.stdout.flush()

    try:
        serve(request, ready)
    except KeyboardInterrupt:
        out.note("the page has ended")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(TOKEN_FILE_BYTES_MAX)
    except (OSError, ValueError) as error:
        raise RaidxError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _announce(out: Output, request: Any, port: int, token: str | None) -> None:
    """Say where the page is, what is open, and the token if it is new."""
    url = f"http://127.0.0.1:{port}/"
    urls = [url]
    lines = [f"{request.where or 'the demo'} is shown on {url} until ^C"]
    if request.is_public:
        urls += [f"http://{name}:{port}/" for name in request.names]
        lines.append(
            f"any client that reaches port {port} of this machine can read it, unencrypted: "
            f"{', '.join(urls[1:])}, or by address"
        )
    if request.token is not None:
        lines.append("members can be failed, replaced and broken with the token")
    if token is not None:
        lines.append(f"token: {token}")
    out.emit(
        {"urls": urls, "public": request.is_public, "may_break": request.token is not None}
        | ({} if token is None else {"token": token}),
        "\n".join(lines),
    )
