"""tests/each-commit.sh: it passes over commits that mount, and names one that does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mount.real_array import run

ROOT = Path(__file__).parents[2]
AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@localhost")
SERVE = "raidx_fuse/daemon/serve.py"

pytestmark = pytest.mark.mount


def test_a_commit_that_cannot_mount_is_named(tmp_path: Path) -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a git clone: there are no commits to try")
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", "--shared", ROOT, clone)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    script, serve = clone / "tests" / "each-commit.sh", clone / SERVE
    script.write_text((ROOT / "tests" / "each-commit.sh").read_text())
    script.chmod(0o755)
    git = ("git", "-C", clone, *AUTHOR)
    run(*git, "commit", "--quiet", "--allow-empty", "-m", "This one mounts")
    assert run(script, "HEAD~1").stdout == "each-commit: 1 commits import and mount\n"
    whole = serve.read_text()
    serve.write_text(whole + "import nothing_of_that_name\n")
    run(*git, "commit", "--quiet", "-am", "This one does not")
    serve.write_text(whole)
    run(*git, "commit", "--quiet", "-am", "Mended")
    done = run(script, "HEAD~3", check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(" This one does not\n")
    assert "nothing_of_that_name" in done.stderr
    assert not run("git", "-C", clone, "worktree", "list").stdout.count("raidx-each-commit")
