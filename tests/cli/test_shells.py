"""The completions, tried in the shells themselves; without a shell, its test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raidx_fuse.cli.package.raidx_build import SHELLS, write_shared

# Each completes its second argument, of which $1 is the script, and prints the candidates. That of
# zsh has stand-ins for what only an interactive shell has.
PROGRAMS = {
    "bash": """
        source "$1"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _raidx_completion raidx; printf '%s\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { }
        compadd() { print -rl -- $completions }
        _describe() { print -rl -- $completions_with_descriptions }
        words=(${=2}); CURRENT=$#words; source "$1"; _raidx_completion
    """,
    "fish": """source $argv[1]; complete -C $argv[2]""",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a share/ folder in which completions are installed."""
    folder = tmp_path_factory.mktemp("share")
    write_shared(folder)
    return folder


@pytest.mark.parametrize("shell", list(PROGRAMS))
def test_the_shell_itself_offers_commands_and_layouts(shell: str, shared: Path) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(shared)}

    def offered(line: str) -> list[str]:
        given = [] if shell == "fish" else [shell]
        done = subprocess.run(
            [found, "-c", PROGRAMS[shell], *given, shared / SHELLS[shell], line],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    commands = offered("raidx sta")
    assert [line.split(":")[0].split("\t")[0] for line in commands] == ["stats", "status"]
    if shell == "fish":  # whole sentences, with their commas
        assert "Show state, members, jobs" in commands[1]
    if shell == "bash":  # it takes "=" for a word
        assert {"raid0", "raid5"} <= set(offered("raidx create --layout = raid"))
    layouts = offered("raidx layout show raid")
    assert {"raid0", "raid5"} <= {line.split(":")[0].split("\t")[0] for line in layouts}
