"""What a coroutine test opens is closed when the test ends, however it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_STACK: ContextVar[AsyncExitStack] = ContextVar("the stack of the test that runs")


async def closing(test: Callable[[], Awaitable[None]]) -> None:
    """Run *test*, then close what it has opened, the last one first."""
    async with AsyncExitStack() as stack:
        _STACK.set(stack)
        await test()


async def entered(manager: AbstractAsyncContextManager[T]) -> T:
    """Enter *manager* until the test ends; not inside of a nursery or a cancel scope."""
    return await _STACK.get().enter_async_context(manager)


def close_at_end(close: Callable[[], Awaitable[None]]) -> None:
    """Call *close* when the test ends."""
    _STACK.get().push_async_callback(close)
