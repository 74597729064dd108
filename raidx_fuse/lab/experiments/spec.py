"""Experiments as TOML files: the format that `raidx simulate` reads.

name = "a disk fails"
seed = 1

[array]
layout = "raid5"
disks = 5                        # or members = ["hdd", "hdd", "ssd"]
model = "hdd,seek_ms=4"          # a preset, with numbers by hand
disk_size = "1GiB"
chunk = "64KiB"
log_size = "64MiB"               # of the log on each disk; default: as of raidx create
prefilled = true                 # every chunk counts as written
settings = { journal = "none", "parity.policy" = "rmw" }
params = {}                      # parameters of the layout
controller = "512MiB"            # write-back cache of a controller in front of it
unsafe_no_stripe_locks = false   # true: writes to a stripe take no turns, parity is wrong

[load]
source = "financial1"            # a generated load, or the path of a trace
requests = 50000                 # and/or seconds = 600
speed = 2.0                      # or rate = 140 (requests a second)
asus = "overlaid"                # the ASUs of a trace: joined (default), overlaid, or "3"
factor = 8                       # addresses times 8, before they are fitted
fit = "scale"                    # addresses: fold, scale or none
depth = 16                       # as fast as possible, 16 requests at a time
verify = true                    # compare reads with what was written
numbers = { read_share = 0.5 }   # change numbers of a generated load

[network]                        # the members are on servers behind one shared link
mb_s = 60                        # bandwidth in 10^6 bytes a second, 0: no limit
latency_ms = 0.1                 # of a message, one way
jitter_ms = 0.05                 # up to so much is added to it
duplex = false                   # true (default): one link for each direction

[[events]]
at = 30
do = "fail"                      # fail, replace, spare, add, restripe, scrub, tune, set, lose
disk = 2

[[events]]
at = 90
do = "lose"                      # the server of a disk answers nothing for so many seconds;
disk = 1                         # one that was given up meanwhile is then caught up
seconds = 40

[report]
section = 10                     # also report every 10 seconds
warm_up = 60                     # leave the first minute out of all means

Several arrays in one pool, instead of [array] and [load]:

[pool]
prefilled = true                 # every chunk of a volume counts as written
verify = false
settings = { "hot.tau" = "60%", "balance.auto" = "on" }

[[arrays]]                       # as [array], without prefilled
name = "a"
settings = { "balance.target" = "off" }   # its own, or the pool's for this array

[[volumes]]
name = "db"
array = "a"
size = "64MiB"
count = 7                        # db0 to db6; without it one, db

[[loads]]                        # as [load], without verify
volumes = "db[0-2]"              # one volume, or a pattern: each gets a load of its own
begin = 100                      # second at which it begins

[[events]]
array = "a"                      # unless a setting of the whole pool is set
"""

from __future__ import annotations

import copy
import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from raidx_fuse.errors import UsageError
from raidx_fuse.format.configuration.volumes import VOLUMES_MAX
from raidx_fuse.lab.experiments.events import Event
from raidx_fuse.lab.experiments.modelled import MEMBER_BYTES, Hardware
from raidx_fuse.lab.experiments.pool_parts import (
    PoolArray,
    PoolExperiment,
    PoolVolume,
    VolumeLoad,
)
from raidx_fuse.lab.experiments.simulate import Experiment
from raidx_fuse.lab.loads.source import Source
from raidx_fuse.lab.loads.traces import regular_file
from raidx_fuse.members.simulated.network import NetworkModel
from raidx_fuse.units import parse_size

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {list: "a list", dict: "a table"}


class Table:
    """A table of the file. Its keys are taken one by one; a key that nobody takes is an error.

    Errors name the place and the nearest known key.
    """

    def __init__(self, place: str, values: Mapping[str, Any]) -> None:
        self.place = place
        self._values = dict(values)
        self._known: list[str] = []

    def take(self, key: str, kind: type[T], default: T) -> T:
        """Return the value of *key*, or *default*. Raises UsageError if its type is not *kind*."""
        self._known.append(key)
        value: Any = self._values.pop(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is default or type(value) is kind:
            return value  # pyright: ignore[reportReturnType]  # its class is *kind*
        raise UsageError(f"{self.place}: {key} is {_WORDS[kind]}, not {value!r}")

    def size(self, key: str, default: int) -> int:
        """Return a size in bytes, given as text ("64KiB") or as a number. Raises UsageError."""
        value = self._values.get(key)
        if type(value) is int:
            return self.take(key, int, default)
        text = self.take(key, str, "")
        return parse_size(text) if text else default

    def must(self, key: str, kind: type[T], empty: T) -> T:
        """Return the value of *key*. Raises UsageError if it is missing or of another type."""
        if key not in self._values:
            raise UsageError(f"{self.place}: {key} is missing", action=f"add {key} = ...")
        return self.take(key, kind, empty)

    def has(self, key: str) -> bool:
        return key in self._values

    def table(self, key: str) -> Table:
        return Table(f"{self.place} [{key}]", self.take(key, dict, {}))

    def tables(self, key: str) -> list[Table]:
        rows = self.take(key, list, [])
        if not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"{self.place}: {key} is a list of tables, written [[{key}]]")
        return [Table(f"{self.place} [[{key}]] {n}", row) for n, row in enumerate(rows, 1)]

    def end(self) -> None:
        """Raise UsageError if the table has a key that was not taken."""
        for key in self._values:
            near = get_close_matches(key, self._known, 1)
            action = f"did you mean {near[0]}?" if near else f"known: {', '.join(self._known)}"
            raise UsageError(f"{self.place}: unknown key {key!r}", action=action)


Changes = Sequence[tuple[Sequence[str], Any]]  # (path of keys, value), see sweep.py


def _changed(values: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of *values*, tables of a file, with *value* at *path*. Raises UsageError."""
    values = copy.deepcopy(values)
    table: Any = values
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"--sweep {'.'.join(path)}: {name} is not a table of the file")
    table[path[-1]] = value
    return values


def parse_experiment(
    text: str,
    name: str = "experiment",
    folder: str = "",
    seed: int | None = None,
    changes: Changes = (),
) -> Experiment | PoolExperiment:
    """Return the experiment that *text* describes, checked as far as possible without running it.

    *name* is used in messages, and in the result if *text* has no name. Paths of traces are
    relative to *folder*. *seed* overrides the seed of *text*, *changes* other values of it. Raises
    UsageError.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: not TOML: {error}") from None
    for path, value in changes:
        values = _changed(values, path, value)
    top = Table(name, values)
    title = top.take("name", str, name)
    own_seed = top.take("seed", int, 0)
    seed = own_seed if seed is None else seed
    if top.has("arrays"):
        return _pool(top, title, folder, seed)
    array, load, report = top.table("array"), top.table("load"), top.table("report")
    events = [_event(table) for table in top.tables("events")]
    network = _network(top.table("network")) if top.has("network") else None
    top.end()
    if network is None and any(event.do == "lose" for event in events):
        raise UsageError(f"{name}: only a server can be lost", action="add a table [network]")
    verify = load.take("verify", bool, False)
    source, depth = _source(load, folder, seed)
    experiment = Experiment(
        name=title,
        controller_bytes=array.size("controller", 0),
        stripe_locks=not array.take("unsafe_no_stripe_locks", bool, False),
        prefilled=array.take("prefilled", bool, True),
        settings=_settings(array),
        **_hardware(array),
        load=source.load,
        depth=depth or None,
        verify=verify,
        events=events,
        section_s=report.take("section", float, 0.0),
        warm_up_s=report.take("warm_up", float, 0.0),
        seed=seed,
        network=network,
    )
    report.end()
    try:
        experiment.check()
    except UsageError as error:
        raise UsageError(
            f"{name}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return experiment


def _network(table: Table) -> NetworkModel:
    network = NetworkModel(
        mb_s=table.take("mb_s", float, 0.0),
        latency_ms=table.take("latency_ms", float, 0.0),
        jitter_ms=table.take("jitter_ms", float, 0.0),
        duplex=table.take("duplex", bool, True),
    )
    table.end()
    try:
        network.check()
    except UsageError as error:
        raise UsageError(f"{table.place}: {error.message}") from None
    return network


def _pool(top: Table, title: str, folder: str, seed: int) -> PoolExperiment:
    pool, report = top.table("pool"), top.table("report")
    rows = {key: top.tables(key) for key in ("arrays", "volumes", "loads", "events")}
    top.end()
    arrays = []
    for table in rows["arrays"]:
        name, settings = table.must("name", str, ""), _settings(table)
        arrays.append(
            PoolArray(hardware=Hardware(name=name, **_hardware(table)), settings=settings)
        )
    volumes = [one for table in rows["volumes"] for one in _volumes(table)]
    loads: list[VolumeLoad] = []
    for table in rows["loads"]:
        loads += _loads(table, [one.name for one in volumes], folder, seed + len(loads))
    experiment = PoolExperiment(
        name=title,
        arrays=arrays,
        volumes=volumes,
        loads=loads,
        settings=_settings(pool),
        prefilled=pool.take("prefilled", bool, True),
        verify=pool.take("verify", bool, False),
        events=[_event(table) for table in rows["events"]],
        section_s=report.take("section", float, 0.0),
        seed=seed,
    )
    pool.end()
    report.end()
    try:
        experiment.check()
    except UsageError as error:
        raise UsageError(
            f"{top.place}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return experiment


def _volumes(table: Table) -> list[PoolVolume]:
    name, count = table.must("name", str, ""), table.take("count", int, 0)
    array, size = table.must("array", str, ""), table.size("size", 0)
    table.end()
    if not 0 <= count <= VOLUMES_MAX or size <= 0:
        raise UsageError(f"{table.place}: a volume needs a size; count is 1 to {VOLUMES_MAX}")
    names = [f"{name}{number}" for number in range(count)] if count else [name]
    return [PoolVolume(name=one, array=array, size_bytes=size) for one in names]


def _loads(table: Table, names: Sequence[str], folder: str, seed: int) -> list[VolumeLoad]:
    """Return one load for each of the volumes *names* that are meant, with seeds from *seed* on."""
    pattern, begin_s = table.must("volumes", str, ""), table.take("begin", float, 0.0)
    meant = fnmatch.filter(names, pattern)
    if not meant:
        raise UsageError(
            f"{table.place}: no volume is called {pattern!r}", action=f"known: {', '.join(names)}"
        )
    if not 0 <= begin_s < 1e9:
        raise UsageError(f"{table.place}: a load cannot begin at {begin_s} s")
    source, depth = _source(table, folder, seed)
    return [
        VolumeLoad(
            volume=name,
            load=replace(source, seed=seed + number).load,
            begin_s=begin_s,
            depth=depth or None,
        )
        for number, name in enumerate(meant)
    ]


def _hardware(array: Table) -> dict[str, Any]:
    """Return the fields that `Experiment` and `Hardware` share, the last that the table has."""
    own_members = array.take("members", list, [])
    disks, model = array.take("disks", int, 0), array.take("model", str, "hdd")
    fields = {
        "layout": array.must("layout", str, ""),
        "members": own_members or [model] * disks,
        "member_bytes": array.size("disk_size", MEMBER_BYTES),
        "chunk_bytes": array.size("chunk", 64 << 10),
        "log_bytes": array.size("log_size", 0) or None,
        "params": array.take("params", dict, {}),
    }
    array.end()
    _check_members(array, own_members, disks)
    return fields


def _settings(table: Table) -> dict[str, str]:
    return {key: str(value) for key, value in table.take("settings", dict, {}).items()}


def _check_members(array: Table, members: list[Any], disks: int) -> None:
    if bool(members) == bool(disks):
        raise UsageError(f"{array.place}: give either disks (how many) or members (a list)")
    if not all(isinstance(member, str) for member in members):
        raise UsageError(f"{array.place}: members is a list of models, such as 'ssd'")
    if not members and not 1 <= disks <= 255:
        raise UsageError(f"{array.place}: disks must be 1 to 255, not {disks}")


def _source(load: Table, folder: str, seed: int) -> tuple[Source, int]:
    """Return the load and its depth (0: open loop)."""
    name = load.must("source", str, "")
    is_limited = load.has("requests"), load.has("seconds")  # 0 is no limit, but a mistake
    requests, depth = load.take("requests", int, 0), load.take("depth", int, 0)
    seconds, rate_s = load.take("seconds", float, 0.0), load.take("rate", float, 0.0)
    source = Source(
        name=name,
        requests=requests if is_limited[0] else None,
        seconds=seconds if is_limited[1] else None,
        speed=load.take("speed", float, 1.0),
        rate_s=rate_s or None,
        factor=load.take("factor", int, 1),
        asus=load.take("asus", str, "joined"),
        fit=load.take("fit", str, "fold"),
        seed=seed,
        numbers=load.take("numbers", dict, {}),
    )
    load.end()
    if min(requests, depth, seconds, rate_s) < 0:
        raise UsageError(f"{load.place}: requests, seconds, rate and depth are not negative")
    if not source.is_generated:
        # A pipe is read here: the processes that run the parts of a sweep cannot open it.
        source = source.at(str(regular_file(Path(folder, name))))
    try:
        source.check()
    except UsageError as error:
        raise UsageError(
            f"{load.place}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return source, depth


def _event(table: Table) -> Event:
    event = Event(
        at_s=table.must("at", float, 0.0),
        do=table.must("do", str, ""),
        disk=table.take("disk", int, -1),
        model=table.take("model", str, ""),
        count=table.take("count", int, 1),
        key=table.take("key", str, ""),
        value=str(table.take("value", str, "")),
        for_s=table.take("seconds", float, 0.0),
        array=table.take("array", str, ""),
    )
    table.end()
    try:
        event.check()
    except UsageError as error:
        raise UsageError(
            f"{table.place}: {error.message}", action=error.action, reason=error.reason
        ) from None
    return event
