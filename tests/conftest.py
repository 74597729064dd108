"""For all tests: asynchronous ones run in virtual time; events stay in a folder of the run."""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import os
import shutil
import signal
import tempfile

import pytest
import trio
from hypothesis import settings

from raidx_fuse.members.simulated.virtual_time import run
from tests.support.closing import closing
from tests.support.machine import why_no_loops, why_no_mounts
from tests.support.rigs import MakeRig, T

if "RAIDX_STATE" not in os.environ:
    os.environ["RAIDX_STATE"] = tempfile.mkdtemp(prefix="raidx-state-")
    atexit.register(shutil.rmtree, os.environ["RAIDX_STATE"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--old-commit",
        default="79fb2b4",
        help="commit that arrays of today are given back to (tests/format/test_given_back.py)",
    )


# Hypothesis fails an example that takes 200 ms of real time, as any may on a machine that is busy.
settings.register_profile("raidx", deadline=None)
settings.load_profile("raidx")

# A shell that starts the tests in its background ignores interrupts, and so would the programs that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test in virtual time, or real time if marked so; say that this is done.

    The schedule of virtual time has the test's *seed*, if any.
    An argument that is an asynchronous context manager is a rig: the test gets what it yields.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def main() -> None:
        async with contextlib.AsyncExitStack() as rigs:
            arguments = {}
            for name in inspect.signature(test).parameters:
                value = pyfuncitem.funcargs[name]
                if isinstance(value, contextlib.AbstractAsyncContextManager):
                    value = await rigs.enter_async_context(value)
                arguments[name] = value
            await test(**arguments)

    if pyfuncitem.get_closest_marker("real_time"):
        trio.run(closing, main)
    else:
        seed = pyfuncitem.funcargs["seed"] if "seed" in inspect.signature(test).parameters else 0
        run(closing, main, seed=seed)
    return True


@pytest.fixture(autouse=True)
def wide_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests read whole sentences: a screen in a pipe is folded to 80 columns, or to these."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture
def make_rig(request: pytest.FixtureRequest) -> MakeRig[T]:
    """Return a function that calls a maker of rigs with the arguments of the test's mark `rig`."""
    mark = request.node.get_closest_marker("rig") or pytest.mark.rig.mark
    return lambda maker: maker(*mark.args, **mark.kwargs)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a mount or a loop device where there is none, saying why."""
    for marker, why_not in {"mount": why_no_mounts, "loop": why_no_loops}.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives as long as the run: 8 % of the processor time."""
    gc.freeze()
