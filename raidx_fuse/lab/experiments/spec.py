"""Experiments as TOML files: the format that `raidx simulate` reads.

name = "a disk fails"
seed = 1

[array]
layout = "raid5"
disks = 5                        # or members = ["hdd", "hdd", "ssd"]
model = "hdd,seek_ms=4"          # a preset, with numbers by hand
disk_size = "1GiB"
chunk = "64KiB"
prefilled = true                 # every chunk counts as written
settings = { journal = "none", "parity.policy" = "rmw" }
params = {}                      # parameters of the layout

[load]
source = "financial1"            # a generated load, or the path of a trace
requests = 50000                 # and/or seconds = 600
speed = 2.0                      # or rate = 140 (requests a second)
fit = "scale"                    # addresses: fold, scale or none
depth = 16                       # as fast as possible, 16 requests at a time
verify = true                    # compare reads with what was written
numbers = { read_share = 0.5 }   # change numbers of a generated load

[[events]]
at = 30
do = "fail"                      # fail, replace, spare, add, restripe, scrub, tune, set
disk = 2

[report]
section = 10                     # also report every 10 seconds
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, TypeVar

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments.events import Event
from raidx_fuse.lab.experiments.simulate import MEMBER_BYTES, Experiment
from raidx_fuse.lab.loads.source import Source
from raidx_fuse.units import parse_size

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {list: "a list", dict: "a table"}


class _Table:
    """A table of the file. Its keys are taken one by one; a key that nobody takes is an error."""

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

    def table(self, key: str) -> _Table:
        """Return the table below *key*, empty if there is none."""
        return _Table(f"{self.place} [{key}]", self.take(key, dict, {}))

    def tables(self, key: str) -> list[_Table]:
        """Return the tables of the list *key*."""
        rows = self.take(key, list, [])
        if not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"{self.place}: {key} is a list of tables, written [[{key}]]")
        return [_Table(f"{self.place} [[{key}]] {n}", row) for n, row in enumerate(rows, 1)]

    def end(self) -> None:
        """Raise UsageError if the table has a key that was not taken."""
        for key in self._values:
            near = get_close_matches(key, self._known, 1)
            action = f"did you mean {near[0]}?" if near else f"known: {', '.join(self._known)}"
            raise UsageError(f"{self.place}: unknown key {key!r}", action=action)


def parse_experiment(
    text: str, name: str = "experiment", folder: str = "", seed: int | None = None
) -> Experiment:
    """Return the experiment that *text* describes, checked as far as possible without running it.

    *name* is used in messages, and in the result if *text* has no name. Paths of traces are
    relative to *folder*. *seed* overrides the seed of *text*. Raises UsageError.
    """
    try:
        top = _Table(name, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: not TOML: {error}") from None
    title = top.take("name", str, name)
    own_seed = top.take("seed", int, 0)
    seed = own_seed if seed is None else seed
    array, load, report = top.table("array"), top.table("load"), top.table("report")
    events = [_event(table) for table in top.tables("events")]
    top.end()
    source, depth, verify = _source(load, folder, seed)
    own_members = array.take("members", list, [])
    disks, model = array.take("disks", int, 0), array.take("model", str, "hdd")
    experiment = Experiment(
        name=title,
        layout=array.must("layout", str, ""),
        members=own_members or [model] * disks,
        member_bytes=array.size("disk_size", MEMBER_BYTES),
        chunk_bytes=array.size("chunk", 64 << 10),
        params=array.take("params", dict, {}),
        settings={k: str(v) for k, v in array.take("settings", dict, {}).items()},
        prefilled=array.take("prefilled", bool, True),
        load=source.load,
        depth=depth or None,
        verify=verify,
        events=events,
        section_s=report.take("section", float, 0.0),
        seed=seed,
    )
    array.end()
    report.end()
    _check_members(array, own_members, disks)
    return experiment


def _check_members(array: _Table, members: list[Any], disks: int) -> None:
    if bool(members) == bool(disks):
        raise UsageError(f"{array.place}: give either disks (how many) or members (a list)")
    if not all(isinstance(member, str) for member in members):
        raise UsageError(f"{array.place}: members is a list of models, such as 'ssd'")
    if not members and not 1 <= disks <= 255:
        raise UsageError(f"{array.place}: disks must be 1 to 255, not {disks}")


def _source(load: _Table, folder: str, seed: int) -> tuple[Source, int, bool]:
    """Return the load, its depth (0: open loop) and whether it is verified."""
    name = load.must("source", str, "")
    requests, depth = load.take("requests", int, 0), load.take("depth", int, 0)
    seconds, rate_s = load.take("seconds", float, 0.0), load.take("rate", float, 0.0)
    source = Source(
        name=name,
        requests=requests or None,
        seconds=seconds or None,
        speed=load.take("speed", float, 1.0),
        rate_s=rate_s or None,
        fit=load.take("fit", str, "fold"),
        seed=seed,
        numbers=load.take("numbers", dict, {}),
    )
    verify = load.take("verify", bool, False)
    load.end()
    if min(requests, depth, seconds, rate_s) < 0:
        raise UsageError(f"{load.place}: requests, seconds, rate and depth are not negative")
    if not source.is_generated:
        source = source.at(str(PurePath(folder, name)))
    try:
        source.check()
    except UsageError as error:
        raise UsageError(f"{load.place}: {error.message}", action=error.action) from None
    return source, depth, verify


def _event(table: _Table) -> Event:
    event = Event(
        at_s=table.must("at", float, 0.0),
        do=table.must("do", str, ""),
        disk=table.take("disk", int, -1),
        model=table.take("model", str, ""),
        count=table.take("count", int, 1),
        key=table.take("key", str, ""),
        value=str(table.take("value", str, "")),
    )
    table.end()
    try:
        event.check()
    except UsageError as error:
        raise UsageError(f"{table.place}: {error.message}", action=error.action) from None
    return event
