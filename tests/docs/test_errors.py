"""The error tree has no duplicates; each class has a docstring, an errno and an exit status."""

from __future__ import annotations

import errno
import importlib
import inspect
import pkgutil
from collections import Counter

import raidx_fuse
from raidx_fuse.errors import RaidxError


def tree(root: type[RaidxError] = RaidxError) -> list[type[RaidxError]]:
    """Return *root* and all classes below it, those of every module of the package."""
    return [root, *(each for child in root.__subclasses__() for each in tree(child))]


def load_all() -> None:
    """Import every module: an error class can be anywhere."""
    for module in pkgutil.walk_packages(raidx_fuse.__path__, "raidx_fuse."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


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
