"""Tries a wheel as a user would: `python tests/docs/try_wheel.py WHEEL [PYTHON...]`.

For each PYTHON (this one, unless others are named) the wheel is installed with the extras `watch`
and `view` into an environment of its own, which knows nothing of this tree; then an array is made,
mounted, written, mounted again and compared, the live screen draws a frame, the page of the demo
answers, and the simulator runs. It needs /dev/fuse, script(1) and a package registry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

SIZE = 1 << 20
EXPERIMENT = Path(__file__).parents[2] / "examples" / "experiments" / "small-writes-raid5.toml"
LIMIT_S = 600


def run(*words: str | Path, cwd: Path, **more: str) -> str:
    """Run a program in *cwd* as in a session that knows no other Python; return what it prints."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(cwd), **more}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def use_an_array(raidx: Path, folder: Path) -> None:
    """Create, mount, write, look, mount again and compare."""
    members = ("a", "b", "c")
    image = folder / "mnt" / "disk"
    image.parent.mkdir()
    run(raidx, "create", "--layout", "raid5", "--size", "32MiB", *members, cwd=folder)
    run(raidx, "mount", *members, "mnt", cwd=folder)
    try:
        content = os.urandom(SIZE)
        with image.open("r+b") as file:
            file.write(content)
            os.fsync(file.fileno())
        watch = f"timeout --foreground --preserve-status -s INT 6 {raidx} watch mnt"
        run("script", "-qec", watch, "screen", cwd=folder, TERM="xterm-256color")
        assert b"raid5" in (folder / "screen").read_bytes(), "raidx watch drew nothing"
        run(raidx, "umount", "mnt", cwd=folder)
        run(raidx, "mount", *members, "mnt", cwd=folder)
        with image.open("rb") as file:
            assert file.read(SIZE) == content, "what was written is not there after a mount"
    finally:
        run(raidx, "umount", "mnt", "--if-exists", cwd=folder)


def see_the_page(raidx: Path, folder: Path) -> None:
    """Read the page of `raidx view --demo`."""
    words = [raidx, "view", "--demo", "--port", "0"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        found = re.search(r"http://\S+", demo.stdout.readline())
        assert found, "raidx view named no address"
        assert b"<html" in urllib.request.urlopen(found[0], timeout=60).read()
        demo.terminate()


def try_with(python: str, wheel: Path) -> str:
    """Try *wheel* with one Python; return its version."""
    with tempfile.TemporaryDirectory(prefix="raidx-wheel-") as name:
        folder = Path(name)
        run(python, "-m", "venv", "venv", cwd=folder)
        programs = folder / "venv" / "bin"
        wanted = f"{wheel.resolve()}[watch,view]"
        pip = [programs / "pip", "install", "--quiet", "--disable-pip-version-check"]
        registry = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        run(*pip, wanted, cwd=folder, **registry)
        use_an_array(programs / "raidx", folder)
        see_the_page(programs / "raidx", folder)
        run(programs / "raidx", "simulate", EXPERIMENT, cwd=folder)
        said = run(programs / "python", "--version", cwd=folder)
        return f"{said.strip()}: {run(programs / 'raidx', '--version', cwd=folder).strip()} works"


def main() -> None:
    """Try the wheel that is named with each Python that is named."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for python in sys.argv[2:] or [sys.executable]:
        print(try_with(python, Path(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()
