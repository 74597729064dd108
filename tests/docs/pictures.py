"""Makes every picture of the README and the manual anew: screens, as text and drawn.

python -m tests.docs.pictures [README.md cli/watch.svg examples/view.png]

README.md: its commands are run in an empty folder, and their output stands below them. The page of
`raidx view` needs a browser; without one it is left, and that is said.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT, shell_environment

CONSOLE = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
TEXT = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)
STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
ODD_DISKS_MIB = (400, 300, 200)
ODD_SHOWN = ("layout", "raidx-copy (2)", "raid5")  # the first row of each
DRAWN = {
    "cli/watch.svg": [sys.executable, "examples/watch_picture.py"],
    "examples/view.png": [sys.executable, "-m", "tests.view.make_picture", "examples/view.png"],
}


def run(line: str, folder: Path) -> str:
    """Run a shell line in *folder*; return what it prints on standard output."""
    done = subprocess.run(
        line, shell=True, cwd=folder, env=shell_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def transcript(shown: str, folder: Path) -> str:
    """Return the transcript *shown* as its commands print in the empty *folder* now."""
    rows: list[str] = []
    for line, _ in STEP.findall(shown):
        output = run(line, folder).replace(str(folder), "...")
        # The log's members take turns; how many records there were depends on the kernel.
        output = re.sub(r"on members \d, \d;", "on members 0, 1;", output)
        rows += [f"$ {line}", *(row.rstrip() for row in output.splitlines())]
    return "".join(f"{row}\n" for row in rows)


def odd_disks(folder: Path) -> str:
    """Return the rows of the README about what three odd disks become."""
    for mib in ODD_DISKS_MIB:
        with open(folder / f"{mib}.img", "wb") as file:
            file.truncate(mib << 20)
    names = " ".join(f"{mib}.img" for mib in ODD_DISKS_MIB)
    said = run(f"raidx create {names} || [ $? = 2 ]", folder).splitlines()
    rows = [next(row for row in said if row.strip().startswith(word)) for word in ODD_SHOWN]
    return "".join(f"{row.rstrip()}\n" for row in rows)


def readme() -> str:
    """Return the README with the screens of now."""
    text = (ROOT / "README.md").read_text()
    with tempfile.TemporaryDirectory() as name:
        console = transcript(CONSOLE.findall(text)[0], Path(name).resolve())
    with tempfile.TemporaryDirectory() as name:
        odd = odd_disks(Path(name))
    text = CONSOLE.sub(lambda _: console, text, count=1)
    return TEXT.sub(lambda _: odd, text, count=1)


def main(*names: str) -> None:
    """Make the pictures *names* anew, all of them if none is named."""
    for name in names or ("README.md", *DRAWN):
        if name == "README.md":
            (ROOT / name).write_text(readme())
            continue
        done = subprocess.run(DRAWN[name], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            print(f"{name} is left as it was: {done.stderr.strip().splitlines()[-1]}")
        elif done.stdout:
            (ROOT / name).write_text(done.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
