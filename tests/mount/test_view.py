"""The page of a mounted array in a real browser, compared with what its daemon says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.mount.real_array import RealArray
from tests.support.browser import Browser, browser, why_no_browser
from tests.support.page import page, show_stripes

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(bool(why_no_browser()), reason=str(why_no_browser())),
]
CHUNK_BYTES = 64 << 10
STRIPES = 8
STATE = "return document.getElementById('state').textContent.startsWith(arguments[0])"
# Draws the picture, which fails once; nothing changes that would have it drawn again.
FAIL_TO_DRAW = """
const own = window.fetch;
window.fetch = () => { window.fetch = own; return Promise.reject(new Error('no answer')); };
document.getElementById('picture').dataset.stripes = '';
document.getElementById('window').requestSubmit();
"""
KINDS = """
const found = {};
for (const cell of document.querySelectorAll('#picture .cell'))
  found[cell.dataset.key] = [...cell.classList].find((each) =>
    ['data', 'parity', 'unwritten', 'lost'].includes(each));
return found;
"""
COLUMNS = """
const found = {};
const heads = [...document.querySelectorAll('#picture .member')].map((each) =>
  [each.dataset.role, Number(each.querySelector('text').getAttribute('x'))]);
for (const cell of document.querySelectorAll('#picture .cell')) {
  const x = Number(cell.querySelector('text').getAttribute('x'));
  heads.sort((a, b) => Math.abs(a[1] - x) - Math.abs(b[1] - x));
  found[cell.dataset.key] = Number(heads[0][0]);
}
return found;
"""

# Collects the cells whose light is lit, from a moment on at which none is.
COLLECT = """
if (document.querySelector('#picture .cell.write, #picture .cell.read')) return false;
window.lit = new Set();
window.observer?.disconnect();
window.observer = new MutationObserver((changes) => {
  for (const each of changes)
    if (each.target.classList.contains('write')) window.lit.add(each.target.dataset.key);
});
window.observer.observe(document.getElementById('picture'), {attributes: true, subtree: true});
return true;
"""
LIT = "return arguments[0].every((key) => window.lit.has(key))"
LISTED = (
    "return [...document.querySelectorAll('#requests button')].some((each) =>"
    " each.textContent.startsWith(arguments[0]))"
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def told_kinds(array: RealArray) -> dict[str, str]:
    """Return what the daemon says of the cells of the first stripes."""
    found = {}
    for stripe in range(STRIPES):
        for cell in array.call("explain", stripe=stripe)["cells"]:
            kind = "data" if cell["cell"].startswith("D") else "parity"
            kind = "lost" if cell["lost"] else kind
            found[f"{stripe}:{cell['cell']}"] = kind if cell["written"] else "unwritten"
    return found


def told_roles(array: RealArray) -> dict[str, int]:
    """Return on which members the daemon says that the cells are."""
    return {
        f"{stripe}:{cell['cell']}": cell["role"]
        for stripe in range(STRIPES)
        for cell in array.call("explain", stripe=stripe)["cells"]
    }


def agrees(opened: Browser, array: RealArray) -> None:
    """Wait until the page shows what the daemon says of every cell, and where it is."""
    opened.wait_equal(KINDS, lambda: told_kinds(array))
    opened.wait_equal(COLUMNS, lambda: told_roles(array))


def write_chunk(array: RealArray, chunk: int) -> None:
    """Write 4 KiB at the beginning of *chunk* of the image, durably."""
    with array.image.open("r+b", buffering=0) as image:
        image.seek(chunk * CHUNK_BYTES)
        image.write(b"y" * 4096)
        os.fsync(image.fileno())


def test_the_page_shows_what_the_daemon_says_and_survives_it(
    array: RealArray, opened: Browser
) -> None:
    array.create("raid5", 4, "16MiB", "--chunk", "64KiB")
    array.mount("--lab")
    with array.image.open("r+b", buffering=0) as image:
        image.write(b"x" * (7 * CHUNK_BYTES))
    with page(str(array.mnt), "--break") as shown:
        opened.open(shown.url)
        opened.wait(STATE, "clean")
        show_stripes(opened, 0, STRIPES)
        agrees(opened, array)
        opened.run(FAIL_TO_DRAW)
        opened.wait("return document.getElementById('picture').dataset.stripes !== ''")

        # A write passes: its request and its cells. The page is asked for what passes; if it is
        # late by seconds, the daemon does not note, so writes are repeated until they are seen.
        array.call("set", key="journal", value="none")  # in place, at once
        opened.wait(COLLECT)
        marks = ["2:D0", "2:P0"]
        opened.wait_doing(lambda: write_chunk(array, 6), LIT, marks)
        opened.wait(COLLECT)  # what was written before is told, and its light is out
        plan = array.call("explain", offset=4 * CHUNK_BYTES, length=4096, write=True)
        (stripe,) = plan["stripes"]
        written = [f"1:{place['cell']}" for band in stripe["bands"] for place in band["writes"]]
        assert sorted(written) == ["1:D1", "1:P0"]
        opened.wait_doing(lambda: write_chunk(array, 4), LIT, written)
        lit = set(opened.run("return [...window.lit]"))
        assert lit - set(marks) == set(written)  # a mark may have been repeated once too often
        opened.wait(LISTED, f"write 4096 bytes at {4 * CHUNK_BYTES} of")

        # broken by its own button, as a program with the token would
        shown.ask("/do", {"action": "fail-disk", "member": str(array.members[2])})
        opened.wait(STATE, "degraded")
        assert array.status()["state"] == "degraded"
        agrees(opened, array)
        shown.ask("/do", {"action": "replace-disk", "member": str(array.members[2])})
        array.wait_jobs()
        opened.wait(STATE, "clean")
        agrees(opened, array)

        # the daemon dies, and another one comes
        array.send(signal.SIGKILL)
        opened.wait(STATE, f"the daemon of {array.mnt} is gone")
        array.clear()
        opened.wait(STATE, f"no array is mounted on {array.mnt}")
        array.mount()
        opened.wait(STATE, "clean")
        agrees(opened, array)
        assert "--lab" in shown.refused("/do", {"action": "fail-disk", "member": "0"})
        assert array.status()["state"] == "clean", "this mount was not made to be broken"
