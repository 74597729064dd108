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
import itertools
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypedDict, TypeVar, get_args, get_origin

from raidx_fuse.errors import UsageError, unknown
from raidx_fuse.format.configuration.volumes import VOLUMES_MAX
from raidx_fuse.lab.experiments.intervals import difference, estimate, percent
from raidx_fuse.lab.experiments.modelled import MEMBER_BYTES, Event, Hardware
from raidx_fuse.lab.experiments.results import grouped, measures
from raidx_fuse.lab.experiments.simulate import (
    Experiment,
    PoolExperiment,
    PoolVolume,
    VolumeLoad,
    simulate,
)
from raidx_fuse.lab.loads.drive import Figures, Recorder
from raidx_fuse.lab.loads.traces import regular_file
from raidx_fuse.lab.loads.workloads import Source
from raidx_fuse.members.simulated.network import NetworkModel
from raidx_fuse.typed import fits, hints_of
from raidx_fuse.units import parse_size
from raidx_fuse.version import VERSION

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {list: "a list", dict: "a table", Mapping: "a table"}

Values = Mapping[str, Any]  # a table of the file
Size = int | str  # bytes, or text such as "64KiB"


@dataclass(frozen=True, kw_only=True)
class _Hardware:
    members: list[Any] = field(default_factory=list)
    disks: int = 0
    model: str = "hdd"
    layout: str
    disk_size: Size = ""
    chunk: Size = ""
    log_size: Size = ""
    params: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Array(_Hardware):
    controller: Size = ""
    unsafe_no_stripe_locks: bool = False
    prefilled: bool = True
    settings: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _ArrayOfPool(_Hardware):
    name: str
    settings: Values = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Load(Source):
    verify: bool = False
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class _Report:
    section: float = 0.0
    warm_up: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Pool:
    settings: Values = field(default_factory=dict)
    prefilled: bool = True
    verify: bool = False


@dataclass(frozen=True, kw_only=True)
class _Volume:
    name: str
    count: int = 0
    array: str
    size: Size = ""


@dataclass(frozen=True, kw_only=True)
class _Tables:
    name: str | None = None
    seed: int = 0
    array: Values = field(default_factory=dict)
    load: Values = field(default_factory=dict)
    report: Values = field(default_factory=dict)
    events: list[Values] = field(default_factory=list)
    network: Values | None = None


@dataclass(frozen=True, kw_only=True)
class _TablesOfPool:
    name: str | None = None
    seed: int = 0
    pool: Values = field(default_factory=dict)
    report: Values = field(default_factory=dict)
    arrays: list[Values] = field(default_factory=list)
    volumes: list[Values] = field(default_factory=list)
    loads: list[Values] = field(default_factory=list)
    events: list[Values] = field(default_factory=list)


def _read(kind: type[T], place: str, values: Values, own: str = "", **renamed: str) -> T:
    """Return *values* as a *kind*, a dataclass whose fields are the keys, but for those *renamed*.

    The field *own* is no key. Errors name the place and the nearest known key. Raises UsageError.
    """
    table: Any = kind  # a dataclass
    hints, keys = hints_of(table), {name: key for key, name in renamed.items()}
    first = kind.__annotations__  # a base class comes behind what is more special
    ordered = sorted(fields(table), key=lambda field: field.name not in first)
    known = {keys.get(one.name, one.name): one for one in ordered if one.name != own}
    taken: Figures = {}
    for key, one in known.items():
        value, hint = values.get(key), hints[one.name]
        if key in values:
            if not fits(value, hint):
                if isinstance(value, list) and hint == list[Values]:
                    raise UsageError(f"{place}: {key} is a list of tables, written [[{key}]]")
                options = [o for o in get_args(hint) if get_origin(hint) is UnionType] or [hint]
                words = [_WORDS[get_origin(o) or o] for o in options if o is not NoneType]
                raise UsageError(f"{place}: {key} is {words[-1]}, not {value!r}")
            taken[one.name] = float(value) if type(value) is int and fits(0.5, hint) else value
        elif one.default is MISSING and one.default_factory is MISSING:
            raise UsageError(f"{place}: {key} is missing", action=f"add {key} = ...")
    for key in [key for key in values if key not in known]:
        with _named(place):
            raise unknown("key", key, known)
    return kind(**taken)


def _bytes(size: Size, default: int = 0) -> int:
    if isinstance(size, str):
        return parse_size(size) if size else default
    return size


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Name the *place* in what is wrong there."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"{place}: {error.message}", action=error.action, reason=error.reason
        ) from None


Changes = Sequence[tuple[Sequence[str], Any]]  # (path of keys, value), see `SweepRun`


def _changed(values: Figures, path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of *values*, tables of a file, with *value* at *path*. Raises UsageError."""
    values = copy.deepcopy(values)
    table: Any = values
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise UsageError(f"{'.'.join(path)}: {name} is not a table of the file")
    table[path[-1]] = value
    return values


def parse_experiment(
    text: str,
    name: str = "experiment",
    folder: str = "",
    seed: int | None = None,
    changes: Changes = (),
    part: int = 0,
) -> Experiment | PoolExperiment:
    """Return the experiment that *text* describes, checked as far as possible without running it.

    *name* is used in messages, and in the result if *text* has no name. Paths of traces are
    relative to *folder*. *seed* overrides the seed of *text*, *changes* other values of it. Of a
    trace of which only so many requests are used, those of *part* are, from 0 on. Raises
    UsageError.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: not TOML: {error}") from None
    for path, value in changes:
        values = _changed(values, path, value)
    if "arrays" in values:
        return _pool(_read(_TablesOfPool, name, values), name, folder, seed, part)
    top = _read(_Tables, name, values)
    seed = top.seed if seed is None else seed
    events = [_event(f"{name} [[events]] {n}", row) for n, row in enumerate(top.events, 1)]
    network = None
    if top.network is not None:
        network = _read(NetworkModel, f"{name} [network]", top.network)
        with _named(f"{name} [network]"):
            network.check()
    if network is None and any(event.do == "lose" for event in events):
        raise UsageError(f"{name}: only a server can be lost", action="add a table [network]")
    load = _load(_Load, f"{name} [load]", top.load, folder)
    array = _read(_Array, f"{name} [array]", top.array)
    report = _read(_Report, f"{name} [report]", top.report)
    experiment = Experiment(
        **_hardware(array, f"{name} [array]"),
        name=name if top.name is None else top.name,
        controller_bytes=_bytes(array.controller),
        stripe_locks=not array.unsafe_no_stripe_locks,
        prefilled=array.prefilled,
        load=_part_of(load, seed, part).load,
        requests=load.requests,
        seconds=None if load.seconds is None or load.rate_s else load.seconds / load.speed,
        depth=load.depth or None,
        verify=load.verify,
        events=events,
        section_s=report.section,
        warm_up_s=report.warm_up,
        seed=seed,
        network=network,
    )
    with _named(name):
        experiment.check()
    return experiment


def _pool(
    top: _TablesOfPool, name: str, folder: str, seed: int | None, part: int
) -> PoolExperiment:
    seed = top.seed if seed is None else seed
    arrays = []
    for number, row in enumerate(top.arrays, 1):
        place = f"{name} [[arrays]] {number}"
        array = _read(_ArrayOfPool, place, row)
        arrays.append(Hardware(name=array.name, **_hardware(array, place)))
    volumes: list[PoolVolume] = []
    for number, row in enumerate(top.volumes, 1):
        volumes += _volumes(f"{name} [[volumes]] {number}", row)
    loads: list[VolumeLoad] = []
    for number, row in enumerate(top.loads, 1):
        place, names = f"{name} [[loads]] {number}", [one.name for one in volumes]
        loads += _loads(place, row, names, folder, seed + len(loads), part)
    events = [_event(f"{name} [[events]] {n}", row) for n, row in enumerate(top.events, 1)]
    pool = _read(_Pool, f"{name} [pool]", top.pool)
    experiment = PoolExperiment(
        name=name if top.name is None else top.name,
        arrays=arrays,
        volumes=volumes,
        loads=loads,
        settings=_texts(pool.settings),
        prefilled=pool.prefilled,
        verify=pool.verify,
        events=events,
        section_s=_read(_Report, f"{name} [report]", top.report, "warm_up").section,
        seed=seed,
    )
    with _named(name):
        experiment.check()
    return experiment


def _volumes(place: str, row: Values) -> list[PoolVolume]:
    volume = _read(_Volume, place, row)
    count, size_bytes = volume.count, _bytes(volume.size)
    if not 0 <= count <= VOLUMES_MAX or size_bytes <= 0:
        raise UsageError(f"{place}: a volume needs a size; count is 1 to {VOLUMES_MAX}")
    names = [f"{volume.name}{number}" for number in range(count)] if count else [volume.name]
    return [PoolVolume(name=one, array=volume.array, size_bytes=size_bytes) for one in names]


def _loads(
    place: str, row: Values, names: Sequence[str], folder: str, seed: int, part: int
) -> list[VolumeLoad]:
    """Return one load for each of the volumes *names* that are meant, with seeds from *seed* on."""
    load = _load(VolumeLoad, place, row, folder)
    meant = fnmatch.filter(names, load.volume)
    if not meant:
        raise UsageError(
            f"{place}: no volume is called {load.volume!r}", action=f"known: {', '.join(names)}"
        )
    if not 0 <= load.begin_s < 1e9:
        raise UsageError(f"{place}: a load cannot begin at {load.begin_s} s")
    return [
        replace(_part_of(load, seed + number, part), volume=name)
        for number, name in enumerate(meant)
    ]


class _Fields(TypedDict):
    """The fields that `Experiment` and `Hardware` share."""

    layout: str
    members: Sequence[str]
    member_bytes: int
    chunk_bytes: int
    log_bytes: int | None
    params: Values
    settings: Mapping[str, str]


def _hardware(array: _Array | _ArrayOfPool, place: str) -> _Fields:
    members, disks = array.members, array.disks
    if bool(members) == bool(disks):
        raise UsageError(f"{place}: give either disks (how many) or members (a list)")
    if not all(isinstance(member, str) for member in members):
        raise UsageError(f"{place}: members is a list of models, such as 'ssd'")
    if not members and not 1 <= disks <= 255:
        raise UsageError(f"{place}: disks must be 1 to 255, not {disks}")
    return {
        "layout": array.layout,
        "members": members or [array.model] * disks,
        "member_bytes": _bytes(array.disk_size, MEMBER_BYTES),
        "chunk_bytes": _bytes(array.chunk, 64 << 10),
        "log_bytes": _bytes(array.log_size) or None,
        "params": array.params,
        "settings": _texts(array.settings),
    }


def _texts(settings: Values) -> dict[str, str]:
    return {key: str(value) for key, value in settings.items()}


L = TypeVar("L", _Load, VolumeLoad)


def _part_of(load: L, seed: int, part: int) -> L:
    """Return *load* as repetition number *part* has it: a trace goes on where the last one ended.

    Repetitions of a whole trace differ in the angles of the disks only.
    """
    if load.is_generated or load.requests is None:
        return replace(load, seed=seed)
    return replace(load, seed=seed, skip=load.skip + part * load.requests)


def _load(kind: type[L], place: str, row: Values, folder: str) -> L:
    names = {"source": "name", "rate": "rate_s", "volumes": "volume", "begin": "begin_s"}
    load = _read(kind, place, row, "seed", **names)
    limits = load.requests or 0, load.depth, load.seconds or 0, load.rate_s or 0
    if min(limits) < 0:
        raise UsageError(f"{place}: requests, seconds, rate and depth are not negative")
    load = replace(load, rate_s=load.rate_s or None)
    if not load.is_generated:
        # A pipe is read here: the processes that run the parts of a sweep cannot open it.
        load = replace(load, name=str(regular_file(Path(folder, load.name))))
    with _named(place):
        load.check()
    return load


def _event(place: str, row: Values) -> Event:
    event = _read(Event, place, row, at="at_s", seconds="for_s")
    with _named(place):
        event.check()
    return event


RUNS_MAX = 100_000


@dataclass(frozen=True)
class Axis:
    """A key of the file, as a path, and the values that it takes."""

    key: str
    path: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class SweepRun:
    """One run: the *text* of the file, its *name* and *folder*, *changes* (path, value), *seed*.

    *part*: how many parts of a trace are left out before: those of the repetitions before.
    *records*: its result has every request, too.
    """

    text: str
    name: str
    folder: str
    changes: tuple[tuple[tuple[str, ...], Any], ...] = ()
    seed: int | None = None
    part: int = 0
    labels: Figures = field(default_factory=dict)
    records: bool = False


def parse_axis(text: str) -> Axis:
    """Return the axis that KEY=a,b,c describes. Raises UsageError."""
    key, _, listed = text.partition("=")
    values = [value.strip() for value in listed.split(",")]
    if not key.strip() or not all(values):
        raise UsageError(f"--sweep {text!r}: not KEY=a,b,c", action="e.g. load.rate=50,100")
    return Axis(key.strip(), _path(key, f"--sweep {text!r}"), tuple(map(_value, values)))


def parse_baseline(text: str) -> Axis:
    """Return the one value that KEY=VALUE describes; it may have commas. Raises UsageError."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise UsageError(f"--baseline {text!r}: not KEY=VALUE", action="e.g. array.layout=raid5")
    return Axis(key, _path(key, f"--baseline {text!r}"), (_value(value),))


def _path(key: str, option: str) -> tuple[str, ...]:
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise UsageError(
            f"{option}: {key.strip()!r} is no key", action="write it as in the file, quotes too"
        ) from None
    path = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        path.append(name)
    return tuple(path)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def runs_of(
    specs: Sequence[SweepRun], axes: Sequence[Axis], repeat: int, seed: int | None
) -> list[SweepRun]:
    """Return the runs of *specs*, each changed by every combination of *axes*, *repeat* times.

    All are checked as far as is possible without running them. Raises UsageError.
    """
    combinations = list(itertools.product(*(axis.values for axis in axes)))
    if len(specs) * len(combinations) * repeat > RUNS_MAX:
        raise UsageError(f"a sweep has at most {RUNS_MAX} runs")
    runs = []
    for spec in specs:
        for values in combinations:
            changes = tuple((axis.path, v) for axis, v in zip(axes, values, strict=True))
            labels = {axis.key: v for axis, v in zip(axes, values, strict=True)}
            run = replace(spec, changes=changes, seed=seed, labels=labels)
            first = experiment_of(run).seed
            runs += [replace(run, seed=first + number, part=number) for number in range(repeat)]
    return runs


Pairs = Sequence[tuple[int, int]]  # places in a list of runs: (baseline, what is compared with it)


def with_baseline(
    runs: Sequence[SweepRun], baseline: Sequence[Axis]
) -> tuple[list[SweepRun], Pairs]:
    """Return *runs*, and for each the same with the values of *baseline*, which ones are pairs.

    The two runs of a pair have one seed: the same requests on disks that turn alike. What both
    sides of a pair share is run once. Raises UsageError.
    """
    made: list[SweepRun] = []
    places: dict[tuple[object, ...], int] = {}
    pairs = []

    def place_of(run: SweepRun) -> int:
        last = {path: str(value) for path, value in run.changes}
        key = run.name, run.seed, run.part, tuple(sorted(last.items()))
        if key not in places:
            experiment_of(run)  # a wrong key is said before anything runs
            places[key] = len(made)
            made.append(run)
        return places[key]

    for run in runs:
        own = {axis.key: _value_at(run, axis.path) for axis in baseline}
        ours = replace(run, labels=run.labels | own)
        changes = *run.changes, *((axis.path, axis.values[0]) for axis in baseline)
        labels = run.labels | {axis.key: axis.values[0] for axis in baseline}
        theirs = replace(run, changes=changes, labels=labels)
        pairs.append((place_of(theirs), place_of(ours)))
    return made, pairs


def _value_at(run: SweepRun, path: Sequence[str]) -> Any:
    """Return the value that *run* has at *path* of its file; "": none, so the default."""
    values: Any = tomllib.loads(run.text)
    for changed, value in run.changes:
        values = _changed(values, changed, value)
    for name in path:
        values = values.get(name, "") if isinstance(values, dict) else ""
    return values


def experiment_of(run: SweepRun) -> Experiment | PoolExperiment:
    return parse_experiment(run.text, run.name, run.folder, run.seed, run.changes, run.part)


def compute_run(run: SweepRun, recorder: Recorder | None = None) -> Figures:
    """Carry out *run* in virtual time; return its result with its provenance.

    That is "version" of raidx, "spec" (the file), "spec_sha256" of its text, "seed" and "sweep".
    "distribution" and "records" are those of `Recorder`.
    """
    experiment = experiment_of(run)
    recorder = Recorder() if recorder is None else recorder
    result = simulate(experiment, recorder)
    if run.records:
        result["records"] = recorder.records()
    return {
        **result,
        "distribution": recorder.distribution(),
        "version": VERSION,
        "spec": run.name,
        "spec_sha256": sha256(run.text.encode()).hexdigest(),
        "seed": experiment.seed,
        "sweep": run.labels,
    }


def points(results: Sequence[Figures]) -> list[Figures]:
    """Return one entry for each point: "name", "sweep", "runs", and "measures".

    A measure has the "mean" over the repetitions, its standard error "se" and "half" of its 95 %
    interval (None for one run).
    """
    return [
        {
            "name": group[0]["name"],
            "sweep": group[0]["sweep"],
            "runs": len(group),
            "measures": {name: _mean(values) for name, values in _columns(group).items()},
        }
        for group in grouped(results)
    ]


def _columns(results: Sequence[Figures]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for result in results:
        for name, value, _format in measures(result):
            columns.setdefault(name.strip(), []).append(value)
    return columns


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    found = estimate(values)
    error = None if found.half is None else statistics.stdev(values) / found.n**0.5
    return {"mean": found.mean, "se": error, "half": found.half}


def differences(results: Sequence[Figures], pairs: Pairs) -> list[Figures]:
    """Return one entry for each point that has a baseline: "name", "sweep", "runs", "measures".

    *pairs* are places in *results*, which may lack the last ones. "baseline" has the values that
    differ. A measure has the means "baseline" and "ours", the paired "difference" with "low" and
    "high" of its 95 % interval (None for one run), and "percent", the same as (mean, low, high).
    """
    there = [pair for pair in pairs if max(pair) < len(results)]
    place_of = {id(results[ours]): results[theirs] for theirs, ours in there}
    made = []
    for group in grouped([results[ours] for _, ours in there]):
        base = [place_of[id(result)] for result in group]
        ours, theirs = _columns(group), _columns(base)
        swept = group[0]["sweep"]
        made.append(
            {
                "name": group[0]["name"],
                "sweep": swept,
                "baseline": {k: v for k, v in base[0]["sweep"].items() if v != swept[k]},
                "runs": len(group),
                "measures": {
                    name: _compared(theirs[name], values)
                    for name, values in ours.items()
                    if len(theirs.get(name, ())) == len(values) == len(group)
                },
            }
        )
    return made


def _compared(theirs: Sequence[float], ours: Sequence[float]) -> Figures:
    found, share = difference(theirs, ours), percent(theirs, ours)
    return {
        "baseline": statistics.fmean(theirs),
        "ours": statistics.fmean(ours),
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "percent": list(share) if share and found.half is not None else None,
    }
