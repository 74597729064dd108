"""A real browser: Debian's chromium, driven over the WebDriver protocol (W3C), which is HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, from the standard
LIMIT_S = 60.0  # of one wait
START_S = 180.0  # the first start on a busy machine reads some 400 MB from a cold disk
PAUSE_S = 0.02
AGAIN_S = 2.0  # until a click that has changed nothing is repeated
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-extensions", "--window-size=1280,1000", "--no-default-browser-check"),
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    "--disable-backgrounding-occluded-windows",
)
# The page draws itself anew while tests look at it: such an answer means "ask again".
PASSING = (
    "stale element reference",
    "no such element",
    "element not interactable",
    "element click intercepted",
)
KEYS = {
    "Enter": "\ue007",
    "Tab": "\ue004",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}


def why_no_browser() -> str | None:
    """Return why no browser can be driven here, None if one can."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install chromium chromium-driver"
    return None


class DriverError(AssertionError):
    """The driver has refused a command; *code* as in the standard."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Browser:
    """One session of a driver at *address*."""

    def __init__(self, address: str) -> None:
        options = {"args": list(ARGUMENTS), "binary": shutil.which("chromium")}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": LOGS}}
        end_s = time.monotonic() + START_S
        while True:
            try:
                session = _call("POST", f"{address}/session", {"capabilities": wanted})
                break
            except DriverError as error:  # the driver gives a start up after a minute
                if error.code != "session not created" or time.monotonic() > end_s:
                    raise
        self._session = f"{address}/session/{session['sessionId']}"

    def close(self) -> None:
        _call("DELETE", self._session)

    def open(self, url: str) -> None:
        _call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function body in JavaScript returns."""
        body = {"script": script, "args": list(arguments)}
        return _call("POST", f"{self._session}/execute/sync", body)

    def wait(self, script: str, *arguments: Any) -> Any:
        """Return what *script* returns when that is true for the first time."""
        return self.wait_doing(lambda: None, script, *arguments)

    def wait_doing(self, do: Callable[[], object], script: str, *arguments: Any) -> Any:
        """Do something, again every `AGAIN_S` until *script* is true; return what it returns.

        For what a page may miss, as people may have to click twice.
        """
        end_s = time.monotonic() + LIMIT_S
        again_s = 0.0
        while True:
            if time.monotonic() >= again_s:
                do()
                again_s = time.monotonic() + AGAIN_S
            if found := self.run(script, *arguments):
                return found
            assert time.monotonic() < end_s, f"never true: {script} {arguments}"
            time.sleep(PAUSE_S)

    def wait_equal(self, script: str, wanted: Callable[[], Any], *arguments: Any) -> None:
        """Return when *script* returns what *wanted* does, which may change meanwhile."""
        end_s = time.monotonic() + LIMIT_S
        while (found := self.run(script, *arguments)) != (now := wanted()):
            assert time.monotonic() < end_s, f"{found} is never {now}"
            time.sleep(PAUSE_S)

    def press(self, *keys: str) -> None:
        """Press keys, by name or character, one after the other."""
        values = [KEYS.get(key, key) for key in keys]
        actions = [
            {"type": kind, "value": value} for value in values for kind in ("keyDown", "keyUp")
        ]
        document = {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        _call("POST", f"{self._session}/actions", document)

    def click(self, selector: str) -> None:
        """Click the element of a CSS selector, when it can be clicked."""
        self._do(selector, "click", {})

    def type(self, selector: str, text: str) -> None:
        """Type *text* into the element of a CSS selector, when that takes it."""
        self._do(selector, "value", {"text": text})

    def screenshot(self) -> bytes:
        return base64.b64decode(_call("GET", f"{self._session}/screenshot"))

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height}
        _call("POST", f"{self._session}/window/rect", size)

    def complaints(self) -> list[str]:
        """Return what the browser has complained about: refused content, errors of scripts."""
        entries = _call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def _do(self, selector: str, what: str, body: Any) -> None:
        end_s = time.monotonic() + LIMIT_S
        finding = {"using": "css selector", "value": selector}
        while True:
            try:
                found = _call("POST", f"{self._session}/element", finding)[ELEMENT]
                _call("POST", f"{self._session}/element/{found}/{what}", body)
                return
            except DriverError as error:
                if error.code not in PASSING or time.monotonic() > end_s:
                    raise
                time.sleep(PAUSE_S)


LOGS = {"browser": "ALL"}


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Yield a browser whose driver keeps its output in *folder*."""
    with (folder / "driver.log").open("w+b") as output:
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            address = f"http://127.0.0.1:{_port(Path(output.name), driver)}"
            opened = Browser(address)
            try:
                yield opened
            finally:
                opened.close()
        finally:
            driver.terminate()
            driver.wait()


def _port(log: Path, driver: subprocess.Popen[bytes]) -> int:
    end_s = time.monotonic() + LIMIT_S
    words = "started successfully on port "
    while words not in (text := log.read_text(errors="replace")):
        assert driver.poll() is None, text
        assert time.monotonic() < end_s, text
        time.sleep(0.02)
    return int(text.partition(words)[2].split(".")[0])


def _call(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        value = json.load(error)["value"]
        raise DriverError(value["error"], value["message"]) from None
