"""A daemon that answers from a script, without a mount."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from raidx_fuse.cli.main import main
from raidx_fuse.daemon import control_server, paths
from tests.support.documents import status

Answer = dict[str, Any] | Exception | Callable[[dict[str, Any]], dict[str, Any]]


class Daemon:
    """Answers the control socket of *mountpoint* from *answers*; *calls* is what it was asked."""

    def __init__(self, mountpoint: Path) -> None:
        self.mountpoint = str(mountpoint)
        self.sockets = str(paths.directory_of(os.getuid()))
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Answer] = {"status": status()}
        self._server = control_server.ControlServer(
            paths.own_files(mountpoint).socket, self._handle
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,))
        self._thread.start()
        self._started.wait()

    async def _handle(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((name, arguments))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer(arguments) if callable(answer) else answer

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            self._started.set()
            await self._server.run()

    def stop(self) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()
        self._server.close()

    def run(self, *args: str) -> Result:
        """Run a command line in which ARRAY stands for the mount point."""
        line = [self.mountpoint if arg == "ARRAY" else arg for arg in args]
        return CliRunner().invoke(main, line)

    def run_json(self, *args: str, exit_code: int = 0) -> Any:
        result = self.run(*args, "--json")
        assert result.exit_code == exit_code, result.stderr
        document = json.loads(result.stdout)
        assert document.pop("output_version") == 1
        return document


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    sockets = Path(tempfile.mkdtemp())  # tmp_path may be too long for a socket
    monkeypatch.setattr(paths, "directory_of", lambda _user: sockets)
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    running = Daemon(mountpoint)
    yield running
    running.stop()
    shutil.rmtree(sockets)
