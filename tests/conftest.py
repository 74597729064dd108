"""For all tests: asynchronous ones run in virtual time; events stay in a folder of the run."""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

from raidx_fuse.members.simulated.virtual_time import run

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
    """Run an asynchronous test in virtual time; say that this is done."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    run(functools.partial(test, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives as long as the run: 8 % of the processor time."""
    gc.freeze()
