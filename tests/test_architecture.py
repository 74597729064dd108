"""The shape of the code, held by tests: who imports whom, and who may touch the outside world.

Read from the syntax trees, so that nothing has to be importable and nothing hides in a function.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "raidx_fuse"
MODULE_LINES_MAX = 400

# The floors of the house, from the ground up: a module imports only from floors below its own, or
# from its own floor (cycles between modules are looked for apart). A name stands for a module or
# for a folder with everything in it; every module must be found in the table.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("layouts",),
    ("errors", "measure", "sizes", "zeros", "unwrap", "virtual_time", "locks", "parity", "advice"),
    ("latch", "observers", "tasks"),
    ("overlay", "bad_chunks", "xor_program"),
    ("members",),
    ("format",),
    ("bpu", "operation", "queues"),
    ("queue_monitor", "policy"),
    ("flush_rounds",),
    ("store", "access", "cache", "startable"),
    ("pagestore", "joining", "marked"),
    ("written", "dirty", "claims", "unlogged", "growth", "ring", "inflight", "streams"),
    ("gather",),
    ("settlement",),
    ("shares", "log_writer"),
    ("journal",),
    ("core", "following"),
    ("replay", "begun", "journal_mode"),
    (
        "reader",
        "at_once",
        "whole_stripes",
        "grown_stripes",
        "closing",
        "beginning",
        "write_work",
        "explain",
    ),
    ("filler", "log_rules", "finishing", "lost_list"),
    ("writer", "mover", "tuner_plan"),
    ("jobs",),
    ("room",),
    ("reshape",),
    ("restore",),
    ("membership", "settings", "status", "grower", "restriper", "tuner", "tuning"),
    ("array",),
    ("check", "estimate", "reshape_cost", "interval", "volume", "testing"),
    ("lab",),
    ("awake", "beneath", "disks", "mountpoint", "protections", "runtime"),
    ("creation", "offline", "arguments", "commands", "control", "control_server", "reshaping"),
    ("holding",),
    ("readers",),
    ("fuse", "poll_first", "daemon"),
    ("mount",),
    ("pool",),
    ("cli", "campaign"),
)

# What touches the operating system, and why it may. Members are the storage; the rest is the way
# in: mount point, control socket, daemon, and opening what the user named.
MAY_TOUCH_THE_SYSTEM = {
    "members",  # files, devices, memory, threads
    "beneath",  # what a path stands on, by the kernel's tables
    "disks",  # does a file exist? removes the ones it made
    "mountpoint",  # mount table, fusermount3
    "runtime",  # where sockets and logs lie
    "control",  # the socket
    "control_server",  # the same
    "daemon",  # fork, signals
    "fuse",  # errno, stat
    "poll_first",  # the FUSE descriptor
    "readers",  # the same
    "awake",  # the latency promise of the kernel
    "mount",  # user ids, pid
    "protections",  # prctl, mlockall
    "lab.traces",  # trace files
    "lab.source",  # is there such a file?
    "lab.spec",  # paths of traces beside the experiment
    "cli",  # paths as typed
    "campaign",  # a program: spreads the states over the processors
}
SYSTEM_MODULES = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "glob", "io", "multiprocessing", "os", "pathlib"),
    *("select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading"),
    *("_thread", "resource", "pty", "sched"),
}
MAY_START_THREADS = {"members.threads", "campaign"}
MAY_START_PROCESSES = {"mount"}  # fusermount3, while the loop goes on
THREAD_MODULES = {"threading", "_thread", "concurrent", "multiprocessing", "asyncio"}

# (module, what it may use): the clock of the outside world.
CLOCKS = {
    ("virtual_time", "monotonic"),  # how long the loop really idled: tells a deadlock from work
    ("members.local", "perf_counter"),  # is the disk too slow to be written inline?
    ("creation", "time"),  # the date of birth in the superblock
    ("control", "monotonic"),  # when an answer is overdue, in commands: no event loop there
    ("mount", "time_ns"),  # the time stamp that `ls` shows
    ("cli.waiting", "sleep"),  # between two looks at a job
    ("campaign", "monotonic"),  # how long a campaign took
    ("campaign", "strftime"),  # the date of its report
}
DATE_MODULES = {"datetime", "calendar", "timeit"}
MAY_PRINT_DATES = {"cli.show"}  # from a number that is given

# (module, what it may use): the generators that must be seeded are made as random.Random(seed).
UNSEEDED = {"uuid1", "uuid4", "urandom", "getrandom", "SystemRandom", "secrets"}
MAY_DRAW_UNSEEDED = {"format.create"}  # UUIDs are to be unique, not repeatable


def module_paths() -> Iterator[tuple[str, Path]]:
    """Yield (name below raidx_fuse, path) of every module, those behind the two links included."""
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = path.relative_to(PACKAGE).with_suffix("").parts
                yield ".".join(part for part in parts if part != "__init__"), path


MODULES = dict(module_paths())
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield every module that *tree* imports, and every name imported from one, dotted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def own_imports(tree: ast.AST) -> set[str]:
    """Return the modules of this package that *tree* imports, by their names below raidx_fuse."""
    found = set()
    for name in imported_names(tree):
        if name.startswith("raidx_fuse."):
            below = name.removeprefix("raidx_fuse.")
            found.add(below if below in MODULES else below.rpartition(".")[0])
    return found


def floor_of(name: str) -> int | None:
    """Return the floor of a module, None if the table does not know it."""
    top = name.split(".")[0]
    for number, names in enumerate(FLOORS):
        if name in names or top in names:
            return number
    return None


def type_checking_only(tree: ast.Module) -> set[str]:
    """Return what is imported only for annotations."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            for child in node.body:
                found |= own_imports(child)
    return found


def used_attributes(tree: ast.AST, module: str) -> set[str]:
    """Return the names that *tree* takes from *module*: by `from`, or as its attributes."""
    found = set()
    for name in imported_names(tree):
        if name.startswith(module + "."):
            found.add(name.removeprefix(module + "."))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == module
        ):
            found.add(node.attr)
    return found


def tops(tree: ast.AST) -> set[str]:
    """Return the top-level packages that *tree* imports from."""
    return {name.split(".")[0] for name in imported_names(tree)}


def listed(name: str, table: set[str]) -> bool:
    """Say whether *table* holds the module or its folder."""
    return name in table or name.split(".")[0] in table


def test_every_module_has_a_floor_and_every_floor_a_module() -> None:
    homeless = [name for name in MODULES if name and floor_of(name) is None]
    assert not homeless, f"put {homeless} on a floor"
    for names in FLOORS:
        for name in names:
            assert name in MODULES, f"there is no {name} any more"


def test_imports_go_down() -> None:
    for name, tree in TREES.items():
        floor = floor_of(name)
        if not name:
            assert not own_imports(tree), "importing raidx_fuse.layouts must not run anything else"
            continue
        assert floor is not None
        for other in own_imports(tree) - type_checking_only(tree):
            below = floor_of(other)
            assert below is not None, f"{name} imports {other}, which is on no floor"
            assert below <= floor, f"{name} imports {other}, which is above it"


def test_no_import_cycles() -> None:
    rest = {
        name: own_imports(tree) - type_checking_only(tree) - {name} for name, tree in TREES.items()
    }
    while leaves := [name for name, needs in rest.items() if not needs & set(rest)]:
        for name in leaves:
            del rest[name]
    assert not rest, f"these import each other: {sorted(rest)}"


def test_imports_are_absolute_and_by_one_name() -> None:
    for name, tree in TREES.items():
        for imported in imported_names(tree):
            top = imported.split(".")[0]
            assert top, f"{name} imports {imported}: absolute imports only"
            assert top not in ("layouts", "cli"), f"{name}: import raidx_fuse.{imported} instead"


def test_only_named_modules_touch_the_system() -> None:
    for name, tree in TREES.items():
        if not listed(name, MAY_TOUCH_THE_SYSTEM):
            assert not tops(tree) & SYSTEM_MODULES, name
            called = {
                node.func.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert "open" not in called, name


def test_only_members_start_threads() -> None:
    for name, tree in TREES.items():
        if name not in MAY_START_THREADS:
            assert not tops(tree) & THREAD_MODULES, name
            assert "to_thread" not in used_attributes(tree, "trio"), name
        if name not in MAY_START_PROCESSES:
            assert "run_process" not in used_attributes(tree, "trio"), name


def test_time_comes_from_trio() -> None:
    for name, tree in TREES.items():
        allowed = {what for module, what in CLOCKS if module == name}
        assert used_attributes(tree, "time") <= allowed, name
        if name not in MAY_PRINT_DATES:
            assert not tops(tree) & DATE_MODULES, name
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not attributes & {"now", "utcnow", "today"}, name


def test_chance_is_seeded() -> None:
    for name, tree in TREES.items():
        assert used_attributes(tree, "random") <= {"Random"}, name
        used = {part for imported in imported_names(tree) for part in imported.split(".")}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if name not in MAY_DRAW_UNSEEDED:
            assert not used & UNSEEDED, name


def test_the_lists_of_exceptions_are_not_longer_than_needed() -> None:
    for module, what in CLOCKS:
        assert what in used_attributes(TREES[module], "time"), f"{module} needs no {what}"
    for module in MAY_TOUCH_THE_SYSTEM:
        inside = [n for n in MODULES if n == module or n.startswith(module + ".")]
        used = {top for name in inside for top in tops(TREES[name])}
        assert used & SYSTEM_MODULES, f"{module} touches nothing"


def test_modules_are_short_and_say_what_they_are_for() -> None:
    for name, path in MODULES.items():
        lines = len(path.read_text().splitlines())
        assert lines <= MODULE_LINES_MAX, f"{name} has {lines} lines: split it"
        assert ast.get_docstring(TREES[name]), f"{name} has no docstring"


def test_the_checks_see_what_they_should() -> None:
    tree = ast.parse(
        "import os.path\nfrom time import time\nimport random\n"
        "def f():\n    import raidx_fuse.store\n    from raidx_fuse.members import base\n"
        "    from raidx_fuse.errors import RaidxError\n    random.random()\n    time.sleep(1)\n"
    )
    assert own_imports(tree) == {"store", "members.base", "errors"}
    assert used_attributes(tree, "time") == {"time", "sleep"}
    assert used_attributes(tree, "random") == {"random"}
    assert tops(tree) == {"os", "time", "random", "raidx_fuse"}
    assert floor_of("members.ram") == floor_of("members")
    assert floor_of("nowhere") is None
    assert len(MODULES) > 60
