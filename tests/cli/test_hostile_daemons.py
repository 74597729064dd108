"""Daemons that answer anything: none may stop, deceive or hide the others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raidx_fuse.cli import asking
from raidx_fuse.cli.main import main
from raidx_fuse.cli.printable import shown
from raidx_fuse.cli.status_text import BAR_COLUMNS
from raidx_fuse.daemon import control_client
from raidx_fuse.daemon import paths as runtime
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.fuse import mountpoint
from tests.support.documents import job, status

LIMIT_S = 0.6
EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202ex\u200by\udcff[red]z[/red][/nothing]"


class Liar:
    """A socket of *mountpoint* that gives each client what *answer* sends."""

    def __init__(self, mountpoint: str, answer: Callable[[socket.socket], object]) -> None:
        self.path = runtime.files_in(runtime.directory_of(os.getuid()), mountpoint).socket
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        self._listener.bind(os.fspath(self.path))
        self._listener.listen()
        self._clients: list[socket.socket] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                with contextlib.suppress(OSError):
                    client.recv(1 << 16)
                    self._answer(client)

    def close(self) -> None:
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._close_clients()  # the thread may wait for one of them
        self._listener.close()
        self._thread.join()
        self._close_clients()  # one that was accepted meanwhile

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()


AT = "/mnt/evil"


def good(**changes: Any) -> dict[str, Any]:
    """Return a status as the daemon of `AT` gives it."""
    return status(mountpoint=AT, **changes)


def says(document: Any) -> Callable[[socket.socket], object]:
    line = json.dumps({"result": document}).encode() + b"\n"
    return lambda client: client.sendall(line)


def endless(client: socket.socket) -> None:
    while True:
        client.sendall(b'{"result": "' + b"x" * 65536)


def trickle(client: socket.socket) -> None:
    for _ in range(200):
        client.sendall(b"x")
        time.sleep(0.02)


Bench = Callable[..., Result]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return a function that runs a command line where *answers* are mounted, by their paths.

    /mnt/good is the caller's own and in order; the rest is of user *owner*.
    """
    sockets = Path(tempfile.mkdtemp())
    monkeypatch.setattr(runtime, "directory_of", lambda _user: sockets)
    monkeypatch.setattr(asking, "STATUS_S", LIMIT_S)
    liars: list[Liar] = []

    def run(
        answers: dict[str, Callable[[socket.socket], object]], *line: str, owner: int = 4321
    ) -> Result:
        answers = {**answers, "/mnt/good": says(status(name="good", mountpoint="/mnt/good"))}
        mounts = {path: owner if path != "/mnt/good" else os.getuid() for path in answers}
        monkeypatch.setattr(asking, "_mounts", lambda: mounts)
        owners = {str(runtime.files_in(sockets, path).socket): mounts[path] for path in mounts}
        monkeypatch.setattr(
            control_client, "peer", lambda client: (os.getpid(), owners[client.getpeername()])
        )
        while liars:
            liars.pop().close()
        liars.extend(Liar(path, answer) for path, answer in answers.items())
        return CliRunner().invoke(main, line or ("status",))

    yield run
    for liar in liars:
        liar.close()
    shutil.rmtree(sockets)


def assert_clean(text: str) -> None:
    """Assert that a terminal takes *text* for nothing but text."""
    assert all(character.isprintable() or character == "\n" for character in text), repr(text)


CASES: dict[str, Callable[[socket.socket], object]] = {
    "nothing": lambda client: None,
    "the end": lambda client: client.close(),
    "endless": endless,
    "trickle": trickle,
    "an empty line": lambda client: client.sendall(b"\n"),
    "no JSON": lambda client: client.sendall(b"\xff\xfe\x1b[2J\n"),
    "no object": lambda client: client.sendall(b"[1]\n"),
    "a deep one": lambda client: client.sendall(b"[" * 100_000 + b"\n"),
    "a huge number": lambda client: client.sendall(b"9" * 10_000 + b"\n"),
    "no result": says(None),
    "a number": says(7),
    "an empty status": says({}),
    "no members": says(good() | {"members": 5}),
    "odd members": says(good() | {"members": [5, None]}),
    "no name": says({k: v for k, v in good().items() if k != "name"}),
    "not a number": says(good() | {"jobs": [{"kind": "k", "done": float("nan"), "total": 1}]}),
    "infinite": says(good() | {"jobs": [{"kind": "k", "done": 1e999, "total": 1}]}),
    "a list of protections": says(good() | {"protections": [1]}),
    "odd volumes": says(good() | {"volumes": [{"name": 5, "size": "x"}]}),
    "very many warnings": says(good() | {"warnings": ["w"] * 5000}),
    "a very long name": says(good() | {"name": "x" * 100_000}),
    "another's": says(status(mountpoint="/mnt/good", state="clean")),
    "an odd error": lambda client: client.sendall(b'{"error": {"message": [], "action": 5}}\n'),
    "an evil error": lambda client: client.sendall(
        json.dumps({"error": {"message": EVIL, "action": EVIL, "exit_status": 10**30}}).encode()
        + b"\n"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_another_daemon_answers_is_a_line_beside_the_rest(machine: Bench, case: str) -> None:
    begin_s = time.monotonic()
    done = machine({AT: CASES[case]})
    assert time.monotonic() - begin_s < 4 * LIMIT_S + 2
    assert done.exit_code == 0, done.output
    assert "good" in done.stdout
    assert "/mnt/array" in done.stdout or "clean" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"raidx: {AT}: ")
    assert_clean(done.stdout + done.stderr)


def test_a_mount_points_own_name_is_no_danger(machine: Bench) -> None:
    done = machine({f"/mnt/{EVIL}": CASES["nothing"]})
    assert "good" in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert_clean(done.stdout + done.stderr)


def test_the_callers_own_counts_and_hides_no_worse_state(machine: Bench) -> None:
    assert machine({"/mnt/own": says(None)}, "status", owner=os.getuid()).exit_code == 1


def test_another_users_daemon_does_not_answer_for_an_array_of_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [
        asking.Found(f"/mnt/{state}", is_own, good(uuid="U", state=state), None)
        for state, is_own in (("degraded", True), ("clean", False))
    ]
    monkeypatch.setattr(asking, "ask_all", lambda: asked)
    assert asking.running_arrays()["U"][0] == "/mnt/degraded"


def test_unknown_is_told_to_monitors_but_not_instead_of_failed(machine: Bench) -> None:
    failed = says(good(state="failed"))
    mine = os.getuid()
    assert machine({"/a": says(None)}, "status", "--check", owner=mine).exit_code == 4
    assert machine({"/b": says(None), AT: failed}, "status", "--check", owner=mine).exit_code == 2


def test_all_are_asked_at_the_same_time_and_all_are_named(machine: Bench) -> None:
    begin_s = time.monotonic()
    done = machine({f"/mnt/dead{number}": CASES["nothing"] for number in range(12)})
    assert time.monotonic() - begin_s < 3 * LIMIT_S + 3
    assert len(done.stderr.splitlines()) == 12
    assert "good" in done.stdout


def test_json_has_both_as_they_are(machine: Bench) -> None:
    done = machine({"/mnt/dead": says(None), AT: says(good(name=EVIL))}, "status", "--json")
    document = json.loads(done.stdout)
    assert {each["name"] for each in document["arrays"]} == {"good", EVIL}
    assert [each["mountpoint"] for each in document["problems"]] == ["/mnt/dead"]
    assert_clean(done.stdout)


@pytest.mark.parametrize("options", [(), ("--brief",)])
def test_nothing_of_a_status_reaches_the_terminal_as_it_is(
    machine: Bench, options: tuple[str, ...]
) -> None:
    evil = good()

    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: poison(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poison(item) for item in value]
        return value + EVIL + "\nfake" if isinstance(value, str) else value

    done = machine({"/mnt/evil": says(poison(evil) | {"mountpoint": AT})}, "status", *options)
    assert done.exit_code == 0, done.output
    assert_clean(done.stdout + done.stderr)
    assert "[red]z[/red]" in done.stdout
    assert not any(line.startswith("fake") for line in done.stdout.splitlines())


@pytest.mark.parametrize("done", [10**15, -(10**15)])
def test_a_job_that_claims_any_share_has_a_bar_as_every_other(machine: Bench, done: int) -> None:
    shown = machine({AT: says(good(jobs=[job(done=done, total=1)]))})
    assert shown.exit_code == 0, shown.output
    assert not shown.stderr
    assert len(re.findall("[━─]", shown.stdout)) == BAR_COLUMNS


def test_who_answers_must_be_who_mounted(machine: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mountpoint.find

    class Mounted:
        owner = 4321
        fs_type = "fuse.raidx"

    machine({}, "status")
    monkeypatch.setattr(
        mountpoint, "find", lambda path: Mounted if path == "/mnt/good" else real(path)
    )
    with pytest.raises(ControlError, match=f"mounted by uid 4321, but uid {os.getuid()} answers"):
        control_client.call("/mnt/good", "status")


def test_text_is_shown_as_what_bash_would_take() -> None:
    assert shown("plain ä 漢 [x]") == "plain ä 漢 [x]"
    assert shown("a\tb\n\x7f\x85\ud800") == r"a\tb\n\x7f\x85\ud800"
    assert shown("one\ntwo\r", lines=True) == "one\ntwo\\r"
