"""The examples in docstrings: each is type-checked as a user's program would be, and run."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raidx_fuse
from raidx_fuse.array.array import Array
from tests.docs.pages import ROOT

PROGRAMS = ("raidx_fuse", "raidx_fuse.client")  # whole programs; that of lab.contract: own-code
PLAIN_NUMBERS = '# mypy: disable-error-code="list-item"\n'  # of cells and roles, as in tests
PRINTED = {
    "raidx_fuse": r"b'in virtual time' 0\.\d{3} s\n",
    "raidx_fuse.client": r"rebuilds role 2 [^\n]*\n(clean|rebuilding)\n",
}


def modules_with_examples() -> Iterator[str]:
    for folder, _, files in os.walk(ROOT / "raidx_fuse", followlinks=True):
        for file in sorted(files):
            path = Path(folder, file)
            if file.endswith(".py") and ">>> " in path.read_text():
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = sorted(modules_with_examples())


def program(name: str) -> str:
    """Return the program in the docstring of the module *name*."""
    text = importlib.import_module(name).__doc__ or ""
    (block,) = re.findall(r"(?m)^    (?:import|from) (?:.*\n|\n(?=    ))+?(?=^\S)", text)
    return "".join(line.removeprefix("    ") for line in block.splitlines(keepends=True))


def examples(name: str) -> Iterator[str]:
    """Yield the examples of a module as functions, with what they use of it imported."""
    module = importlib.import_module(name)
    for number, found in enumerate(doctest.DocTestFinder().find(module, name)):
        if not found.examples:
            continue
        source = "".join(example.source for example in found.examples)
        used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        names = sorted(used & set(vars(module)))
        yield f"def example_{number}() -> None:\n"
        yield f"    from {name} import {', '.join(names)}\n" if names else ""
        yield "".join(f"    {line}\n" for line in source.splitlines())


def test_they_pass_strict_type_checks(tmp_path: Path) -> None:
    for name in PROGRAMS:
        (tmp_path / f"{name.replace('.', '_')}_program.py").write_text(program(name))
    for name in MODULES:
        text = "".join([PLAIN_NUMBERS, *examples(name)])
        (tmp_path / f"{name.replace('.', '_')}.py").write_text(text)
    words = ("--strict", "--implicit-reexport", *sorted(tmp_path.glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert f"in {len(MODULES) + len(PROGRAMS)} source files" in done.stdout


def test_they_run() -> None:
    tried = 0
    for name in MODULES:
        results = doctest.testmod(importlib.import_module(name))
        assert not results.failed, name
        tried += results.attempted
    assert tried >= 15


@pytest.mark.mount
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_print_what_they_should(name: str, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    words = [sys.executable, "-c", program(name)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[name], done.stdout)


def test_one_import_has_what_is_public_and_loads_it_late() -> None:
    stub = ast.parse((ROOT / "raidx_fuse" / "__init__.pyi").read_text())
    listed = {
        alias.asname or alias.name
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not (alias.asname or "").startswith("_")
    }
    listed |= {
        target.id
        for node in stub.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert set(dir(raidx_fuse)) == listed == set(raidx_fuse.__all__)
    for name in listed:
        assert getattr(raidx_fuse, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raidx_fuse.nothing  # type: ignore[attr-defined]
    program = (
        "import raidx_fuse, sys; print([n for n in sys.modules if n.startswith('raidx_fuse.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_array_names_what_is_public() -> None:
    listed = re.findall(r"`(\w+)`", (Array.__doc__ or "").partition("\n\n    A program")[2])
    assert 12 <= len(listed) <= 24
    source = ast.parse((ROOT / "raidx_fuse" / "array" / "array.py").read_text())
    names = {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}
    names |= {
        node.name
        for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert set(listed) <= names
