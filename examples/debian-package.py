#!/usr/bin/env python3
"""Makes a Debian package of this tree: raidx_VERSION_ARCH.deb, with Debian's own dpkg-deb.

    .venv/bin/python examples/debian-package.py [FOLDER]

raidx and the Python libraries that it needs lie below /usr/lib/raidx, away from those of Debian's
Python; the libraries are those of the environment that runs this program, in the very versions, as
examples/setup.sh installs them: also those of `raidx view`, `raidx watch` and `raidx stats
--prometheus`. The package depends on Debian's Python of the same version (their compiled parts fit
no other), on fuse3 and on the libraries of the system that they are linked to. Also in it:
mount.raidx, raidx@.service, a rule of udev, pages for man, completions; in /usr/share/doc/raidx the
guides, lab sheets, experiments and alert rules. No network is used.
"""

from __future__ import annotations

import argparse
import getpass
import gzip
import hashlib
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from email.utils import formatdate
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement  # pip is needed here in any case

TOP = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "raidx_fuse", "layouts", "cli")
LIBRARY = "usr/lib/raidx"
REVISION = 1  # of the package, not of raidx
TO_BUILD = {"setuptools"}  # needed here, not in the package
MAJOR, MINOR = sys.version_info[:2]
DEPENDS = (f"python3 (>= {MAJOR}.{MINOR}~)", f"python3 (<< {MAJOR}.{MINOR + 1})", "fuse3")
DOCUMENTS = (  # from the tree, to the same places below usr/share/doc/raidx: links stay valid
    *("README.md", "cli/MANUAL.md", "cli/watch.svg", "raidx_fuse/*.md"),
    *("raidx_fuse/*.svg", "bench/README.md"),
    *(
        "examples/*.md",
        "examples/*.yml",
        "examples/*.png",
        "examples/*.service",
        "examples/*.rules",
    ),
    *("examples/lab/*", "examples/experiments/*", "examples/own-code/*"),
)
SYSTEM_FILES = {  # of examples/ -> where it lies
    "raidx@.service": "usr/lib/systemd/system",
    "64-raidx.rules": "usr/lib/udev/rules.d",
}
PROGRAMS = {
    "usr/bin/raidx": "raidx_fuse.cli.main",
    "usr/sbin/mount.raidx": "raidx_fuse.cli.mount_helper",
}
PROGRAM = """#!/usr/bin/python3 -sE
import sys

sys.path.insert(0, "/{library}")
from {module} import main

sys.exit(main())
"""
CONTROL = """Package: raidx
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kib}
Depends: {depends}
Recommends: e2fsprogs
Suggests: bash-completion
Section: admin
Priority: optional
Description: {summary}
 raidx makes one large virtual disk of disks of any size and speed: RAID that
 can be mounted, broken, grown and studied, with a redo log against power cuts.
"""
SCRIPTS = {  # compiled once: root alone may write there, and everybody starts the program
    "postinst": f"python3 -m compileall -q /{LIBRARY}",
    "prerm": f"find /{LIBRARY} -type d -name __pycache__ -prune -exec rm -r {{}} +",
}
CHANGE = """raidx ({version}) unstable; urgency=medium

  * Made of the tree by examples/debian-package.py; changelog.gz says more.

 -- {maintainer}  {date}
"""
OVERRIDES = """# The libraries are those of PyPI, as their authors built them: stripping
# breaks those that were changed after linking.
raidx: unstripped-binary-or-object [usr/lib/raidx/*]
raidx: library-not-linked-against-libc [usr/lib/raidx/numpy/*]
raidx: shared-library-lacks-prerequisites [usr/lib/raidx/numpy/*]
"""


def required() -> list[str]:
    """Return the requirements of raidx and of the extra "package", as pyproject.toml has them."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["package"]]


def distributions(
    lines: Sequence[str], extras: set[str], found: dict[str, importlib.metadata.Distribution]
) -> None:
    """Add to *found* what the requirements in *lines* name, and what that needs."""
    for line in lines:
        wanted = Requirement(line)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": e}) for e in extras | {""}):
            continue
        key = re.sub(r"[-_.]+", "-", wanted.name).lower()
        known = key in found
        try:
            found[key] = importlib.metadata.distribution(key)
            if not wanted.specifier.contains(found[key].version, prereleases=True):
                raise importlib.metadata.PackageNotFoundError
        except importlib.metadata.PackageNotFoundError:
            sys.exit(f"debian-package: {wanted} is not installed here; run examples/setup.sh")
        if not known or wanted.extras:
            distributions(found[key].requires or (), wanted.extras, found)


def copy_libraries(target: Path) -> list[importlib.metadata.Distribution]:
    """Copy the libraries that raidx needs to *target*, without their tests; return them."""
    found: dict[str, importlib.metadata.Distribution] = {}
    distributions(required(), set(), found)
    libraries = [found[name] for name in found if name not in TO_BUILD]
    for distribution in libraries:
        for file in distribution.files or ():
            if {"..", "tests", "__pycache__"} & set(file.parts) or file.suffix == ".pth":
                continue  # a program, or nothing that is needed to run
            to = target / file
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(distribution.locate_file(file), to)
    return libraries


def linked_packages(library: Path) -> set[str]:
    """Return the packages of this system to which the compiled parts below *library* are linked."""
    paths = set()
    for part in library.rglob("*.so*"):
        part.chmod(0o644)
        said = subprocess.run(["ldd", part], capture_output=True, text=True, check=True).stdout
        paths |= set(re.findall(r"=> (/\S+)", said))
    paths = {path.removeprefix("/usr") for path in paths if not path.startswith(str(library))}
    packages = set()
    for path in paths:  # dpkg knows the place where the package put it, before or after /usr merged
        words = ["dpkg-query", "--search", path, f"/usr{path}"]
        said = subprocess.run(words, capture_output=True, text=True).stdout
        packages |= {line.partition(":")[0] for line in said.splitlines()}
    return packages


def maintainer() -> str:
    """Return who makes the package, as Debian's own tools do, or as git knows."""
    known = []
    for variable, key in (("DEBFULLNAME", "user.name"), ("DEBEMAIL", "user.email")):
        asked = subprocess.run(["git", "config", key], cwd=TOP, capture_output=True, text=True)
        known.append(os.environ.get(variable) or asked.stdout.strip())
    name, address = known
    user = getpass.getuser()
    return f"{name or user} <{address or f'{user}@{socket.getfqdn()}'}>"


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


def put_compressed(path: Path, content: bytes) -> None:
    """Write a file of the package as gzip, the same bytes each time."""
    path.write_bytes(gzip.compress(content, 9, mtime=0))
    path.chmod(0o644)


def copyrights(libraries: list[importlib.metadata.Distribution]) -> Iterator[str]:
    """Yield what the package says of licences."""
    yield (TOP / "LICENSE").read_text()
    yield f"\nBelow /{LIBRARY} also, each under the licence in its .dist-info folder;\n"
    yield "the LGPL is in /usr/share/common-licenses/LGPL-2 as well:\n"
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
    pip("install", "--no-deps", "--no-compile", "--target", library, build_wheel(work))
    shutil.rmtree(library / "bin", ignore_errors=True)  # with the Python of this environment
    shutil.move(library / "share", root / "usr" / "share")
    for path, module in PROGRAMS.items():
        text = PROGRAM.format(library=LIBRARY, module=module)
        put(root / path, text, 0o755)
    for name, folder in SYSTEM_FILES.items():
        put(root / folder / name, (TOP / "examples" / name).read_text())
    documents = root / "usr" / "share" / "doc" / "raidx"
    put(documents / "copyright", "".join(copyrights(libraries)))
    for path in (path for pattern in DOCUMENTS for path in TOP.glob(pattern) if path.is_file()):
        to = documents / path.relative_to(TOP)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    put(root / "usr/share/lintian/overrides/raidx", OVERRIDES)
    (found,) = library.glob("raidx_fuse-*.dist-info")
    version = f"{found.name.split('-')[1].removesuffix('.dist')}-{REVISION}"
    date = formatdate(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    change = CHANGE.format(version=version, maintainer=maintainer(), date=date)
    put_compressed(documents / "changelog.Debian.gz", change.encode())
    put_compressed(documents / "changelog.gz", (TOP / "raidx_fuse/CHANGELOG.md").read_bytes())
    for page in (root / "usr" / "share" / "man").glob("man*/*"):
        put_compressed(page.with_name(f"{page.name}.gz"), page.read_bytes())
        page.unlink()
    return version


def main() -> None:
    """Make the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="where to put it (.)")
    parser.add_argument("--compress", default="xz", help="as dpkg-deb -Z: xz, gzip, none (xz)")
    parser.add_argument("--lint", action="store_true", help="have lintian look for errors in it")
    options = parser.parse_args()
    for program in ("dpkg-deb", *(["lintian"] if options.lint else [])):
        if shutil.which(program) is None:
            sys.exit(f"debian-package: {program} is missing; install it with apt")
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
            maintainer=maintainer(),
            depends=", ".join((*DEPENDS, *sorted(linked_packages(root / LIBRARY)))),
            kib=sum(file.stat().st_size for file in files) // 1024,
            summary=importlib.metadata.metadata("raidx-fuse")["Summary"]
            .partition(":")[0]
            .removeprefix("A "),
        )
        put(root / "DEBIAN" / "control", control)
        for name, line in SCRIPTS.items():
            put(root / "DEBIAN" / name, f"#!/bin/sh\nset -e\n{line}\n", 0o755)
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        deb = options.folder / f"raidx_{version}_{architecture}.deb"
        words = ["dpkg-deb", "--root-owner-group", f"-Z{options.compress}", "--build", root, deb]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    print(deb)
    if options.lint:
        sys.exit(subprocess.run(["lintian", "--allow-root", "--fail-on", "error", deb]).returncode)


if __name__ == "__main__":
    main()
