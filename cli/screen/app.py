"""The live screen and its widgets: looks come from a thread, keys go to command lines of `raidx`.

Textual runs on asyncio, the daemon on trio; they meet only at the control socket, of which this is
a client like any other command.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Region
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from raidx_fuse.cli.screen import orders
from raidx_fuse.cli.screen.frame import Style, parts_wanted, screen, too_small
from raidx_fuse.cli.screen.model import Model
from raidx_fuse.cli.screen.orders import Order, Said, line_of
from raidx_fuse.cli.screen.snapshot import Snapshot
from raidx_fuse.daemon.control_socket import ControlError
from raidx_fuse.errors import RaidxError, UsageError

SILENT_S = 3  # more than the interval: then the screen says that it is not up to date
KILLED = 128  # exit status of a program that a signal has ended: more by its number


class FrameView(Widget):
    """Shows lines; only those that have changed are drawn again."""

    class Resized(Message):
        """The view has another size, and needs other lines."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[object] = []  # what each line was made from
        self._strips: list[Strip] = []

    def show(self, lines: Sequence[Text]) -> None:
        """Show *lines*, one for each line of the widget."""
        width = self.size.width
        keys: list[object] = [(line.plain, line.style, line.spans) for line in lines]
        strips, changed = [], []
        for number, line in enumerate(lines):
            if number < len(self._keys) and self._keys[number] == keys[number]:
                strips.append(self._strips[number])
                continue
            segments = [part for part in line.render(self.app.console) if part.text]
            strips.append(Strip(segments).adjust_cell_length(width))
            changed.append(Region(0, number, width, 1))
        self._keys, self._strips = keys, strips
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def on_resize(self) -> None:
        """Forget the lines: they were made for another size."""
        self._keys, self._strips = [], []
        self.post_message(self.Resized())


class Dialog(ModalScreen[str | None]):
    """A box with *lines* over the screen."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = tuple(lines)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text("\n".join(self.lines)))


class Confirm(Dialog):
    """Asks whether to do what *lines* say; only y is a yes. Returns "y" or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "do it"),
        Binding("n,escape,q,enter", "no", "leave it"),
    ]

    def __init__(self, lines: Sequence[str], *, may: bool) -> None:
        end = "y: do it   n: leave it as it is" if may else "n: back"
        super().__init__([*lines, "", end])
        self._may = may

    def action_yes(self) -> None:
        if self._may:
            self.dismiss("y")

    def action_no(self) -> None:
        self.dismiss(None)


class Prompt(Dialog):
    """Asks for a line of text; returns it, or None after Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back")]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text("\n".join(self.lines)))
            line = Input(select_on_focus=False)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_back(self) -> None:
        self.dismiss(None)


class Looks(Protocol):
    """Where the looks come from: `feed.Feed`."""

    interval_s: float

    def look(self, parts: int) -> Snapshot:
        """Return the next look, when it is due. Raises ControlError."""
        ...

    def stop(self) -> None:
        """End a look that is under way in another thread."""


class WatchApp(App[ControlError]):
    """Shows the looks of *feed* until a key or an error ends it; `run` returns the error.

    *carry_out* runs a command line.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    FrameView { width: 100%; height: 100%; }
    Dialog { align: center middle; background: transparent; }
    Dialog > Vertical { width: 78; height: auto; max-height: 100%; border: ascii white; }
    Dialog > Vertical { background: ansi_default; padding: 0 1; }
    Dialog Static { height: auto; background: ansi_default; }
    Dialog Input { border: none; height: 1; padding: 0; background: ansi_default; }
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

    class Looked(Message):
        """A look has come."""

        def __init__(self, look: Snapshot) -> None:
            super().__init__()
            self.look = look

    class Ended(Message):
        """No further look will come."""

        def __init__(self, error: ControlError) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self,
        array: str,
        feed: Looks,
        style: Style,
        carry_out: Callable[[Sequence[str]], Said] = orders.carry_out,
    ) -> None:
        super().__init__(ansi_color=True)
        self.model = Model()
        self.array = array
        self._feed = feed
        self._look_style = style
        self._carry_out = carry_out
        self._parts = 1
        self._silent_s = 0
        self._is_ordering = False
        self._handlers: dict[int, Any] = {}  # of signals, before this screen
        self._frame = FrameView()

    def compose(self) -> ComposeResult:
        yield self._frame

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._on_signal)
        self.set_interval(1.0, self._tick)
        self.run_worker(self._look_on, thread=True, group="looks")

    def on_unmount(self) -> None:
        """End the look that is under way, so that its thread ends."""
        self._feed.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.exit(return_code=KILLED + number)

    def _look_on(self) -> None:
        """Look again and again, in a thread."""
        worker = get_current_worker()
        while not worker.is_cancelled:
            try:
                look = self._feed.look(self._parts)
            except ControlError as error:
                if not worker.is_cancelled:
                    self.post_message(self.Ended(error))
                return
            self.post_message(self.Looked(look))

    # -- the screen ----------------------------------------------------------------------------

    def on_watch_app_looked(self, message: Looked) -> None:
        if self._is_silent():
            self.model.message = ""
        self._silent_s = 0
        self.model.take(message.look)
        self._draw()

    def on_watch_app_ended(self, message: Ended) -> None:
        """Leave the terminal as it was; the caller says why."""
        self.exit(message.error, return_code=message.error.exit_status)

    def on_frame_view_resized(self) -> None:
        self._draw()

    def _tick(self) -> None:
        self._silent_s += 1
        if self._is_silent():
            self._say(f"no answer from the daemon for {self._silent_s} s")

    def _is_silent(self) -> bool:
        return self._silent_s >= self._feed.interval_s + SILENT_S

    def _say(self, message: str) -> None:
        self.model.message = message
        self._draw()

    def _draw(self) -> None:
        columns, lines = self._frame.size
        if not columns or not lines:
            return
        view = self.model.view()
        if view is None:
            first = too_small(columns, lines) or f"asking the daemon of {self.array}"
            self._frame.show([Text(first), *[Text()] * (lines - 1)])
            return
        self._parts = parts_wanted(view, columns, lines)
        self._frame.show(screen(view, columns, lines, self._look_style))

    # -- keys ----------------------------------------------------------------------------------

    def action_choose(self, step: int) -> None:
        self.model.choose(step)
        self._draw()

    def action_interrupt(self) -> None:
        """End as other commands do on Ctrl+C."""
        self.exit(return_code=KILLED + signal.SIGINT)

    def action_fail(self) -> None:
        """Take the chosen member out, after its dry run."""
        member = self.model.chosen
        if member is not None:
            self._begin(orders.fail(self.array, member.name))

    def action_tune(self) -> None:
        """Move hot chunks now, after a dry run."""
        self._begin(orders.tune(self.array))

    def action_replace(self) -> None:
        """Ask by which member the chosen one shall be replaced."""
        member = self.model.chosen
        if member is None:
            return
        head = line_of(("replace-disk", self.array, member.name))
        options = "The new member, and options such as --create or --overwrite-signature:"
        self._ask([f"{head} ...", "", options], partial(orders.replace, self.array, member.name))

    def action_pause(self) -> None:
        """Pause the job, or resume it; of several, ask which one."""
        look = self.model.look
        if look is None:
            return
        jobs = {job.number: job.paused for job in look.jobs}
        try:
            order = orders.pause(self.array, jobs)
        except UsageError as error:
            self._say(str(error))
            return
        if order is not None:
            self._begin(order)
            return
        lines = [f"{job.number}: {job.kind}{', paused' * job.paused}" for job in look.jobs]
        pause = partial(orders.pause, self.array, jobs)
        self._ask(["Pause or resume which job?", "", *lines], pause)

    def _ask(self, lines: Sequence[str], order_of: Callable[[str], Order | None]) -> None:
        """Ask for a line, and carry out the order that it makes."""

        def begin(typed: str | None) -> None:
            if typed is None:
                return
            try:
                order = order_of(typed)
            except RaidxError as error:
                self._say(str(error))
                return
            if order is not None:
                self._begin(order)

        self.push_screen(Prompt(lines), begin)

    def _begin(self, order: Order) -> None:
        if self._is_ordering:
            self._say("the command before has not ended yet")
            return
        self._is_ordering = True
        self._order(order)

    @work
    async def _order(self, order: Order) -> None:
        """Carry out *order*: first its dry run, then, if that is confirmed, itself."""
        try:
            if order.dry is not None:
                said = await self._said(order.dry)
                lines = [line_of(order.dry), "", *said.lines]
                if await self.push_screen_wait(Confirm(lines, may=not said.status)) is None:
                    self._say("nothing was changed")
                    return
            said = await self._said(order.words)
            self._say("; ".join(said.lines) or f"exit status {said.status}")
        finally:
            self._is_ordering = False

    async def _said(self, words: Sequence[str]) -> Said:
        self._say(line_of(words))
        command = self.run_worker(partial(self._carry_out, words), thread=True, group="commands")
        return await command.wait()
