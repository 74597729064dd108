"""A short command imports no event loop, no numpy and no engine: those take most of its CPU time.

Modules are counted, not milliseconds: a busy machine has the same modules. Measured on an idle one:
`raidx --version` 59 ms of CPU, `raidx status ARRAY` 100 ms, `raidx --help` 50 ms.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raidx_fuse.cli.command_table import TABLE
from raidx_fuse.cli.main import main
from raidx_fuse.daemon import paths
from raidx_fuse.pool.balance.strategies import STRATEGIES
from raidx_fuse.settings import PLANNERS
from tests.cli.conftest import Daemon
from tests.cli.test_running_commands import STATS
from tests.support.documents import job, status

HEAVY = {"pyfuse3", "asyncio", "multiprocessing", "prometheus_client"}
HEAVY |= {"numpy.core", "numpy._core", "trio._core"}  # "numpy" and "trio" alone: not loaded yet
OWN_HEAVY = {"array", "engine", "format", "jobs", "journal", "lab", "pool", "store"}
AT_REST_MAX = 410
MODULES_MAX = 320  # those of Python, click and rich; with trio and the engine there are 640

PROGRAM = """
import shlex, sys
from pathlib import Path
from raidx_fuse.cli.main import main
from raidx_fuse.daemon import paths
from raidx_fuse.daemon import paths
from raidx_fuse.fuse import mountpoint
sockets = Path(sys.argv[1])
paths.directory_of = lambda user: sockets
mountpoint.mounts = lambda: iter(())  # not those of other tests: two are asked with an event loop
for line in sys.argv[2:]:
    try:
        status = main.main(shlex.split(line), standalone_mode=False)
        print(f"status: {status}", file=sys.stderr)
    except SystemExit:
        pass
print(len(sys.modules), *sys.modules, file=sys.stderr)
"""


def imported(sockets: Path, *lines: str, environment: dict[str, str] | None = None) -> set[str]:
    """Return the modules of a process that has run command *lines*, all of which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, sockets, *lines],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
    )
    *said, last = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert all(line in ("status: 0", "status: None") for line in said), done.stderr
    return set(last.split()[1:])


def heavy(modules: set[str]) -> set[str]:
    """Return what a short command does without."""
    ours = {f"raidx_fuse.{name}" for name in OWN_HEAVY}
    return {name for name in modules if name in HEAVY or ".".join(name.split(".")[:2]) in ours}


def test_help_and_version_need_neither_tables_nor_the_engine(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--version", "--help", "completions bash", "status --help")
    assert not heavy(modules)
    assert len(modules) < MODULES_MAX
    assert "rich" not in imported(tmp_path, "--version", "--help")


def test_commands_to_a_running_array_need_no_event_loop(daemon: Daemon) -> None:
    jobs = {"jobs": [job(state="done")]}
    daemon.answers |= {"stats": STATS, "job-list": jobs, "scrub": {"job": 1}}
    daemon.answers["get"] = {"settings": {"speed_min": 1 << 20}}
    daemon.answers["set"] = daemon.answers["get"]
    daemon.answers["status"] = status(jobs=[job()])
    sockets = Path(daemon.sockets)
    lines = ["status ARRAY", "status ARRAY --brief", "stats ARRAY", "job ARRAY", "wait ARRAY"]
    lines += ["get ARRAY", "set ARRAY speed_min=1M", "scrub ARRAY", "status ARRAY --json"]
    modules = imported(sockets, *(each.replace("ARRAY", daemon.mountpoint) for each in lines))
    assert not heavy(modules)
    assert len(modules) < MODULES_MAX


def test_looking_at_arrays_at_rest_needs_no_event_loop_and_no_numbers(tmp_path: Path) -> None:
    members = [str(tmp_path / f"disk{number}.img") for number in range(3)]
    main.main(["create", "--layout", "raid5", "--size", "32MiB", *members], standalone_mode=False)
    lines = [f"scan {tmp_path}", f"status {' '.join(members)}"]
    modules = imported(tmp_path, *lines, "layout list")
    assert not modules & HEAVY
    assert len(modules) < AT_REST_MAX
    assert "trio._core" not in imported(tmp_path, f"examine {members[0]}")


def test_a_library_that_is_loaded_late_is_the_same_afterwards() -> None:
    program = """
        import sys
        from raidx_fuse.late import put_off
        put_off("numpy", "trio", "sys")
        import numpy as np, trio, sys as same
        assert same is sys and "numpy._core" not in sys.modules
        async def main(): await trio.lowlevel.checkpoint(); return np.arange(3).sum()
        assert trio.run(main) == 3
        import numpy, trio.testing
        assert numpy.uint8 is np.uint8 and numpy is sys.modules["numpy"]
        assert numpy.__version__ == np.__version__
        try: np.nothing
        except AttributeError as error: assert "nothing" in str(error)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_what_stands_twice_to_save_imports_is_the_same() -> None:
    said = {name: command.get_short_help_str(1000) for name, command in main.commands.items()}
    assert said == {name: row.summary for name, row in TABLE.items()}
    assert tuple(STRATEGIES) == PLANNERS


def test_nobody_listens_where_a_name_is_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "directory_of", lambda _user: tmp_path / ("long" * 40))
    assert not paths.is_served(tmp_path / "disk0.img")
