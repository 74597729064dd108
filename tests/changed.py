"""Run the tests nearest to what changed, for a minute: `tests/run --changed [COMMIT] [options]`.

What differs from *COMMIT* counts, files that git does not know yet included; by default from where
this branch left `main`. The imports of all modules are read. The order of files of tests:

1. those that changed themselves, and all below a `conftest.py` that changed
2. those of the folder named as the changed module's package (`tests/jobs` for `raidx_fuse/jobs`),
   and those that import it and have a word in common with its name; of these, first those with
   more such words, then those that import it in fewer steps
3. all others that import it, likewise; for what is no module, those that write its name

The first twenty files run, then those about the shape of the code; when the minute is over no other
test begins. Real mounts and what takes long (tests/costly.py) are left out. Of 169 planted bugs
that a test found (tests/crash/MUTATIONS.md) 111 have theirs among twenty files; about 175 import
the module that the bug is in.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.costly import COSTLY

ROOT = Path(__file__).parents[1]
SECONDS = 55.0
FILES = 20  # to collect one takes 0.1 to 0.5 s
NO_WORDS = {"raidx", "fuse", "tests", "test"}
UNREACHED = 99  # a test that runs `raidx` imports none of it
LAST = ("tests/test_architecture.py", "tests/test_tests.py")


def module_name(path: str) -> str:
    """Return the name by which *path*, relative to the top, is imported."""
    name = re.sub(r"(/__init__)?\.py$", "", path).replace("/", ".")
    return f"raidx_fuse.{name}" if name.startswith(("layouts.", "cli.")) else name


def imported(source: str) -> Iterator[str]:
    """Yield what *source* imports, wherever it does so: modules, and names that may be modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def steps_to(name: str, importers: dict[str, set[str]]) -> dict[str, int]:
    """Return by how many imports each module is away from *name*, if it imports it at all."""
    steps = {name: 0}
    reached = [name]
    for module in reached:
        for importer in importers.get(module, set()) - steps.keys():
            steps[importer] = steps[module] + 1
            reached.append(importer)
    return steps


def nearest(changed: Iterable[str], sources: dict[str, str]) -> list[str]:
    """Return the files of tests that *changed* concerns, the nearest first.

    *sources* is the text of every Python file, by its path relative to the top.
    """
    importers: dict[str, set[str]] = {}
    for path, text in sources.items():
        for name in imported(text):
            importers.setdefault(name, set()).add(module_name(path))
    tests = [path for path in sources if re.match(r"tests/(.+/)?test_\w+\.py$", path)]
    rank: dict[str, tuple[int, int, int]] = {}

    def note(test: str, kind: int, words: int = 0, imports: int = 0) -> None:
        place = (kind, -words, imports)
        rank[test] = min(rank.get(test, place), place)

    for path in changed:
        name, folder = module_name(path), str(Path(path).parent)
        package = folder.removeprefix("raidx_fuse/").split("/")[0]
        words = set(re.split(r"[_.]", name)) - NO_WORDS
        steps = steps_to(name, importers)
        for test in tests:
            common = len(words & set(re.split(r"[_.]", module_name(test))))
            if test == path or (path.endswith("/conftest.py") and test.startswith(f"{folder}/")):
                note(test, 0)
            elif test.startswith(f"tests/{package}/"):
                note(test, 1, common, steps.get(module_name(test), UNREACHED))
            elif module_name(test) in steps:
                note(test, 1 if common else 2, common, steps[module_name(test)])
            elif not path.endswith(".py") and Path(path).name in sources[test]:
                note(test, 2)
    return sorted(rank, key=lambda test: (*rank[test], test))


def git(*arguments: str) -> list[str]:
    """Return the lines that git answers, or none if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


class Minute:
    """Lets no test begin after `SECONDS`."""

    def __init__(self) -> None:
        self.left_out = 0
        self._end = time.monotonic() + SECONDS

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Say that *item* has been dealt with if the minute is over."""
        if time.monotonic() < self._end:
            return None
        self.left_out += 1
        return True


def main(arguments: list[str]) -> int:
    """Run the tests and return pytest's exit status; options after the commit are pytest's."""
    options = arguments
    base = (git("merge-base", "HEAD", "main") or ["HEAD"])[0]
    if arguments and not arguments[0].startswith("-"):
        base, options = arguments[0], arguments[1:]
        if not git("rev-parse", "--verify", f"{base}^{{commit}}"):
            print(f"tests/run: no commit {base!r}")
            return 2
    changed = {*git("diff", "--name-only", base), *git("ls-files", "-o", "--exclude-standard")}
    paths = git("ls-files", "-co", "--exclude-standard", "*.py")
    sources = {path: (ROOT / path).read_text() for path in paths if (ROOT / path).is_file()}
    files = nearest(sorted(changed), sources)
    if not files:
        print("tests/run: nothing that a test imports differs from " + base)
        return 0
    minute = Minute()
    left = [f"--deselect={name}" for name in COSTLY]
    print(f"tests/run: the nearest {min(FILES, len(files))} of {len(files)} files")
    files = [*(file for file in files[:FILES] if file not in LAST), *LAST]
    status = pytest.main(["-q", "-m", "not mount", *left, *options, *files], plugins=[minute])
    if minute.left_out:
        print(f"tests/run: {minute.left_out} tests were left out after {SECONDS:.0f} s")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
