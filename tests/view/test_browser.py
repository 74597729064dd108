"""The page of the demo in a real browser: keyboard, contrast, plans, breaking, other sites.

One browser and one page serve all tests, in their order. A picture of a mounted array is compared
with what its daemon says in tests/mount/test_view.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.browser import LIMIT_S, Browser, browser, why_no_browser
from tests.support.page import Page, page, show_stripes
from tests.view.make_picture import photograph

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=str(why_no_browser()))

PICTURE_BYTES_MAX = 100 << 10
TEXT_CONTRAST_MIN = 4.5  # WCAG 2.2, 1.4.3 (AA)
LINE_CONTRAST_MIN = 3.0  # WCAG 2.2, 1.4.11
TAB_STOPS_MAX = 60

# Returns [what, colour of the text, colour behind it] of all visible texts; cells of all kinds and
# states are made first, because an array at rest does not have them.
TEXTS = """
const kinds = ['data', 'parity', 'unwritten', 'lost'];
const states = ['', 'read', 'write', 'same', 'moved', 'plan-read', 'plan-write'];
const cells = [...document.querySelectorAll('#picture .cell')];
let number = 0;
for (const kind of kinds) for (const state of states)
  cells[number++].setAttribute('class', `cell ${kind} ${state}`);
document.querySelector('#picture .member').classList.add('logging');
document.getElementById('state').classList.add(arguments[0]);
document.getElementById('events').replaceChildren(...['info', 'warning', 'error'].map((name) => {
  const item = document.createElement('li');
  item.textContent = item.className = name;
  return item;
}));
function behind(element) {
  const rect = element.tagName === 'text' && element.parentNode.querySelector('rect');
  if (rect) return getComputedStyle(rect).fill;
  for (let each = element; each; each = each.parentElement) {
    const colour = getComputedStyle(each).backgroundColor;
    if (colour !== 'rgba(0, 0, 0, 0)') return colour;
  }
  return 'rgb(255, 255, 255)';
}
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own && !['INPUT', 'SELECT'].includes(element.tagName)) continue;
  if (!element.getClientRects().length || element.closest('noscript')) continue;
  const style = getComputedStyle(element);
  const colour = element instanceof SVGElement ? style.fill : style.color;
  found.push([`${element.tagName} ${element.className.baseVal ?? element.className} in `
    + (element.parentNode.className?.baseVal ?? element.parentNode.id), colour, behind(element)]);
}
const lines = cells.map((cell) => {
  const style = getComputedStyle(cell.querySelector('rect'));
  return [cell.getAttribute('class'), style.stroke, 'rgb(255, 255, 255)'];
});
return [found, lines];
"""

READ_WRITE = ("read", "write")
PLAN = """
const keys = (name) => [...document.querySelectorAll(`#picture .plan-${name}`)].map(
  (cell) => cell.dataset.key).sort();
const lines = [...document.querySelectorAll('#plan p')].map((each) => each.textContent);
return [lines, keys('read'), keys('write')];
"""


@pytest.fixture(scope="module")
def shown() -> Iterator[Page]:
    with page("--demo", "--break", "--operation", "50") as running:
        yield running


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, shown: Page) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def at_home(opened: Browser, shown: Page) -> Browser:
    """The browser with the page open and its picture drawn."""
    opened.open(shown.url)
    opened.wait("return document.querySelectorAll('#picture .cell').length >= 32")
    opened.wait("return document.querySelectorAll('#members tr').length >= 4")
    return opened


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, rgb(r, g, b), as WCAG 2.2 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    assert colour.startswith("rgb("), f"{colour} is not opaque"
    parts = [int(part) / 255 for part in colour[4:-1].split(",")]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") == pytest.approx(4.48, abs=0.01)


def test_the_picture_of_the_manual_is_a_picture_of_this_page(opened: Browser, shown: Page) -> None:
    picture = photograph(shown, opened)
    assert picture.startswith(b"\x89PNG")
    assert 10_000 < len(picture) <= PICTURE_BYTES_MAX
    assert opened.complaints() == [], "nothing was refused by the policy, no script failed"


def test_the_picture_is_the_one_that_the_server_tells(at_home: Browser, shown: Page) -> None:
    show_stripes(at_home, 9, 5)
    told = shown.ask("/picture?first=9&count=5")["picture"]
    drawn = at_home.run(
        "return [...document.querySelectorAll('#picture .cell')].map((c) => c.dataset.key)"
    )
    assert drawn == [cell["key"] for cell in told["cells"]]


DRAW = """
document.getElementById('picture').dataset.stripes = '';
document.getElementById('window').requestSubmit();
"""
DRAWN = "return document.getElementById('picture').dataset.stripes !== ''"


def test_a_picture_that_is_drawn_anew_keeps_its_elements_and_the_focus(at_home: Browser) -> None:
    show_stripes(at_home, 0, 8)
    at_home.run(
        """
        window.kept = document.querySelector('[data-key="1:D1"]');
        window.kept.focus();
        window.kept.querySelector('text').textContent = 'changed';
        """
    )
    at_home.run(DRAW)
    at_home.wait(DRAWN)
    assert at_home.run("return document.activeElement === window.kept && kept.isConnected")
    assert at_home.run("return kept.querySelector('text').textContent") == "D1"


def test_text_and_lines_can_be_seen(at_home: Browser) -> None:
    for state in ("trouble", "dead", "clean"):
        texts, lines = at_home.run(TEXTS, state)
        assert len(texts) > 60
        for what, colour, behind in texts:
            ratio = contrast(colour, behind)
            assert ratio >= TEXT_CONTRAST_MIN, f"{what}: {ratio:.2f}, {colour} on {behind}"
        for what, colour, behind in lines:
            assert contrast(colour, behind) >= LINE_CONTRAST_MIN, what


def test_everything_can_be_reached_and_done_with_the_keyboard(at_home: Browser) -> None:
    show_stripes(at_home, 0, 8)
    stops: list[Any] = []
    for _ in range(TAB_STOPS_MAX):
        at_home.press("Tab")
        stop = at_home.run(
            "const e = document.activeElement; return e.id || e.name || e.dataset.key || e.tagName"
        )
        stops.append(stop)
        if stop == "token":
            break
    for wanted in ("first", "count", "back", "on", "follow", "token"):
        assert wanted in stops, stops
    assert sum(":" in str(stop) for stop in stops) == 1, "the picture is one stop"
    at_home.run("document.querySelector('#picture .cell').focus()")
    focused = "return document.activeElement.dataset.key"
    first = at_home.run(focused)
    at_home.press("ArrowRight")
    right = at_home.run(focused)
    at_home.press("ArrowDown")
    below = at_home.run(focused)
    at_home.press("ArrowLeft", "ArrowUp")
    assert at_home.run(focused) == first
    assert len({first, right, below}) == 3
    assert (right.split(":")[0], int(below.split(":")[0])) == (
        first.split(":")[0],
        int(first.split(":")[0]) + 1,
    )
    at_home.press("Enter")
    at_home.wait("return document.querySelector('#plan h3')?.textContent.startsWith('write of')")
    at_home.press("r")
    at_home.wait("return document.querySelector('#plan h3')?.textContent.startsWith('read of')")
    width = at_home.run(
        "return getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth"
    )
    assert width == "4px", "the focus can be seen"


def test_a_click_shows_the_plan_that_explain_tells_and_its_cells(
    at_home: Browser, shown: Page
) -> None:
    show_stripes(at_home, 0, 8)
    (offset,) = [
        cell["image_offset"]
        for cell in shown.ask("/picture?first=1&count=1")["picture"]["cells"]
        if cell["key"] == "1:D1"
    ]

    def told() -> list[Any]:
        plan = shown.ask(f"/plan?offset={offset}&length=512&operation=write")
        return [
            [plan["summary"], *plan["lines"]],
            *(sorted(key for key, each in plan["cells"] if each == what) for what in READ_WRITE),
        ]

    def click() -> None:
        at_home.run("document.getElementById('plan').replaceChildren()")
        at_home.wait_doing(
            lambda: at_home.click('[data-key="1:D1"]'),
            "return document.querySelector('#plan h3')?.textContent.startsWith('write of')",
        )

    # the load goes on: a stripe may have another plan a moment later
    end_s = time.monotonic() + LIMIT_S
    while True:
        click()
        wanted, seen = told(), at_home.run(PLAN)
        if seen == wanted or time.monotonic() > end_s:
            break
    assert seen == wanted
    assert "1:D1" in seen[2]


def test_requests_light_cells_and_can_be_chosen(at_home: Browser) -> None:
    at_home.wait("return document.querySelectorAll('#picture .cell.write').length > 0")
    at_home.wait("return document.querySelectorAll('#picture .cell.read').length > 0")
    at_home.wait_doing(
        lambda: at_home.click("#requests button:enabled"),
        "return document.querySelectorAll('#plan p').length > 2",
    )


def test_nobody_breaks_anything_without_the_token(at_home: Browser, shown: Page) -> None:
    at_home.wait("return !document.getElementById('break').hidden")
    assert at_home.run("return document.getElementById('do').hidden")
    at_home.type("input[name=token]", "not the token at all")
    at_home.click("#enter button")
    at_home.wait("return document.getElementById('done').textContent === 'that is not the token'")
    assert at_home.run("return document.cookie") == ""
    assert shown.token is not None
    at_home.type("input[name=token]", shown.token)
    at_home.click("#enter button")
    at_home.wait("return !document.getElementById('do').hidden")
    assert at_home.run("return document.cookie") == "", "scripts do not see it"
    assert shown.token not in at_home.run("return location.href + document.body.innerHTML")


class Elsewhere(BaseHTTPRequestHandler):
    """Another site, on another port of this machine: browsers send it the same cookies."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_another_site_does_nothing_with_the_cookie_of_this_one(
    at_home: Browser, shown: Page
) -> None:
    at_home.wait("return !document.getElementById('do').hidden")  # the cookie is there
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as site:
        threading.Thread(target=site.serve_forever).start()
        at_home.open(f"http://127.0.0.1:{site.server_port}/")
        at_home.run(
            """
            window.answers = [];
            const body = JSON.stringify({action: 'fail-disk', member: '2'});
            const asked = {method: 'POST', mode: 'no-cors', credentials: 'include', body};
            fetch(arguments[0] + 'do', asked).then(
              () => answers.push('read'), () => answers.push('unread'));
            fetch(arguments[0] + 'me', {credentials: 'include'}).then(
              () => answers.push('read'), () => answers.push('unread'));
            """,
            shown.url,
        )
        answers = at_home.wait("return window.answers.length === 2 && window.answers")
        assert answers == ["unread", "unread"]  # the answer is kept from it, too
        form = f"""
            const form = document.createElement('form');
            form.method = 'POST';
            form.action = '{shown.url}do';
            document.body.append(form);
            form.submit();
            """
        at_home.run(form)
        at_home.wait("return document.body.textContent.includes('another site made this request')")
        site.shutdown()
    at_home.open(shown.url)
    at_home.wait("return document.querySelectorAll('#members tr').length >= 4")
    assert at_home.run("return document.querySelectorAll('#members tr.error').length") == 0
    at_home.wait("return !document.getElementById('do').hidden")  # still entered


def test_a_member_fails_is_replaced_and_the_array_grows(at_home: Browser) -> None:
    at_home.complaints()  # of the tests before, which were refused on purpose
    at_home.wait("return !document.getElementById('do').hidden")
    show_stripes(at_home, 0, 8)

    def do(action: str, member: int) -> None:
        at_home.run(
            """
            const choose = (id, set) => { set(document.getElementById(id));
              document.getElementById(id).dispatchEvent(new Event('change')); };
            choose('do-action', (each) => { each.value = arguments[0]; });
            choose('do-member', (each) => { each.selectedIndex = arguments[1]; });
            document.querySelector('#do button[type=submit]').click();
            """,
            action,
            member,
        )
        at_home.wait(
            "return document.getElementById('done').textContent === arguments[0]", f"{action}: done"
        )

    do("fail-disk", 1)
    at_home.wait("return document.getElementById('state').textContent.startsWith('degraded')")
    at_home.wait("return document.querySelectorAll('#picture .cell.lost').length >= 7")
    at_home.wait("return document.getElementById('events').textContent.includes('has failed')")
    do("replace-disk", 1)
    at_home.wait("return document.querySelectorAll('#picture .cell.lost').length === 0")
    at_home.wait("return document.getElementById('state').textContent.startsWith('clean')")
    do("add-disk", 0)
    at_home.wait("return !document.getElementById('compared').hidden")
    at_home.wait("return document.querySelectorAll('#after .cell.moved').length > 0")
    columns = "return document.querySelectorAll(arguments[0] + ' .member').length"
    assert at_home.run(columns, "#after") == 5
    assert at_home.run(columns, "#before") == 4
    at_home.wait("return document.getElementById('compared-words').textContent.includes('done')")
    assert at_home.complaints() == []


def test_before_and_after_are_shown_to_those_who_come_later(at_home: Browser) -> None:
    at_home.wait("return document.querySelectorAll('#after .cell.moved').length > 0")
    line = "return document.getElementById('compared-words').textContent"
    assert at_home.run(line).startswith("grow, done: ")
    last = "return document.querySelector('#compared-members tbody tr:last-child').textContent"
    assert at_home.run(last).startswith("4disk")
    assert "0 \u2192 " in at_home.run(last)
