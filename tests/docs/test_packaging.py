"""The wheel: one importable name, and in it exactly the modules of the tree.

Two folders of the package are links (`raidx_fuse/layouts -> ../layouts`): a clone without symbolic
links, or a builder that does not follow them, makes a wheel that silently lacks both.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from raidx_fuse.cli.package.raidx_build import SHELLS, man_pages
from raidx_fuse.version import VERSION

ROOT = Path(__file__).parents[2]
SETUPTOOLS_MIN = 80
CREATE = ("create", "--layout", "raid0", "--size", "8MiB", "a.img", "b.img")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "raidx_fuse", "layouts", "cli")
DATA_FILES = {
    "raidx_fuse/py.typed",
    "raidx_fuse/__init__.pyi",
    "raidx_fuse/architecture.svg",
    "raidx_fuse/ARCHITECTURE.md",
    "raidx_fuse/CHANGELOG.md",
    "raidx_fuse/FORMAT.md",
    "raidx_fuse/PROMISES.md",
    "raidx_fuse/cli/MANUAL.md",
    "raidx_fuse/lab/loads/published.toml",
    "raidx_fuse/view/static/icon.svg",
    "raidx_fuse/view/static/index.html",
    "raidx_fuse/view/static/view.css",
    "raidx_fuse/view/static/view.js",
    "raidx_fuse/cli/watch.svg",
}


def tree_modules() -> set[str]:
    """Return the package's modules as they stand in the tree, by their names in a wheel."""
    return {
        Path(folder, file).relative_to(ROOT).as_posix()
        for folder, _, files in os.walk(ROOT / "raidx_fuse", followlinks=True)
        for file in files
        if file.endswith(".py")
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources, to build from without the network."""
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("setuptools is not installed here: no wheel can be built without the network")
    if int(version.split(".")[0]) < SETUPTOOLS_MIN:
        pytest.skip(f"setuptools {version} is too old to build this, {SETUPTOOLS_MIN} is needed")
    source = tmp_path_factory.mktemp("packaging") / "source"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, source / name)
    return source


# As in an empty environment, of which a folder of sources in PYTHONPATH would be a part.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*words: str | Path, cwd: Path) -> str:
    """Run a program in *cwd*; return what it prints on standard output."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, kind: str) -> Path:
    """Build a "wheel" or an "sdist" as pip does; return its path."""
    target = source.parent / kind
    backend = "sys.path.insert(0, 'raidx_fuse/cli/package'); import raidx_build as b"
    program = f"import sys; {backend}; print(b.build_{kind}(sys.argv[1]))"
    target.mkdir()
    printed = run(sys.executable, "-c", program, target, cwd=source)
    return target / printed.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist_path(source: Path) -> Path:
    return build(source, "sdist")


@pytest.fixture(scope="module")
def wheel_path(source: Path) -> Path:
    return build(source, "wheel")


@pytest.fixture(scope="module")
def wheel(wheel_path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel_path)


def test_the_wheel_holds_the_tree_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    shared = {name for name in inside if ".data/data/share/" in name}
    assert inside - shared == tree_modules() | DATA_FILES
    pages = {f"man/man{name[-1]}/{name}" for name in man_pages()}
    assert {name.partition("/share/")[2] for name in shared} == pages | set(SHELLS.values())


def test_one_name_is_installed_at_the_top(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/top_level.txt"))
    assert wheel.read(path).decode() == "raidx_fuse\n"
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "raidx = raidx_fuse.cli.main:main" in wheel.read(path).decode()
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


WITHOUT_FUSE = """
import sys
sys.modules["pyfuse3"] = None  # as if it could not be built here
import raidx_fuse.cli.main as main
assert main.__file__.startswith(sys.prefix), main.__file__
main.main(sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_install_in_an_empty_environment_works_also_without_fuse(
    kind: str, wheel_path: Path, sdist_path: Path, tmp_path: Path
) -> None:
    """Install into a new environment, which gets the requirements from this one by a path."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps")
    path = wheel_path if kind == "wheel" else sdist_path
    quiet = ("--no-index", "--quiet", "--no-build-isolation", "--disable-pip-version-check")
    run(*install, *quiet, path, cwd=tmp_path)
    assert run(python.with_name("raidx"), "--version", cwd=tmp_path) == f"raidx {VERSION}\n"
    assert "raid5" in run(python, "-c", WITHOUT_FUSE, "layout", "list", cwd=tmp_path)
    experiment = ROOT / "examples" / "experiments" / "moving-hot-data.toml"
    run(python, "-c", WITHOUT_FUSE, "simulate", experiment, cwd=tmp_path)
    shared = tmp_path / "venv" / "share"
    assert (shared / "man" / "man8" / "raidx.8").is_file()
    assert "_RAIDX_COMPLETE=bash_complete" in (shared / SHELLS["bash"]).read_text()
    run(python, "-c", WITHOUT_FUSE, *CREATE, cwd=tmp_path)
    done = subprocess.run(
        [python, "-c", WITHOUT_FUSE, "mount", "a.img", "b.img", "mnt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("raidx: raidx mount needs pyfuse3, which is not installed; ")
    assert len(done.stderr.splitlines()) == 1


def test_the_two_folders_are_links_in_the_tree() -> None:
    for name in ("layouts", "cli"):
        link = ROOT / "raidx_fuse" / name
        assert link.is_symlink(), f"this clone lacks symbolic links: {link} is none"
        assert os.readlink(link) == f"../{name}"
    assert {"raidx_fuse/layouts/codes/code.py", "raidx_fuse/cli/main.py"} <= tree_modules()


def test_the_top_level_is_as_promised() -> None:
    fixed = {"pyproject.toml", "raidx_fuse", "layouts", "cli", "tests", "bench", "examples"}
    fixed |= {"README.md", "LICENSE", "CITATION.cff"}
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git clone: what is committed cannot be told from what lies around")
    committed = {name for name in listed.stdout.splitlines() if not name.startswith(".")}
    assert committed <= fixed


def test_a_release_is_named_everywhere() -> None:
    cited = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"(?m)^version: (.*)$", cited) == [VERSION]
    changes = (ROOT / "raidx_fuse" / "CHANGELOG.md").read_text()
    first, *_ = versions = re.findall(r"(?m)^## (.*)$", changes)
    assert first == VERSION, f"CHANGELOG.md has no section of {VERSION} in front"
    kinds = re.findall(r"(?m)^### (.*)$", changes)
    assert kinds == ["Added", "Changed", "Fixed"] * len(versions)


def test_what_the_host_of_the_repository_reads_is_valid() -> None:
    github = ROOT / ".github"
    files = [*github.glob("*/*.yml"), ROOT / "CITATION.cff"]
    read = {file.name: yaml.safe_load(file.read_text()) for file in files}
    assert read["test.yml"]["jobs"]["test"]["steps"][-1]["run"] == "bash .ci/run"
    for file, form in ((path.name, read[path.name]) for path in github.glob("ISSUE_TEMPLATE/*")):
        assert {"name", "description", "body"} <= set(form), file
    for step in read["package.yml"]["jobs"]["package"]["steps"]:
        for path in re.findall(r"(?:examples|tests)/[\w./-]+", step.get("run", "")):
            assert (ROOT / path).is_file(), path


# -- requirements ----------------------------------------------------------------------------------


TESTS = (  # of what is private in trio, of what is replaced in pyfuse3, and one real mount
    "tests/members/test_virtual_time.py",
    "tests/fuse/test_session_loop.py",
    "tests/fuse/test_session_loop_mounted.py",
)


def oldest(name: str) -> str:
    """Return the requirement of exactly the oldest version of *name* that is allowed."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (version,) = (match[1] for text in listed if (match := re.match(rf"{name}>=([\d.]+)", text)))
    return f"{name}=={version}"


def test_the_oldest_trio_and_pyfuse3_work(tmp_path: Path) -> None:
    wanted = [oldest("trio"), oldest("pyfuse3")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--target", tmp_path / "old", *wanted], capture_output=True, text=True
    )
    if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip(f"no package registry is reached from here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    old = {**os.environ, "PYTHONPATH": str(tmp_path / "old")}
    program = "import pyfuse3, trio; print(trio.__version__, pyfuse3.__version__)"
    seen = subprocess.run([sys.executable, "-c", program], env=old, capture_output=True, text=True)
    for found, text in zip(seen.stdout.split(), wanted, strict=True):
        assert found.startswith(text.partition("==")[2]), seen.stdout
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(words, cwd=ROOT, env=old, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
