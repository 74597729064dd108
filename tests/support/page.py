"""`raidx view` as its users start it: a process that serves a page on a free port."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.browser import Browser

RAIDX = Path(sys.executable).with_name("raidx")
READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is served on *url*; *token* opens what can be broken."""

    url: str
    token: str | None
    process: subprocess.Popen[str]

    def ask(self, path: str, document: Any = None) -> Any:
        """Return the answer to GET *path*, or to POST *document* with the token."""
        headers = {"X-Raidx-Token": self.token or "", "Content-Type": "application/json"}
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)
        with urllib.request.urlopen(request, timeout=READY_S) as answer:
            return json.load(answer)

    def refused(self, path: str, document: Any) -> str:
        """Return why POST *document* is refused."""
        try:
            answer = self.ask(path, document)
        except urllib.error.HTTPError as error:
            return str(json.load(error)["error"])
        raise AssertionError(f"not refused: {answer}")


def show_stripes(opened: Browser, first: int, count: int) -> None:
    """Let the page in *opened* show these stripes, and follow no requests."""
    opened.wait("return document.querySelectorAll('#picture .cell').length")
    opened.run(
        """
        document.getElementById('first').value = arguments[0];
        document.getElementById('count').value = arguments[1];
        document.getElementById('window').requestSubmit();
        """,
        first,
        count,
    )
    wanted = " ".join(str(number) for number in range(first, first + count))
    opened.wait(
        "return document.getElementById('picture').dataset.stripes === arguments[0]", wanted
    )


@contextmanager
def page(*arguments: str) -> Iterator[Page]:
    """Run ``raidx view`` with *arguments* on a free port; it must end well on an interrupt."""
    words = [str(RAIDX), "view", *arguments, "--port", "0", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    silence = threading.Timer(READY_S, process.kill)
    silence.start()
    lines: list[str] = []
    while not lines or (lines[-1] and lines[-1] != "}\n"):
        lines.append(process.stdout.readline())
    silence.cancel()
    if not lines[-1]:
        _, complaint = process.communicate()
        raise AssertionError(f"the page did not start: {complaint}")
    document = json.loads("".join(lines))
    try:
        yield Page(document["urls"][0], document.get("token"), process)
    finally:
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=READY_S)
    assert process.returncode == 0, complaint
    assert "Traceback" not in complaint, complaint
