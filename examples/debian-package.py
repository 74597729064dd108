#!/usr/bin/env python3
"""Makes a Debian package of this tree: raidx_VERSION_ARCH.deb, with Debian's own dpkg-deb.

    .venv/bin/python examples/debian-package.py [FOLDER]

raidx and the Python libraries that it needs lie below /usr/lib/raidx, away from those of Debian's
Python; the libraries are those of the environment that runs this program, in the very versions. The
package depends on the Python of the same version (their compiled parts fit no other) and on fuse3.
Also in it: mount.raidx, raidx@.service, pages for man, completions. No network is used.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "raidx_fuse", "layouts", "cli")
LIBRARY = "usr/lib/raidx"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PROGRAMS = {
    "usr/bin/raidx": "raidx_fuse.cli.main",
    "usr/sbin/mount.raidx": "raidx_fuse.cli.mount_helper",
}
PROGRAM = """#!/usr/bin/{python} -sE
import sys

sys.path.insert(0, "/{library}")
from {module} import main

sys.exit(main())
"""
CONTROL = """Package: raidx
Version: {version}
Architecture: {architecture}
Maintainer: raidx-fuse <raidx-fuse@localhost>
Installed-Size: {kib}
Depends: {python}, fuse3, libfuse3-3
Recommends: e2fsprogs, util-linux
Suggests: bash-completion
Section: admin
Priority: optional
Description: {summary}
 raidx makes one large virtual disk of disks of any size and speed: RAID that
 can be mounted, broken, grown and studied, with a redo log against power cuts.
"""


def distributions(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """Add the distribution *name* and what it needs here to *found*."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # needed on other systems or Pythons only
    for line in found[key].requires or ():
        if "extra ==" not in line:
            distributions(re.split(r"[^\w.-]", line, maxsplit=1)[0], found)


def copy_libraries(target: Path) -> list[importlib.metadata.Distribution]:
    """Copy the libraries that raidx needs to *target*, without their tests; return them."""
    found: dict[str, importlib.metadata.Distribution] = {}
    distributions("raidx-fuse", found)
    del found["raidx-fuse"]
    for distribution in found.values():
        for file in distribution.files or ():
            if ".." in file.parts or "tests" in file.parts or file.suffix == ".pth":
                continue  # a program, or nothing that is needed to run
            to = target / file
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(distribution.locate_file(file), to)
    return list(found.values())


def build_wheel(work: Path) -> Path:
    """Build the wheel of this tree in *work*; return it."""
    source = work / "source"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in SOURCES:
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(TOP / name, source / name)
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", work, source)
    (wheel,) = work.glob("*.whl")
    return wheel


def pip(*words: str | Path) -> None:
    """Run pip without the network; end this program if it fails."""
    command, *rest = words
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index")
    try:
        subprocess.run([sys.executable, "-m", "pip", command, *quiet, *rest], check=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"debian-package: pip {command} failed (exit status {error.returncode})")


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file of the package."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def copyrights(libraries: list[importlib.metadata.Distribution]) -> Iterator[str]:
    """Yield what the package says of licences."""
    yield (TOP / "LICENSE").read_text()
    yield f"\nBelow /{LIBRARY} also, each under the licence in its .dist-info folder:\n"
    for each in sorted(libraries, key=lambda each: each.name):
        said = each.metadata.get("License-Expression") or each.metadata.get("License") or ""
        yield (
            f"  {each.name} {each.version}  {said.splitlines()[0] if said else ''}".rstrip() + "\n"
        )


def lay_out(root: Path, work: Path) -> str:
    """Lay the files of the package out below *root*; return its version."""
    library = root / LIBRARY
    library.mkdir(parents=True)
    libraries = copy_libraries(library)
    pip("install", "--no-deps", "--target", library, build_wheel(work))
    shutil.rmtree(library / "bin", ignore_errors=True)  # with the Python of this environment
    shutil.move(library / "share", root / "usr" / "share")
    for path, module in PROGRAMS.items():
        text = PROGRAM.format(python=PYTHON, library=LIBRARY, module=module)
        put(root / path, text, 0o755)
    unit = (TOP / "examples" / "raidx@.service").read_text()
    put(root / "usr/lib/systemd/system/raidx@.service", unit)
    documents = root / "usr" / "share" / "doc" / "raidx"
    put(documents / "copyright", "".join(copyrights(libraries)))
    changes = (TOP / "raidx_fuse" / "CHANGELOG.md").read_bytes()
    (documents / "changelog.gz").write_bytes(gzip.compress(changes, 9, mtime=0))
    for page in (root / "usr" / "share" / "man").glob("man*/*"):
        page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
        page.unlink()
    (found,) = library.glob("raidx_fuse-*.dist-info")
    return found.name.split("-")[1].removesuffix(".dist")


def main() -> None:
    """Make the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="where to put it (.)")
    parser.add_argument("--compress", default="xz", help="as dpkg-deb -Z: xz, gzip, none (xz)")
    options = parser.parse_args()
    if shutil.which("dpkg-deb") is None:
        sys.exit("debian-package: dpkg-deb is missing; install it: apt install dpkg")
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work, root = Path(name), Path(name) / "root"
        version = lay_out(root, work)
        asked = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True)
        architecture = asked.stdout.strip()
        files = sorted(path for path in root.rglob("*") if path.is_file())
        sums = (f"{hashlib.md5(f.read_bytes()).hexdigest()}  {f.relative_to(root)}" for f in files)
        put(root / "DEBIAN" / "md5sums", "\n".join(sums) + "\n")
        control = CONTROL.format(
            version=version,
            architecture=architecture,
            python=PYTHON,
            kib=sum(file.stat().st_size for file in files) // 1024,
            summary=importlib.metadata.metadata("raidx-fuse")["Summary"].partition(":")[0],
        )
        put(root / "DEBIAN" / "control", control)
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        deb = options.folder / f"raidx_{version}_{architecture}.deb"
        words = ["dpkg-deb", "--root-owner-group", f"-Z{options.compress}", "--build", root, deb]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    print(deb)


if __name__ == "__main__":
    main()
