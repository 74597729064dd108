"""Libraries that are loaded when something of them is first used, not when they are imported.

Neither `raidx scan` nor `raidx status` of an array at rest needs numpy or trio, which most modules
import: without this module they take nearly twice as much CPU (ARCHITECTURE.md). `put_off` makes
``import numpy as np`` free until the first ``np.something``.

`importlib.util.LazyLoader` loads a module when a second module imports it (it reads `__spec__`,
which counts as use; Python 3.11), so it delays nothing here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Late(ModuleType):
    """Stands for the module *name* until an attribute is asked for, then has all of its own."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        real = import_module(name)
        if "__late__" in self.__dict__:
            del self.__dict__["__late__"]
            self.__dict__.update(real.__dict__)
        return getattr(real, attribute)


def put_off(*names: str) -> None:
    """Load the top-level modules *names* when they are first used, unless they are loaded."""
    for name in names:
        if name not in sys.modules:
            late = _Late(name)
            late.__spec__ = ModuleSpec(name, None)
            late.__dict__["__late__"] = True
            sys.modules[name] = late
