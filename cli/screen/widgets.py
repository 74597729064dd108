"""The widgets: the frame, drawn line by line, and two dialogs over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Region
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static


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
        """Return line *y* of the widget."""
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
        """Make the box."""
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
        """Agree, if there is something to agree to."""
        if self._may:
            self.dismiss("y")

    def action_no(self) -> None:
        """Leave everything as it is."""
        self.dismiss(None)


class Prompt(Dialog):
    """Asks for a line of text; returns it, or None after Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back")]

    def compose(self) -> ComposeResult:
        """Make the box, with a line to type in."""
        with Vertical():
            yield Static(Text("\n".join(self.lines)))
            line = Input(select_on_focus=False)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return what was typed."""
        self.dismiss(event.value)

    def action_back(self) -> None:
        """Return nothing."""
        self.dismiss(None)
