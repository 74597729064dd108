"""The tree of errors, their reasons, and all sentences that they say.

sentences.txt has the sentence of every error, below its kind and reason, with ... for what varies.
Other tests check the reason, so a changed sentence shows there alone. To write it anew:

    python -m tests.docs.test_errors > tests/docs/sentences.txt
"""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import raidx_fuse
from raidx_fuse.errors import RaidxError, Reason, reason_named

SENTENCES = Path(__file__).with_name("sentences.txt")
PRODUCT = [Path(__file__).parents[2] / folder for folder in ("raidx_fuse", "cli")]


def tree(root: type[RaidxError] = RaidxError) -> list[type[RaidxError]]:
    """Return *root* and all classes below it, those of every module of the package."""
    return [root, *(each for child in root.__subclasses__() for each in tree(child))]


def load_all() -> None:
    """Import every module: an error class can be anywhere."""
    for module in pkgutil.walk_packages(raidx_fuse.__path__, "raidx_fuse."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def calls() -> Iterator[ast.Call]:
    """Yield every call of the product."""
    for folder in PRODUCT:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield node


def text_of(node: ast.expr) -> str:
    """Return the constant parts of a text, "" if it has none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                text_of(part) if isinstance(part, ast.Constant) else "..." for part in parts
            )
        case ast.IfExp(body=one, orelse=other):
            return " or ".join(filter(None, (text_of(one), text_of(other))))
        case ast.BinOp(left=one, right=other):
            return f"{text_of(one) or '...'}{text_of(other) or '...'}"
    return ""


def sentences() -> str:
    """Return what the errors of the program say, sorted by kind and reason."""
    load_all()
    classes = {each.__name__: each for each in tree()}
    found: dict[str, set[str]] = {}
    for call in calls():
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        said = next(filter(None, map(text_of, call.args)), "")
        if name not in classes or not said:
            continue
        reason = classes[name].reason
        for each in call.keywords:
            if each.arg == "reason" and isinstance(each.value, ast.Attribute):
                reason = getattr(Reason, each.value.attr, None)
            elif each.arg == "action" and (action := text_of(each.value)):
                said = f"{said}; {action}"
        found.setdefault(f"{classes[name].kind}, {reason or 'no reason'}", set()).add(said)
    parts = [f"[{head}]\n" + "".join(f"{each}\n" for each in sorted(found[head])) for head in found]
    return "\n".join(sorted(parts))


def test_no_two_errors_have_one_name_or_one_meaning() -> None:
    load_all()
    classes = [each for each in tree() if each.__module__.startswith("raidx_fuse.")]
    assert len(classes) >= 10
    assert len(set(classes)) == len(classes), "a class stands at two places of the tree"
    names = Counter(each.__name__ for each in classes)
    assert not [name for name, count in names.items() if count > 1]
    meanings = Counter(inspect.cleandoc(each.__doc__ or each.__name__) for each in classes)
    assert not [text for text, count in meanings.items() if count > 1]


def test_every_error_says_what_it_means_and_has_an_errno_and_an_exit_status() -> None:
    load_all()
    for each in tree():
        if not each.__module__.startswith("raidx_fuse."):
            continue
        assert each.__name__.endswith("Error")
        assert vars(each)["__doc__"], f"{each.__name__} has no docstring of its own"
        assert each.errno in errno.errorcode, each.__name__
        assert each.exit_status in (1, 2), each.__name__


def test_there_are_few_reasons_and_each_is_given() -> None:
    assert len(Reason) <= 60
    used = {
        node.attr
        for folder in PRODUCT
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Reason"
    }
    assert used == {reason.name for reason in Reason}
    for reason in Reason:
        assert reason.value == reason.name.lower()
        assert reason_named(str(reason)) is reason
    assert reason_named("of a newer raidx") is None
    assert reason_named(["no text"]) is None


def test_the_sentences_of_errors_are_those_of_the_file() -> None:
    assert sentences() == SENTENCES.read_text(), "python -m tests.docs.test_errors writes it"


if __name__ == "__main__":
    print(sentences(), end="")
