"""`raidx watch`: a live screen of an array; one plain frame where there is no terminal."""

from __future__ import annotations

import os
import sys

import click
from rich.console import Group

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output, screen_columns
from raidx_fuse.cli.parameters import array_argument
from raidx_fuse.cli.printable import is_plain_locale
from raidx_fuse.cli.screen.frame import COLUMNS_MIN, Feed, Frame
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.errors import NotInstalledError
from raidx_fuse.fuse import mountpoint

INTERVAL_S = 0.5
INTERVAL_S_MIN, INTERVAL_S_MAX = 0.1, 3600.0
EXTRA = "pip install 'raidx-fuse[watch]'"


@verb()
@array_argument
@click.option(
    "--interval",
    type=click.FloatRange(INTERVAL_S_MIN, INTERVAL_S_MAX),
    default=INTERVAL_S,
    show_default=True,
    help="Seconds between two frames.",
)
@click.option("--once", is_flag=True, help="Print one plain frame, without a live screen.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
def watch(out: Output, array: str, interval: float, once: bool, ascii_only: bool) -> int:
    """Watch an array: members, throughput, jobs, and a map of the chunks of each member.

    The map shows how full and how often used each part of a member is, so that a rebuild, a growth
    and a tuning are seen moving. Keys fail or replace the chosen member, tune, and pause jobs; each
    shows the command and its dry run, and asks before it changes anything. Where standard output is
    no terminal, one plain frame is printed. Colours are left out if NO_COLOR is set.

    The live screen needs the extra: pip install 'raidx-fuse[watch]'.
    """
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    frame = Frame(
        ascii_only=ascii_only or not encoding.startswith("utf") or is_plain_locale(),
        colour="NO_COLOR" not in os.environ and sys.stdout.isatty(),
    )
    feed = Feed(array, interval)
    try:
        if not (once or out.json) and _is_terminal():
            return _live(feed, frame)
        columns = max(COLUMNS_MIN, screen_columns())
        found = feed.look(frame.parts_wanted(columns, 1))
    finally:
        feed.close()
    if not out.json:
        frame.take(found)
    out.emit(found, None if out.json else Group(*frame.page(columns)))
    return 0


def _is_terminal() -> bool:
    """Return whether a screen can be drawn here, and keys can be read."""
    streams = (sys.stdin, sys.stdout, sys.__stderr__)  # the last one is what Textual draws on
    known = os.environ.get("TERM", "dumb") != "dumb"
    return known and all(stream is not None and stream.isatty() for stream in streams)


def _live(feed: Feed, frame: Frame) -> int:
    try:
        from raidx_fuse.cli.screen.app import WatchApp  # late: no other command needs Textual
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        raise NotInstalledError(
            "the live screen needs Textual, which is not installed",
            action=f"{EXTRA}, or add --once for one frame",
        ) from None
    feed.open()  # an array that cannot be watched is refused before the screen is cleared
    app = WatchApp(feed, frame)
    reason = app.run()
    if reason is not None:
        mount, _ = mountpoint.split_array(feed.array)
        if mountpoint.find(mount) is None:  # a daemon that unmounts may still answer for a moment
            raise ControlError(f"watching {feed.array} ended: it is not mounted any more")
        raise ControlError(
            f"watching {feed.array} ended: {reason.message}",
            action=reason.action,
            kind=reason.kind,
            reason=reason.reason,
        )
    if app.return_code == 130:
        raise KeyboardInterrupt
    return app.return_code or 0
