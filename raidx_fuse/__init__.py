"""Virtual disks over unlike members. What a program uses is here::

    import trio
    from raidx_fuse import create_array, open_array, open_member, run_virtually

    async def main() -> None:
        disks = [open_member(f"ram:{size}MiB,model=hdd") for size in (32, 48, 64)]
        await create_array(disks, "raidx-copy", name="disk", now_s=0, params={"length": 2})
        async with open_array(disks) as array:
            await array.write(0, b"in virtual time")
            await array.flush()
            print(bytes(await array.read(0, 15)), f"{trio.current_time() - array.started_s:.3f} s")

    run_virtually(main)

`Client` is a running array that a daemon serves, without an event loop. `open_array` gives an
`Array` in this process, over members that are files and devices (`open_member`), memory or modelled
disks; `simulate` runs an `Experiment`. An error is a `RaidxError`; its `Reason` is for programs.
Names that are not here may change. Importing this package imports nothing else: each name is loaded
when it is first used. Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ERRORS = (
    *("ArrayFailedError", "BusyError", "LosesDataError", "MemberError", "NoSpaceError"),
    *("RaidxError", "ReadOnlyError", "Reason", "TimedOutError", "UnrecoverableError"),
    "UsageError",
)
_PUBLIC = {  # name -> its module, and what it is called there
    "Array": ("array.array", "Array"),
    "Client": ("client", "Client"),
    "Experiment": ("lab.experiments.simulate", "Experiment"),
    "__version__": ("version", "VERSION"),
    "create_array": ("format.create", "create_array"),
    "create_member": ("members.open", "create_member"),
    "model_member": ("members.simulated.model", "model_member"),
    "open_array": ("array.open", "open_array"),
    "open_member": ("members.open", "open_member"),
    "run_virtually": ("members.simulated.virtual_time", "run"),
    "simulate": ("lab.experiments.simulate", "simulate"),
    **{name: ("errors", name) for name in _ERRORS},
}
__all__ = sorted(_PUBLIC)  # noqa: PLE0605  # type checkers read the stub


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _PUBLIC[name]
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), there)
    return value


def __dir__() -> list[str]:
    return __all__
