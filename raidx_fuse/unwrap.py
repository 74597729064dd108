"""Out of trio's exception groups: a nursery wraps even a single exception in a group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def single(error: BaseException) -> BaseException:
    """Return what went wrong: the exception inside groups of one, else *error* itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Let what goes wrong in nurseries inside come out as it is, where it is one exception."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise single(group) from None
