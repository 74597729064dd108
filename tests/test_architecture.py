"""The shape of the code, held by tests: who imports whom, and who may touch the outside world.

Read from the syntax trees, so that nothing has to be importable and nothing hides in a function.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "raidx_fuse"

# The layers, from the ground up: a module imports only from its own package and from those before
# it, annotations included. A name is a package of raidx_fuse, or a module of its top folder.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "laws",
        "late",
        "units",
        "settings",
        "answers",
        "documents",
        "job_words",
        "typed",
        "plugins",
        "version",
    ),
    ("loop",),
    ("layouts",),
    ("members",),
    ("format",),
    ("store",),
    ("journal",),
    ("engine",),
    ("jobs",),
    ("array",),
    ("pool",),
    ("fuse", "nbd"),
    ("daemon",),
    ("client",),
    ("lab",),
    ("view",),
    ("cli",),
)

# What touches the operating system, and why it may. Members are the storage; the rest is the way
# in: mount point, control socket, daemon, and opening what the user named.
MAY_TOUCH_THE_SYSTEM = {
    "members",  # files, devices, memory, threads
    "daemon.backing_devices",  # what a path stands on, and other names, by the kernel's tables
    "daemon.array_lock",  # a lock file for each array
    "daemon.metadata",  # files of saved metadata
    "daemon.member_files",  # does a file exist? removes the ones it made
    "fuse.mountpoint",  # mount table, fusermount3
    "daemon.paths",  # where sockets and logs lie
    "daemon.control_client",  # the socket
    "daemon.control_server",  # the same
    "daemon.daemonize",  # fork, signals
    "fuse.operations",  # errno, stat
    "fuse.session_loop",  # the FUSE descriptor
    "fuse.workers",  # the same
    "store.sum_memory",  # how much memory the machine has
    "loop.busy_poll",  # epoll, the latency promise of the kernel
    "daemon.mount",  # user ids, pid
    "daemon.scan",  # which files and devices there are
    "daemon.events.store",  # its files
    "daemon.events.programs",  # hooks, the journal's socket
    "daemon.serve",  # signals; what a pool has seen, kept for the next mount
    "nbd.address",  # listening sockets
    "nbd.door",  # the sockets of clients, and whose they are
    "daemon.memory_protection",  # prctl, mlockall
    "lab.loads.traces",  # trace files
    "lab.loads.workloads",  # is there such a file?
    "lab.experiments.spec",  # paths of traces beside the experiment
    "lab.experiments.results",  # results as files
    "client",  # paths as a program gives them
    "cli",  # paths as typed
    "lab.crash.__main__",  # a program: writes its page
    "lab.workers",  # spreads parts over processes
}
SYSTEM_MODULES = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "glob", "io", "multiprocessing", "os", "pathlib"),
    *("select", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading"),
    *("_thread", "resource", "pty", "sched"),
}
# Textual, which draws the screen, runs on asyncio: there a look, which blocks, needs a thread.
MAY_START_THREADS = {"members.threads", "lab.workers", "cli.screen.app"}
# fusermount3, and hooks, while the loop goes on
MAY_START_PROCESSES = {"daemon.mount", "daemon.events.programs"}
THREAD_MODULES = {"threading", "_thread", "concurrent", "multiprocessing", "asyncio"}

# The simulated members of the product: those that a user may name (`model:`), and those that a
# mount for teaching makes and breaks (`raidx mount --lab`).
MAY_SIMULATE = {
    "members.open": {"members.simulated.model", "members.simulated.service"},
    "members.spec": {"members.simulated.service"},
    "daemon.serve": {"members.simulated.lab_member"},
    "daemon.commands.lab": {"members.simulated.lab_member", "members.simulated.faulty"},
}

# Who reads members, and how it leaves out pages that are known to be unreadable: who asks for
# them on and on has its member failed (store/member_set.py).
MAY_READ_MEMBERS = {
    "engine.contradictions": "plans by lost_cells",
    "engine.read_cells": "plans by lost_cells",
    "engine.peek": "plans by lost_cells",
    "engine.read": "plans by lost_cells",
    "engine.write.write": "has them mended before",
    "jobs.strips": "its jobs mend before, or leave the chains out",
    "jobs.fill_sums": "leaves them out",
    "jobs.tuner.measure": "measures elsewhere",
    "journal.ring": "reads the log, which has no such pages",
    "journal.recovery": "plans by stripe_parity",
    "journal.unsettled": "plans by stripe_parity",
    "store.sums": "finds them, for all others",
}

# Who closes the gate of a layout, without which roles and layouts do not change: jobs/reshape.py,
# and who has a reason of its own.
MAY_CLOSE = {
    "engine.context": "gives the block to all others",
    "jobs.reshape": "all changes of roles and layouts",
    "jobs.replace": "a member takes the role of one that it mirrors, within a drain of the log",
    "jobs.rebundle.operation": "a lost role gets as small as the member that takes it",
    "jobs.restripe.operation": "waits for writes past the log, and changes nothing",
    "array.settings": "the mode of the log",
    "array.log_size": "the place of the log, which is empty",
    "array.switch_sums": "the routes of writes, which depend on checksums",
}
MAY_GIVE_ROLES = {
    "jobs.attach": "to newcomers, for a swap of jobs/reshape.py",
    "array.membership": "a vacant role, which is rebuilt",
}

# (module, attribute of an object that it stores to): other people's interfaces are attributes.
MAY_STORE = {
    ("members.syscalls", "_libc.fallocate.argtypes"),  # so ctypes is told the types
    ("members.syscalls", "_libc.fstatfs.argtypes"),
    ("members.simulated.virtual_time", "runner.io_manager"),  # trio has no public way
    ("members.nbd.pipe", "context.check_hostname"),  # so ssl is told, too
    ("nbd.address", "context.verify_mode"),
    ("cli.app", "ctx.obj"),  # so click hands an object to a command
    ("cli.app", "sys.stdout"),  # its reader is gone: nothing may flush it at exit
    *(("cli.streams", f"sys.{name}") for name in ("stdin", "stdout", "stderr")),
    # The campaign breaks a rule on purpose: the object of a running array gets a class without it.
    ("lab.crash.player", "array.rebundle.__class__"),
    ("lab.crash.player", "array.context.journal.__class__"),
    ("lab.crash.themes.checksums", "player.recording.rotten[-1].end"),
    ("lab.experiments.simulate", "array.context.locks"),  # so does an experiment without locks
    ("lab.experiments.simulate", "array.context.cells.locks"),
    ("lab.crash.player", "array.context.journal.unsettled.__class__"),
}
MAY_SETATTR = {("fuse.session_loop", "module")}  # pyfuse3's session loop is replaced, and put back

# (module, what it may use): the clock of the outside world.
CLOCKS = {
    # how long the loop really idled: tells a deadlock from work
    ("members.simulated.virtual_time", "monotonic"),
    ("members.local", "perf_counter"),  # is the disk too slow to be written inline?
    ("members.nbd.member", "sleep"),  # between two looks at a lock, where no event loop runs
    ("members.nbd.pipe", "monotonic"),  # has a server taken too long? No event loop there
    # when a lock may have been taken over: a suspend of the machine counts, too
    ("members.nbd.pipe", "clock_gettime"),
    ("members.nbd.pipe", "CLOCK_BOOTTIME"),
    ("daemon.events.event", "time"),  # dates for people: of creation, scrubs, events
    # when an answer is overdue, in commands: no event loop there
    ("daemon.control_client", "monotonic"),
    ("daemon.mount", "time_ns"),  # the time stamp that `ls` shows
    ("client", "sleep"),  # between two looks at an array that is waited for
    ("client", "monotonic"),  # has the program waited for long enough?
    ("cli.commands.events", "sleep"),  # between two looks at the events
    ("cli.commands.experiments", "monotonic"),  # how long the user waits for an experiment
    ("cli.progress", "sleep"),  # between two looks at a job
    ("cli.progress", "monotonic"),  # has the user waited for long enough?
    ("lab.crash.__main__", "monotonic"),  # how long a campaign took
    ("lab.crash.__main__", "strftime"),  # the date of its report
}
DATE_MODULES = {"datetime", "calendar", "timeit"}
MAY_PRINT_DATES = {
    "cli.commands.events",
    "cli.status_text",
}  # from a number that is given

# (module, what it may use): the generators that must be seeded are made as random.Random(seed).
UNSEEDED = {"uuid1", "uuid4", "urandom", "getrandom", "SystemRandom", "secrets"}
MAY_DRAW_UNSEEDED = {
    "format.create",  # UUIDs are to be unique, not repeatable
    "view.access",  # a token that nobody can guess
}


def module_paths() -> Iterator[tuple[str, Path]]:
    """Yield (name below raidx_fuse, path) of every module, those behind the two links included."""
    for folder, _, files in os.walk(PACKAGE, followlinks=True):
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = path.relative_to(PACKAGE).with_suffix("").parts
                yield ".".join(part for part in parts if part != "__init__"), path


MODULES = dict(module_paths())


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return all modules, parsed when the first test asks: every process collects this file."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of *tree*, walked once for all tests."""
    return tuple(ast.walk(tree))


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield every module that *tree* imports, and every name imported from one, dotted."""
    for node in nodes(tree):
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


def layer_of(name: str) -> int | None:
    """Return the layer of a module, None if the table does not know its package."""
    top = name.split(".")[0]
    return next((number for number, names in enumerate(LAYERS) if top in names), None)


def used_attributes(tree: ast.AST, module: str) -> set[str]:
    """Return the names that *tree* takes from *module*: by `from`, or as its attributes."""
    found = set()
    for name in imported_names(tree):
        if name.startswith(module + "."):
            found.add(name.removeprefix(module + "."))
    for node in nodes(tree):
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
    """Return whether *table* holds the module or a package that it is in."""
    parts = name.split(".")
    return any(".".join(parts[:number]) in table for number in range(1, len(parts) + 1))


def circles() -> list[set[str]]:
    """Return the sets of modules that import each other, directly or not."""
    needs = {name: own_imports(tree) - {name} for name, tree in trees().items()}
    reached = {name: set(others) for name, others in needs.items()}
    changed = True
    while changed:
        changed = False
        for others in reached.values():
            more = set().union(*(reached[other] for other in others)) if others else set()
            if not more <= others:
                others |= more
                changed = True
    found: list[set[str]] = []
    for name, others in reached.items():
        if name in others and not any(name in circle for circle in found):
            found.append({name} | {other for other in others if name in reached[other]})
    return found


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    homeless = [name for name in MODULES if name and layer_of(name) is None]
    assert not homeless, f"put {homeless} into a package"
    for name in {name for names in LAYERS for name in names}:
        assert name in MODULES, f"there is no {name} any more"


def test_imports_go_down() -> None:
    for name, tree in trees().items():
        if not name:
            assert not own_imports(tree), "importing raidx_fuse.layouts must not run anything else"
            continue
        layer = layer_of(name)
        assert layer is not None
        for other in own_imports(tree):
            below = layer_of(other)
            assert below is not None, f"{name} imports {other}, which is in no layer"
            assert below <= layer, f"{name} imports {other}, which is above it"


def test_no_modules_import_each_other() -> None:
    assert not circles()


def test_imports_are_absolute_and_by_one_name() -> None:
    for name, tree in trees().items():
        for imported in imported_names(tree):
            top = imported.split(".")[0]
            assert top, f"{name} imports {imported}: absolute imports only"
            assert top not in ("layouts", "cli"), f"{name}: import raidx_fuse.{imported} instead"


def test_only_named_modules_touch_the_system() -> None:
    for name, tree in trees().items():
        if not listed(name, MAY_TOUCH_THE_SYSTEM):
            assert not tops(tree) & SYSTEM_MODULES, name
            called = {
                node.func.id
                for node in nodes(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert "open" not in called, name


# (module, method): text that the module itself wrote, or bytes.
MAY_SPLIT_OR_DECODE = {
    ("daemon.mount", "splitlines"),  # what libfuse printed, for a message
    ("daemon.events.store", "splitlines"),  # bytes, whose lines end at \n and \r only
}


def test_what_users_name_is_read_as_bytes() -> None:
    # The kernel's tables hold names that any user chooses: text may end lines at CR, FF, NEL or
    # U+2028, and may not be decodable. They are read by members/kernel_files.py.
    found = set()
    for name, tree in trees().items():
        if not listed(name, {"members", "fuse", "nbd", "daemon"}):
            continue
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("read_text", "splitlines"):
                found.add((name, node.attr))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
                mode = node.args[1] if len(node.args) > 1 else None
                binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
                assert binary, f"{name}, line {node.lineno}: opened as text"
            elif isinstance(node, ast.keyword) and node.arg == "text":
                is_true = isinstance(node.value, ast.Constant) and node.value.value is True
                assert not is_true, f"{name}, line {node.value.lineno}: decoded output"
    assert found == MAY_SPLIT_OR_DECODE


# (module, function): looks at members for a moment, or opens them beside whoever has them.
MAY_ATTACH_WITHOUT_THE_ARRAY = {
    ("daemon.create", "_looked_at"),  # their sizes
    ("daemon.inspect", "examine"),
    ("daemon.inspect", "status"),
    ("daemon.inspect", "_in_use"),
    ("daemon.scan", "look"),
}


def test_who_opens_the_members_of_an_array_takes_its_lock() -> None:
    # The locks of members do not see a copy of them, nor every other name: daemon/array_lock.py.
    found = set()
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = {
                    n.func.attr
                    for n in ast.walk(node)
                    if isinstance(n, ast.Call)
                    and isinstance(n.func, ast.Attribute)
                    and "disks" in ast.unparse(n.func.value)
                }
                if calls & {"attach", "attach_usable"} and "claim" not in calls:
                    found.add((name, node.name))
    assert found == MAY_ATTACH_WITHOUT_THE_ARRAY


def test_only_members_start_threads() -> None:
    for name, tree in trees().items():
        if name not in MAY_START_THREADS:
            assert not tops(tree) & THREAD_MODULES, name
            assert "to_thread" not in used_attributes(tree, "trio"), name
        if name not in MAY_START_PROCESSES:
            assert "run_process" not in used_attributes(tree, "trio"), name


def test_time_comes_from_trio() -> None:
    for name, tree in trees().items():
        allowed = {what for module, what in CLOCKS if module == name}
        assert used_attributes(tree, "time") <= allowed, name
        if name not in MAY_PRINT_DATES:
            assert not tops(tree) & DATE_MODULES, name
        attributes = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}
        assert not attributes & {"now", "utcnow", "today"}, name


def test_only_the_laboratory_knows_virtual_time() -> None:
    # Product code takes the clock and the thread policy of the trio run that it is in.
    for name, tree in trees().items():
        if not listed(name, {"lab", "members.simulated"}):
            simulated = {n for n in own_imports(tree) if n.startswith("members.simulated.")}
            assert simulated <= MAY_SIMULATE.get(name, set()), name


def test_only_the_member_set_replaces_its_configuration() -> None:
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own or node.attr != "config", f"{name}, line {node.lineno}"


def layout_classes() -> set[str]:
    """Return the names of the layouts and of what joins some of them, as `View` does."""
    bases: dict[str, set[str]] = {}
    for name, tree in trees().items():
        if name.startswith("layouts."):
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = {ast.unparse(base) for base in node.bases}
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                    bases[ast.unparse(node.targets[0])] = set(ast.unparse(node.value).split(" | "))
    found = {"Layout"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def classes_asked_for(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what *tree* asks whether an object is one of, or claims that it is, and the line."""
    for node in nodes(tree):
        if isinstance(node, ast.MatchClass):
            yield ast.unparse(node.cls), node.lineno
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("isinstance", "issubclass", "cast"):
                asked = node.args[0 if called == "cast" else 1]
                for part in ast.walk(ast.parse(ast.unparse(asked).strip("'\""))):
                    if isinstance(part, ast.Name | ast.Attribute):
                        yield ast.unparse(part).split(".")[-1], node.lineno


def test_layouts_answer_by_methods() -> None:
    known = layout_classes()
    assert {"RotatedLayout", "BundleLayout", "OrderedLayout", "LayoutView", "View"} <= known
    for name, tree in trees().items():
        for asked, line in classes_asked_for(tree):
            assert asked not in known or name.startswith("layouts."), f"{name}, line {line}"
    text = (
        "isinstance(a, Layout)\ncast('View', a)\nmatch a:\n    case View(): pass\nf(a, B | Layout)"
    )
    assert {asked for asked, _line in classes_asked_for(ast.parse(text))} == {"Layout", "View"}


def test_roles_and_layouts_change_in_one_skeleton() -> None:
    """A layout is taken with its gate closed only (`ArrayContext.take_layout`): who closes it?"""
    closers, givers = set(), set()
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value).split(".")[-1]
                if node.func.attr == "closed" and of in {"context", "gate"}:
                    closers.add(name)
                elif node.func.attr == "give_role":
                    givers.add(name)
    assert {name for name in closers if not name.startswith("pool.")} == MAY_CLOSE.keys()
    assert givers == MAY_GIVE_ROLES.keys()


def test_who_reads_members_leaves_out_what_cannot_be_read() -> None:
    found = set()
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and node.attr in {"read", "read_base"}:
                of = ast.unparse(node.value).split(".")[-1].lstrip("_")
                if of == "member_set" and not name.startswith("lab."):
                    found.add(name)
    assert found == MAY_READ_MEMBERS.keys()


# Who writes to members by their set or their queues, and what.
MAY_WRITE_MEMBERS = {
    "store.cells": "cells",
    "engine.write.small": "cells, without suspending",
    "jobs.strips": "cells, into memory that a member lends",
    "journal.journal": "records of the log",
    "journal.recovery": "records that were found",
    "store.page_store": "pages of maps",
    "store.chunk_table": "pages of the table",
    "store.sum_tables": "tables of sums",
    "store.sums": "cells with theirs",
    "jobs.move_sums": "tables of sums in slots that are free",
}
# Who marks regions of stripes as dirty; by `touch`, for a write that does not suspend.
MAY_MARK = {"store.cells", "engine.write.small", "engine.write.full_stripe"}
WRITES = {"try_writev", "try_writes", "writable_view", "submit"}
MARKS = {"enter", "enter_now", "touch", "leave"}


def test_cells_are_written_and_their_stripes_marked_in_one_place() -> None:
    below = {"members", "lab", "store.queue", "store.member_set", "daemon.commands.trace"}
    writers, markers = set(), set()
    for name, tree in trees().items():
        for node in nodes(tree):
            if not isinstance(node, ast.Attribute) or listed(name, below):
                continue
            of = ast.unparse(node.value).split(".")[-1].lstrip("_")
            if node.attr in WRITES or (node.attr == "write" and of == "member_set"):
                writers.add(name)
            if node.attr in MARKS and of in ("dirty_bitmap", "dirty"):
                markers.add(name)
    assert writers == MAY_WRITE_MEMBERS.keys()
    assert markers == MAY_MARK


def test_cells_are_combined_by_one_kernel() -> None:
    # layouts/codes/error_location.py solves equations of errors, not of the contents of cells, and
    # format/sum_table.py adds up checksums.
    found = set()
    for name, tree in trees().items():
        used = {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}
        used |= {imported.rpartition(".")[2] for imported in imported_names(tree)}
        if used & {"bitwise_xor", "logical_xor"}:
            found.add(name)
    assert found - {"format.sum_table"} == {"store.xor"}


def stores_from_outside(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield every store to (or deletion of) an attribute of an object that is not the function's.

    Its own are `self` and `cls`, and a name that the function binds, each time it does, to a new
    object: the result of calling a class (a capitalized name) or `cls`. Such a function builds it.
    """
    stores: list[ast.Attribute] = []
    builds: list[ast.expr] = []
    bound: list[ast.Name] = []
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from stores_from_outside(node)
            continue
        todo.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).split(".")[-1].lstrip("_")
            if called == "cls" or called[:1].isupper():
                builds += node.targets
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            stores.append(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.append(node)
    own = {name.id for name in bound if name in builds}
    own -= {name.id for name in bound if name not in builds}
    for store in stores:
        base = store.value
        if not isinstance(base, ast.Name) or base.id not in {"self", "cls", *own}:
            yield store


def classes_known_in(module: str) -> dict[str, str]:
    """Return the package, the folder directly below raidx_fuse, of each class named in *module*."""
    known: dict[str, str] = {}
    for node in nodes(trees()[module]):
        if isinstance(node, ast.ClassDef):
            known[node.name] = module.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("raidx_fuse."):
            known |= {n.asname or n.name: str(node.module).split(".")[1] for n in node.names}
    return known


def packages_of(annotation: ast.expr | None, known: dict[str, str]) -> set[str]:
    """Return the packages of the classes of an annotation, "" for one of no package."""
    if isinstance(annotation, ast.BinOp):  # a union; None has no attributes
        return packages_of(annotation.left, known) | packages_of(annotation.right, known)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return set()
    return {known.get(ast.unparse(annotation), "") if annotation else ""}


def declarations() -> tuple[dict[str, set[str]], dict[tuple[str, str], set[str]]]:
    """Return whose classes declare an attribute, and whose class a name has inside a package."""
    declaring: dict[str, set[str]] = {}  # attribute: packages
    types: dict[tuple[str, str], set[str]] = {}  # (package, name): packages
    for module, tree in trees().items():
        package, known = module.split(".")[0], classes_known_in(module)
        for node in nodes(tree):
            attributes: list[str] = []
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                attributes = [node.attr] if ast.unparse(node.value) == "self" else []
            elif isinstance(node, ast.ClassDef) and "TypedDict" not in map(ast.unparse, node.bases):
                for part in node.body:
                    if isinstance(part, ast.AnnAssign):
                        attributes.append(ast.unparse(part.target))
                    elif isinstance(part, ast.Assign):
                        attributes += map(ast.unparse, part.targets)
                        if attributes[-1] == "__slots__":
                            texts = ast.walk(part.value)
                            attributes += [
                                str(n.value) for n in texts if isinstance(n, ast.Constant)
                            ]
            for attribute in attributes:
                declaring.setdefault(attribute, set()).add(package)
            if isinstance(node, ast.arg):
                named, annotation = node.arg, node.annotation
            elif isinstance(node, ast.AnnAssign):
                named, annotation = ast.unparse(node.target).split(".")[-1], node.annotation
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                named, annotation = ast.unparse(node.targets[0]).split(".")[-1], node.value.func
                made = ast.unparse(annotation)
                if made not in known or not made.lstrip("_")[:1].isupper():
                    continue  # no class of this project
            else:
                continue
            types.setdefault((package, named), set()).update(packages_of(annotation, known))
    return declaring, types


def stores_across_packages() -> Iterator[tuple[str, str]]:
    """Yield (module, attribute) of each store to an object of a class of another package.

    Its class is of this package if only this package's classes have such an attribute, or if the
    package annotates the name of the object, wherever it does, with classes of its own, or makes
    it from one.
    """
    declaring, types = declarations()
    for module, tree in trees().items():
        package = module.split(".")[0]
        for store in stores_from_outside(tree):
            holder = ast.unparse(store.value).split(".")[-1]
            packages = declaring.get(store.attr, set())
            own = packages == {package} or types.get((package, holder)) == {package}
            if package not in packages or not own:
                yield module, ast.unparse(store)


def test_objects_of_other_packages_change_only_through_their_methods() -> None:
    found = set(stores_across_packages())
    assert found - MAY_STORE == set()
    assert MAY_STORE - found == set(), "they are not needed any more"
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
                changed = ast.unparse(node.args[0])
                assert changed == "self" or (name, changed) in MAY_SETATTR, f"{name}: {changed}"


def test_a_store_across_packages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from raidx_fuse.pool.fake import Far\n"
        "class Near:\n    __slots__ = ('only_near', 'in_both')\n"
        "def f(near: Near | None, far: Far, either: Near | Far, unknown):\n"
        "    unknown.only_near = near.in_both = 1\n"
        "    far.only_far = far.in_both = either.in_both = unknown.in_both = unknown.nowhere = 1\n"
    )
    far = "class Far:\n    in_both: int\n    def __init__(self):\n        self.only_far = 1\n"
    monkeypatch.setitem(trees(), "nbd.fake", ast.parse(code))
    monkeypatch.setitem(trees(), "pool.fake", ast.parse(far))
    found = {what for module, what in stores_across_packages() if module == "nbd.fake"}
    assert found == {
        *("far.only_far", "far.in_both", "either.in_both", "unknown.in_both", "unknown.nowhere")
    }


def test_no_product_module_has_a_switch_that_breaks_it() -> None:
    # The campaign injects its deliberate faults from outside (lab/crash/player.py).
    for name, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("break_"), f"{name}: {node.attr}"


def test_chance_is_seeded() -> None:
    for name, tree in trees().items():
        assert used_attributes(tree, "random") <= {"Random"}, name
        used = {part for imported in imported_names(tree) for part in imported.split(".")}
        used |= {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}
        if name not in MAY_DRAW_UNSEEDED:
            assert not used & UNSEEDED, name


def test_the_lists_of_exceptions_are_not_longer_than_needed() -> None:
    for module, what in CLOCKS:
        assert what in used_attributes(trees()[module], "time"), f"{module} needs no {what}"
    for module in MAY_TOUCH_THE_SYSTEM:
        inside = [n for n in MODULES if n == module or n.startswith(module + ".")]
        used = {top for name in inside for top in tops(trees()[name])}
        assert used & SYSTEM_MODULES, f"{module} touches nothing"


def does_something(check: ast.Assert) -> bool:
    """Return whether Python would do less with -O: it awaits, or calls what tries an operation."""
    return any(
        isinstance(node, ast.Await | ast.NamedExpr)
        or (isinstance(node, ast.Attribute) and node.attr.startswith("try_"))
        for node in ast.walk(check.test)
    )


def test_an_assertion_does_nothing_else() -> None:
    for name, tree in trees().items():
        for node in nodes(tree):
            assert not (isinstance(node, ast.Assert) and does_something(node)), (name, node.lineno)
    (check,) = ast.parse("assert self.try_writev(0, [])").body
    assert isinstance(check, ast.Assert)
    assert does_something(check)


def test_modules_say_what_they_are_for() -> None:
    for name in MODULES:
        assert ast.get_docstring(trees()[name]), f"{name} has no docstring"


def test_the_checks_see_what_they_should() -> None:
    tree = ast.parse(
        "import os.path\nfrom time import time\nimport random\n"
        "def f():\n    import raidx_fuse.units\n    from raidx_fuse.members import base\n"
        "    from raidx_fuse.errors import RaidxError\n    random.random()\n    time.sleep(1)\n"
    )
    assert own_imports(tree) == {"units", "members.base", "errors"}
    assert used_attributes(tree, "time") == {"time", "sleep"}
    assert used_attributes(tree, "random") == {"random"}
    assert tops(tree) == {"os", "time", "random", "raidx_fuse"}
    assert layer_of("members.ram") == layer_of("members")
    assert layer_of("nowhere") is None
    assert len(MODULES) > 60
    tree = ast.parse(
        "class Thing:\n    def set(self, other):\n        self.a, other.a = other.a, self.a\n"
        "def f(thing):\n    thing.b += 1\n    new = _Thing()\n    new.c = 1\n    del new.rest.d\n"
        "    def g():\n        new.e = 1\n"
        "def h(things):\n    new = old = make.Thing()\n    new.x = 1\n"
        "    for new in things:\n        old.x = new\n"
    )
    stores = {ast.unparse(store) for store in stores_from_outside(tree)}
    assert stores == {"other.a", "thing.b", "new.rest.d", "new.e", "new.x"}
