"""layouts/ is pure: it imports its own modules, numpy and mathematics of the standard library."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import raidx_fuse.layouts

FOLDER = Path(raidx_fuse.layouts.__file__).parent
ALLOWED = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "difflib",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "numpy",
    "operator",
    "re",
    "typing",
}

MAY_ALSO_IMPORT = {"plugged.py": {"raidx_fuse"}}  # the plug-ins, which lie below


def imports_of(source: str) -> set[str]:
    """Return every module that *source* imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def foreign(names: set[str]) -> set[str]:
    """Return those of *names* that a pure module must not import."""
    own = "raidx_fuse.layouts"
    return {
        name
        for name in names
        if name != own and not name.startswith(own + ".") and name.split(".")[0] not in ALLOWED
    }


@pytest.mark.parametrize("path", sorted(FOLDER.glob("**/*.py")), ids=lambda path: path.name)
def test_module_is_pure(path: Path) -> None:
    source = path.read_text()
    assert foreign(imports_of(source)) == MAY_ALSO_IMPORT.get(path.name, set())
    called = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "exec", "eval", "__import__", "print", "input"}


def test_the_check_sees_what_it_should() -> None:
    source = "import os\ndef f():\n    from trio import sleep\nfrom . import x\nimport layouts.code"
    assert foreign(imports_of(source)) == {"os", "trio", ".", "layouts.code"}
    assert len(list(FOLDER.glob("**/*.py"))) >= 10
