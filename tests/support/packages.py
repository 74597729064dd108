"""Packages with entry points, installed for a test: written by hand, or by pip."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from raidx_fuse import plugins
from raidx_fuse.layouts import plugged

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-code"


def forget() -> None:
    """Let raidx look for packages again."""
    for cached in (
        plugins._entries,
        plugins.load,
        plugged._info_of,
        plugged._call,
        plugged._proved,
    ):
        cached.cache_clear()
    importlib.invalidate_caches()


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """Let the packages in *site* be installed until the block ends."""
    sys.path.insert(0, str(site))
    forget()
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(site))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(site)):
                del sys.modules[name]
        forget()


@contextmanager
def installed_example(site: Path) -> Iterator[None]:
    """Let the package of examples/own-code be installed, without pip, until the block ends."""
    body = (EXAMPLE / "raidx_raid50.py").read_text()
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    offered = described["entry-points"]
    layouts, policies = (
        {name: target.partition(":")[2] for name, target in offered[f"raidx.{group}"].items()}
        for group in ("layouts", "policies")
    )
    write_package(site, described["name"], body, layouts=layouts, policies=policies)
    with installed(site):
        yield


def pip_install(source: Path, site: Path) -> None:
    """Install *source* into *site*, without a network."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)],
        check=True,
        capture_output=True,
        timeout=120,
    )


def write_package(
    site: Path,
    name: str,
    body: str,
    *,
    version: str = "1.0",
    layouts: Mapping[str, str] | None = None,
    policies: Mapping[str, str] | None = None,
) -> None:
    """Write package *name* with one module of text *body*; entry points: name -> its object."""
    module = name.replace("-", "_")
    site.mkdir(exist_ok=True)
    (site / f"{module}.py").write_text(body)
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in (("layouts", layouts or {}), ("policies", policies or {})):
        lines.append(f"[raidx.{group}]")
        lines += [f"{entry} = {module}:{target}" for entry, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
