"""Sweeps: one experiment for every combination of values, repeated with other seeds.

    raidx simulate SPEC --sweep array.layout=raid5,rdp --sweep load.rate=50,100 --repeat 3

A key is a path of TOML keys; one with dots in itself is quoted, as in the file:
``array.settings."parity.policy"=rmw,rcw``. A run is a plain value (`SweepRun`), so that it can be
computed elsewhere (workers.py). Repetition r has the seed of the experiment plus r.
"""

from __future__ import annotations

import itertools
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.experiments.pool import simulate_pool
from raidx_fuse.lab.experiments.pool_parts import PoolExperiment
from raidx_fuse.lab.experiments.results import measures
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.experiments.spec import parse_experiment
from raidx_fuse.lab.loads.record import Recorder
from raidx_fuse.version import VERSION

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

    *records*: its result has every request, too.
    """

    text: str
    name: str
    folder: str
    changes: tuple[tuple[tuple[str, ...], Any], ...] = ()
    seed: int | None = None
    repetition: int = 0
    labels: dict[str, Any] = field(default_factory=dict)
    records: bool = False


def parse_axis(text: str) -> Axis:
    """Return the axis that KEY=a,b,c describes. Raises UsageError."""
    key, equals, listed = text.partition("=")
    key = key.strip()
    values = [value.strip() for value in listed.split(",")]
    if not equals or not key or not all(values):
        raise UsageError(f"--sweep {text!r}: not KEY=a,b,c", action="e.g. load.rate=50,100")
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise UsageError(
            f"--sweep {text!r}: {key!r} is no key", action="write it as in the file, quotes too"
        ) from None
    path = []
    while isinstance(table, dict):
        ((name, table),) = table.items()
        path.append(name)
    return Axis(key, tuple(path), tuple(map(_value, values)))


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
            run = SweepRun(spec.text, spec.name, spec.folder, changes, seed, 0, labels)
            first = experiment_of(run).seed
            for number in range(repeat):
                runs.append(
                    SweepRun(
                        *(spec.text, spec.name, spec.folder, changes),
                        *(first + number, number, labels),
                    )
                )
    return runs


def experiment_of(run: SweepRun) -> Experiment | PoolExperiment:
    """Return the experiment of *run*. Raises UsageError."""
    return parse_experiment(run.text, run.name, run.folder, run.seed, run.changes)


def compute_run(run: SweepRun, recorder: Recorder | None = None) -> dict[str, Any]:
    """Carry out *run* in virtual time; return its result with its provenance.

    That is "version" of raidx, "spec" (the file), "spec_sha256" of its text, "seed" and "sweep".
    "distribution" and "records" are those of `Recorder`.
    """
    experiment = experiment_of(run)
    recorder = Recorder() if recorder is None else recorder
    if isinstance(experiment, PoolExperiment):
        result = simulate_pool(experiment, recorder)
    else:
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


def points(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each point: "name", "sweep", "runs", and "measures".

    A measure has the "mean" over the repetitions and its standard error "se" (None for one run).
    """
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        key = (result["spec"], result["name"], *map(str, result["sweep"].values()))
        grouped.setdefault(key, []).append(result)
    made = []
    for group in grouped.values():
        columns: dict[str, list[float]] = {}
        for result in group:
            for name, value, _format in measures(result):
                columns.setdefault(name.strip(), []).append(value)
        made.append(
            {
                "name": group[0]["name"],
                "sweep": group[0]["sweep"],
                "runs": len(group),
                "measures": {name: _mean(values) for name, values in columns.items()},
            }
        )
    return made


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    error = None
    if len(values) > 1:
        error = statistics.stdev(values) / len(values) ** 0.5
    return {"mean": statistics.fmean(values), "se": error}
