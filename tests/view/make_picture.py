"""Makes the picture of the page on the manual's pages; needs a browser.

python -m tests.view.make_picture examples/view.png
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.support.browser import Browser, browser
from tests.support.page import Page, page, show_stripes

COLOURS = 192  # the page has few, and a PNG of few is small
LIT = "return document.querySelectorAll('.cell.write, .cell.read').length > 1"


def photograph(shown: Page, opened: Browser) -> bytes:
    """Return a PNG of the demo: a plan chosen, cells lit."""
    opened.resize(1280, 1000)
    opened.open(shown.url)
    show_stripes(opened, 0, 8)
    opened.wait("return document.querySelectorAll('#requests button').length > 2")
    opened.wait_doing(
        lambda: opened.click('[data-key="0:D1"]'), "return document.querySelector('#plan h3')"
    )
    opened.wait(LIT)
    picture = Image.open(io.BytesIO(opened.screenshot())).convert("RGB").quantize(COLOURS)
    output = io.BytesIO()
    picture.save(output, "PNG", optimize=True)
    return output.getvalue()


def main(path: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        browser(Path(folder)) as opened,
        page("--demo") as shown,
    ):
        Path(path).write_bytes(photograph(shown, opened))


if __name__ == "__main__":
    main(*sys.argv[1:])
