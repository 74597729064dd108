"""Out of trio's exception groups: a nursery wraps even a single exception in a group."""

from __future__ import annotations


def single(error: BaseException) -> BaseException:
    """Return what went wrong: the exception inside groups of one, else *error* itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
