"""The command line of `raidx view`: what it refuses, and what it says that it opens."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raidx_fuse.cli.main import main
from raidx_fuse.view import run as running
from raidx_fuse.view.run import PageRequest


def view(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["view", *map(str, words)])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PageRequest]:
    """Nothing is served; return what would have been."""
    found: list[PageRequest] = []

    def serve(request: PageRequest, ready: Any) -> None:
        found.append(request)
        ready(request.port)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "serve", serve)
    return found


@pytest.mark.parametrize(
    "words",
    [
        *((), ("mnt", "--demo"), ("--demo", "--name", "x"), ("--demo", "--port", "65536")),
        *(("--demo", "--token-file", "t"), ("--demo", "--layout", "nosuch"), ("a", "b")),
        *(("--demo", "--disks", "0"), ("--demo", "--operation", "0")),
        *(("--demo", "--operation", "nan"), ("--demo", "--operation", "10001")),
    ],
)
def test_wrong_arguments_are_one_line(words: tuple[str, ...], asked: list[PageRequest]) -> None:
    result = view(*words)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert asked == []


def test_without_options_the_page_is_for_this_machine_and_read_only(
    asked: list[PageRequest],
) -> None:
    result = view("--demo")
    assert result.exit_code == 0
    (request,) = asked
    assert (request.is_public, request.token, list(request.names)) == (False, None, [])
    assert "http://127.0.0.1:8470/" in result.stdout
    assert "token" not in result.stdout


def test_what_is_opened_is_said(asked: list[PageRequest], tmp_path: Path) -> None:
    result = view("--demo", "--public", "--name", "lab.example", "--break")
    assert "any client that reaches port 8470" in result.stdout
    assert "unencrypted" in result.stdout
    assert "http://lab.example:8470/" in result.stdout
    assert asked[0].token is not None
    assert f"token: {asked[0].token}" in result.stdout
    document = json.loads(view("--demo", "--break", "--json").stdout)
    assert document["token"] == asked[1].token != asked[0].token
    (tmp_path / "token").write_text("chosen by the teacher\n")
    result = view("--demo", "--break", "--token-file", tmp_path / "token")
    assert asked[2].token == "chosen by the teacher"
    assert "chosen" not in result.stdout, "a token of a file is not printed"


@pytest.mark.parametrize("content", [None, b"", b"short", b"\xff" * 20, b"x" * 300])
def test_a_bad_token_file_is_one_line(
    content: bytes | None, asked: list[PageRequest], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    result = view("--demo", "--break", "--token-file", path)
    assert result.exit_code in (1, 2)
    assert len(result.stderr.splitlines()) == 1
    assert asked == []


def test_without_h11_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    result = view("--demo")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "raidx: raidx view needs h11, which is not installed; pip install 'raidx-fuse[view]'"
    ]


def test_no_array_and_a_taken_port_are_one_line(tmp_path: Path) -> None:
    result = view(tmp_path, "--port", "0")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"raidx: no array is mounted on {tmp_path}; mount it:")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = view("--demo", "--port", port)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"raidx: port {port} cannot be opened: ")


def test_a_demo_of_a_layout_that_cannot_be_is_one_line() -> None:
    result = view("--demo", "--layout", "rdp", "--disks", "2", "--port", "0")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
