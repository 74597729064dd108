"""The live screen: looks come from a thread, keys are command lines of `raidx`, run in a process.

So the screen has the rules, the words and the dry runs of the commands, and shows what was typed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from raidx_fuse.cli.printable import shown
from raidx_fuse.cli.screen.frame import Feed, Frame
from raidx_fuse.daemon.control_client import ControlError

SILENT_S = 3  # more than the interval: then the screen says that it is not up to date
KILLED = 128  # exit status of a program that a signal has ended: more by its number
COMMAND_S = 600.0
LINES_MAX = 20
LINE_CHARS_MAX = 400


def line_of(words: Sequence[str]) -> str:
    return shown(shlex.join(("raidx", *words)))


def carry_out(words: Sequence[str]) -> tuple[int, list[str]]:
    """Run a command line of `raidx` in a process of its own; return its exit status and lines."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "raidx_fuse.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"NO_COLOR": "1", "FORCE_COLOR": ""},
            timeout=COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        return 1, [f"no answer within {COMMAND_S:g} s"]
    except (OSError, ValueError) as error:  # no process may be started; a word has a null byte
        return 1, [f"the command cannot be run: {error}"]
    lines = done.stdout.decode(errors="replace").splitlines()
    more = [f"and {len(lines) - LINES_MAX} more lines"] if len(lines) > LINES_MAX else []
    return done.returncode, [shown(line)[:LINE_CHARS_MAX] for line in lines[:LINES_MAX] + more]


class FrameView(Widget):
    """Shows *frame*; only lines that have changed are drawn again."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self._frame = frame
        self._lines: list[Text] = []

    def draw(self) -> None:
        lines = self._frame.screen(*self.size)
        pairs = zip_longest(self._lines, lines, fillvalue=Text())
        self._lines = lines
        for y, (old, new) in enumerate(pairs):
            if (old.plain, old.style, old.spans) != (new.plain, new.style, new.spans):
                self.refresh(Region(0, y, self.size.width, 1))

    on_resize = draw

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else Text()
        segments = Segment.simplify(line.render(self.app.console))
        return Strip(segments).adjust_cell_length(self.size.width)


class Dialog(ModalScreen[str | None]):
    """A box with *lines* over the screen, and a line to type in; returns that, None after Escape.

    With *may*, it asks for y or n instead; y, which it returns, is a key only if one may.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("n,escape,q,enter", "dismiss")]

    def __init__(self, *lines: str, may: bool | None = None) -> None:
        super().__init__()
        end = {None: (), True: ("", "y: do it   n: leave it as it is"), False: ("", "n: back")}
        self.lines, self._may = (*lines, *end[may]), may

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text("\n".join(self.lines)))
            if self._may is None:
                line = Input(select_on_focus=False)
                line.cursor_blink = False
                yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def key_y(self) -> None:
        if self._may:
            self.dismiss("y")


class WatchApp(App[ControlError]):
    """Shows the looks of *feed* until a key or an error ends it; `run` returns the error."""

    CSS = """
    Screen, Dialog * { background: ansi_default; color: ansi_default; }
    FrameView { width: 100%; height: 100%; }
    Dialog { align: center middle; background: transparent; }
    Dialog Vertical { width: 78; height: auto; max-height: 100%; }
    Dialog Vertical { border: ascii white; padding: 0 1; }
    Dialog Input { border: none; height: 1; padding: 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "fail"),
        Binding("r", "replace"),
        Binding("t", "tune"),
        Binding("p", "pause"),
        Binding("up,k", "choose(-1)"),
        Binding("down,j", "choose(1)"),
        Binding("q", "quit"),
        Binding("ctrl+c", "interrupt", priority=True),
    ]

    def __init__(self, feed: Feed, frame: Frame) -> None:
        super().__init__(ansi_color=True)
        self.frame = frame
        frame.warning = f"asking the daemon of {feed.array}"
        self._view = FrameView(self.frame)
        self._feed, self._array = feed, feed.array
        self._silent_s = 0
        self._command = asyncio.Lock()

    def compose(self) -> ComposeResult:
        yield self._view

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            end = partial(self.exit, return_code=KILLED + number)
            asyncio.get_running_loop().add_signal_handler(number, end)
        self.set_interval(1.0, self._tick)
        self._look_on()

    @work
    async def _look_on(self) -> None:
        """Poll the mount; after an error, restore the terminal."""
        try:
            while True:
                parts = self.frame.parts_wanted(*self.size)
                self.frame.take(await asyncio.to_thread(self._feed.look, parts))
                self._silent_s, self.frame.warning = 0, ""
                self._draw()
        except ControlError as error:
            self.exit(error, return_code=error.exit_status)
        finally:
            self._feed.stop()  # so that the thread of a look that is under way ends

    def _tick(self) -> None:
        self._silent_s += 1
        if self._silent_s >= self._feed.interval_s + SILENT_S:
            self.frame.warning = f"no answer from the daemon for {self._silent_s} s"
            self._draw()

    def _draw(self, message: str | None = None) -> None:
        if message is not None:
            self.frame.message = message
        self._view.draw()

    def action_choose(self, step: int) -> None:
        self.frame.choose(step)
        self._draw()

    def action_interrupt(self) -> None:
        self.exit(return_code=KILLED + signal.SIGINT)  # as other commands end on Ctrl+C

    def action_fail(self) -> None:
        if member := self.frame.member:
            self._order("fail-disk", self._array, member.name)

    def action_tune(self) -> None:
        self._order("tune", self._array, "--now")

    @work
    async def action_replace(self) -> None:
        """Ask by which member the chosen one shall be replaced."""
        if not (member := self.frame.member):
            return
        words = ("replace-disk", self._array, member.name)
        options = "The new member, and options such as --create or --overwrite-signature:"
        typed = await self.push_screen_wait(Dialog(f"{line_of(words)} ...", "", options))
        try:
            if typed and (rest := shlex.split(typed)):
                self._order(*words, *rest)
            elif typed is not None:
                self._draw("name the new member")
        except ValueError as error:
            self._draw(f"{typed!r}: {str(error).lower()}")

    @work
    async def action_pause(self) -> None:
        """Pause the job, or resume it; of several, ask which one."""
        jobs = self.frame.jobs
        number: str | None = next(iter(jobs), "")
        if len(jobs) > 1:
            kinds = (f"{n}: {kind}{', paused' * paused}" for n, (kind, paused) in jobs.items())
            number = await self.push_screen_wait(Dialog("Pause or resume which job?", "", *kinds))
        if number is None:
            return
        if (number := number.strip()) in jobs:
            verb = "resume" if jobs[number][1] else "pause"
            self._order("job", self._array, verb, number, is_harmless=True)
        else:
            those = f"there is no job {number!r}: {', '.join(jobs)}"
            self._draw(those if jobs else "no job is running")

    @work
    async def _order(self, *words: str, is_harmless: bool = False) -> None:
        """Carry out a command line; if it does harm, only after its dry run and a y."""
        if self._command.locked():
            self._draw("the command before has not ended yet")
            return
        async with self._command:
            for line in (words,) if is_harmless else ((*words, "--dry-run"), words):
                self._draw(line_of(line))
                status, lines = await asyncio.to_thread(carry_out, line)
                if line != words:
                    question = Dialog(line_of(line), "", *lines, may=not status)
                    if await self.push_screen_wait(question) is None:
                        self._draw("nothing was changed")
                        return
            self._draw("; ".join(lines) or f"exit status {status}")
