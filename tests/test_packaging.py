"""The wheel: one importable name, and in it exactly the modules of the tree.

Two folders of the package are links (`raidx_fuse/layouts -> ../layouts`): a clone without symbolic
links, or a builder that does not follow them, makes a wheel that silently lacks both.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUPTOOLS_MIN = 80
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "raidx_fuse", "layouts", "cli")
DATA_FILES = {"raidx_fuse/py.typed", "raidx_fuse/FORMAT.md"}


def tree_modules() -> set[str]:
    """Return the package's modules as they stand in the tree, by their names in a wheel."""
    return {
        Path(folder, file).relative_to(ROOT).as_posix()
        for folder, _, files in os.walk(ROOT / "raidx_fuse", followlinks=True)
        for file in files
        if file.endswith(".py")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build a wheel from a copy of the sources, without the network."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("setuptools is not installed here: no wheel can be built without the network")
    if int(version.split(".")[0]) < SETUPTOOLS_MIN:
        pytest.skip(f"setuptools {version} is too old to build this, {SETUPTOOLS_MIN} is needed")
    work = tmp_path_factory.mktemp("wheel")
    source, target = work / "source", work / "target"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, source / name)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"),
            *("--no-index", "--disable-pip-version-check", "--wheel-dir", target, source),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == tree_modules() | DATA_FILES


def test_one_name_is_installed_at_the_top(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/top_level.txt"))
    assert wheel.read(path).decode() == "raidx_fuse\n"
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "raidx = raidx_fuse.cli.main:main" in wheel.read(path).decode()
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


def test_the_wheel_works_from_an_empty_directory(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    program = (
        "import raidx_fuse.layouts.registry as r, raidx_fuse.cli.main as m; "
        "assert r.__file__.startswith(%r), r.__file__; m.main(['layout', 'list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program % str(tmp_path / "site")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "raid5" in done.stdout


def test_the_two_folders_are_links_in_the_tree() -> None:
    for name in ("layouts", "cli"):
        link = ROOT / "raidx_fuse" / name
        assert link.is_symlink(), f"this clone lacks symbolic links: {link} is none"
        assert os.readlink(link) == f"../{name}"
    assert {"raidx_fuse/layouts/code.py", "raidx_fuse/cli/main.py"} <= tree_modules()


def test_the_top_level_is_as_promised() -> None:
    fixed = {"pyproject.toml", "raidx_fuse", "layouts", "cli", "tests", "bench", "examples"}
    fixed |= {"README.md", "LICENSE"}
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git clone: what is committed cannot be told from what lies around")
    committed = {name for name in listed.stdout.splitlines() if not name.startswith(".")}
    assert committed <= fixed
