"""Rigs of asynchronous tests: arrays, servers and the like, entered before the test begins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")

# What the fixture `make_rig` is: it calls a maker with the arguments of the test's mark `rig`.
MakeRig = Callable[[Callable[..., AbstractAsyncContextManager[T]]], AbstractAsyncContextManager[T]]
