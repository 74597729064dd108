"""Results of experiments: compared, drawn, and as a file for other programs: CSV or Parquet.

Every row of figures says where it comes from: version of raidx, file and its hash, seed, and swept
values. A table of requests has the number of the run in its rows, and says once for each run where
it comes from: a CSV in lines before it that begin with ``#``, a Parquet file in its metadata, under
`raidx`, as one of figures does, too. Plots show response times and queue lengths over time and over
what is swept, how they are distributed, and the load of each member. pyarrow and matplotlib are
extras (``pip install 'raidx-fuse[parquet,plots]'``), imported only when they are needed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate, pairwise
from math import log10, nan
from pathlib import Path
from typing import Any, NamedTuple

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.lab.experiments.intervals import estimate
from raidx_fuse.lab.loads.drive import Figures as Result

COUNTS = ("requests", "reads", "writes", "read_bytes", "write_bytes", "seconds", "rate")
PROVENANCE = ("version", "spec", "spec_sha256", "seed")
KINDS = ("response_ms", "read_ms", "write_ms")
PARITY = ("pre_reads", "rmw", "rcw", "full_stripe", "degraded_reads")


def _parts(result: Result) -> list[Result]:
    parts: list[Result] = result.get("arrays", [result])
    return parts


def members_of(result: Result) -> list[tuple[int, Result]]:
    """Return (number, member) of all members: the role, behind the members of earlier arrays."""
    found: list[tuple[int, Result]] = []
    for part in _parts(result):
        first = found[-1][0] + 1 if found else 0
        found += [(first + member["role"], member) for member in part["members"]]
    return found


def measures(result: Result) -> Iterator[tuple[str, float, str]]:
    """Yield (name, value, format) of the measures by which experiments are compared."""
    yield "requests", result["requests"], "d"
    yield "requests/s", result["rate"], ".1f"
    yield "response mean, ms", result["response_ms"]["mean"], ".3f"
    for name in ("p50", "p95", "p99", "max"):
        yield f"  {name}", result["response_ms"][name], ".3f"
    yield "reads mean, ms", result["read_ms"]["mean"], ".3f"
    yield "writes mean, ms", result["write_ms"]["mean"], ".3f"
    members = [member for _, member in members_of(result)]
    yield "member reads", sum(member["reads"] for member in members), "d"
    yield "member writes", sum(member["writes"] for member in members), "d"
    for name in PARITY:
        yield name.replace("_", " "), sum(part["array"][name] for part in _parts(result)), "d"
    busy = [member["utilisation"] for member in members]
    yield "busiest member, %", 100 * max(busy), ".1f"
    yield "  members' mean, %", 100 * sum(busy) / len(busy), ".1f"
    yield "longest mean queue", max(member["queue_mean"] for member in members), ".3f"
    if "network" in result:
        yield "network, MiB", result["network"]["bytes"] / (1 << 20), ".1f"
        yield "network busy, s", result["network"]["busy_s"], ".3f"
    yield "failed", result["failed"], "d"
    if result["held_back"]:
        yield "held back", result["held_back"], "d"
    if "verified_bytes" in result:
        yield "verified, MiB", result["verified_bytes"] / (1 << 20), ".1f"
        yield "wrong", len(result["wrong"]), "d"


def comparison(results: Sequence[Result]) -> list[list[str]]:
    columns = [{name: format(value, how) for name, value, how in measures(r)} for r in results]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "") for column in columns)] for name in names]
    base = results[0]["response_ms"]["mean"]
    if len(results) > 1 and base:
        shares = [f"{result['response_ms']['mean'] / base - 1:+z.1%}" for result in results]
        rows.insert(3, ["  against the first", *shares])
    return rows


def csv_rows(results: Sequence[Result]) -> list[Result]:
    """Return one row for each experiment (*from_s* empty) and one for each of its sections.

    Rows end with where the figures come from: version, file and its hash, seed, and swept values.
    """
    rows = []
    for result in results:
        origin = origin_of(result)
        rows.append({"experiment": result["name"], "from_s": "", **_flat(result), **origin})
        for section in result["sections"]:
            first = {"experiment": result["name"], "from_s": section["from_s"]}
            rows.append({**first, **_flat(section), **origin})
    return rows


def _flat(part: Result) -> Result:
    row = {name: part[name] for name in COUNTS}
    for kind in KINDS:
        row |= {f"{kind}_{name}": value for name, value in part[kind].items()}
    operations = part.get("member_operations")
    queues = part.get("member_queues")
    if operations is None:
        members = [] if "from_s" in part else [member for _, member in members_of(part)]
        operations = [member["reads"] + member["writes"] for member in members]
        queues = [member["queue_mean"] for member in members]
    for role, (count, queue) in enumerate(zip(operations, queues or (), strict=True)):
        row |= {f"member{role}_operations": count, f"member{role}_queue": queue}
    row |= {f"utilisation_{name}": value for name, value in part.get("utilisation", {}).items()}
    return row


def check_path(path: str) -> None:
    """Raise UsageError if no table can be written to *path*; called before a long run."""
    if is_parquet(path):
        _pyarrow()
    if not Path(path).parent.is_dir():
        raise UsageError(f"{path}: cannot be written: there is no such folder")
    if Path(path).is_dir():
        raise UsageError(f"{path}: cannot be written: it is a folder")


def is_parquet(path: str) -> bool:
    return Path(path).suffix.lower() == ".parquet"


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")  # slow to import
    except ImportError:
        raise UsageError(
            "a Parquet file needs the package pyarrow",
            action="pip install 'raidx-fuse[parquet]', or name a .csv file",
            reason=Reason.NOT_INSTALLED,
        ) from None


def origin_of(result: Result) -> Result:
    swept: Result = result.get("sweep", {})
    return {name: result[name] for name in PROVENANCE if name in result} | swept


def write_rows(path: str, rows: Sequence[Result], results: Sequence[Result]) -> None:
    """Write *rows*, made of *results*, to *path*; an absent value is empty. Raises UsageError."""
    names = dict.fromkeys(name for row in rows for name in row)
    empty = None if is_parquet(path) else ""
    columns = {
        name: [empty if row.get(name, "") == "" else row[name] for row in rows] for name in names
    }
    _write(path, [columns], results)


def write_records(path: str, results: Sequence[Result]) -> None:
    """Write one row for each request of *results*, whose "records" are there.

    *run* is the number of the result, *at_s* the arrival from the start of the load. Where the runs
    come from stands in front. Raises UsageError.
    """
    parts = []
    for run, result in enumerate(results):
        count = len(result["records"]["at_s"])
        said = {"run": run, "experiment": result["name"], **result.get("sweep", {})}
        parts.append({**{n: [v] * count for n, v in said.items()}, **result["records"]})
    head = [
        f"# run {run}: " + ", ".join(f"{name} {value}" for name, value in origin_of(each).items())
        for run, each in enumerate(results)
    ]
    _write(path, parts, results, head)


Columns = Mapping[str, Sequence[object]]


def _write(
    path: str, parts: Sequence[Columns], results: Sequence[Result], head: Sequence[str] = ()
) -> None:
    """Write a table, a CSV behind the lines *head*."""
    if is_parquet(path):
        _write_parquet(path, parts, results)
        return
    names = list(dict.fromkeys(name for part in parts for name in part))
    try:
        with open(path, "w", newline="") as file:
            file.writelines(f"{' '.join(line.split())}\r\n" for line in head)
            writer = csv.writer(file)
            writer.writerow(names)
            for part in parts:
                empty = [""] * len(next(iter(part.values()), ()))
                writer.writerows(zip(*(part.get(name, empty) for name in names), strict=True))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _write_parquet(path: str, parts: Sequence[Columns], results: Sequence[Result]) -> None:
    pyarrow, parquet = _pyarrow()
    origins = json.dumps([origin_of(result) for result in results])
    try:
        tables = [pyarrow.table(dict(part)) for part in parts]
        table = pyarrow.concat_tables(tables, promote_options="permissive")
        parquet.write_table(table.replace_schema_metadata({"raidx": origins}), path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except pyarrow.ArrowException as error:
        raise UsageError(f"{path}: a column has values of several kinds: {error}") from None


INCHES_WIDE = 9.0
NO_CLASSES: Mapping[str, Sequence[float]] = {"edges_ms": (), "reads": (), "writes": ()}
# Of Okabe and Ito: they differ for the colour-blind, too.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "raidx",
    "svg.fonttype": "none",  # text stays text, and the file small
}


@contextmanager
def drawn(path: str, rows: int, inches: tuple[float, float]) -> Iterator[list[Any]]:
    """Yield the axes of *rows* plots, one below the other; draw them into *path* (.png, .svg, ...).

    Raises UsageError if matplotlib is missing, the file type is unknown, or the file cannot be
    written.
    """
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "drawing needs the package matplotlib",
            action="pip install 'raidx-fuse[plots]'",
            reason=Reason.NOT_INSTALLED,
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(rows, 1, figsize=inches, squeeze=False)
        yield [row[0] for row in axes]
        figure.tight_layout()
        # No date in the file: equal results give equal files.
        metadata = {"Date": None} if path.endswith(".svg") else None
        try:
            figure.savefig(path, metadata=metadata, dpi=120)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be drawn: {error}") from None
        pyplot.close(figure)


def grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Return *results* by point: those with the same file, name and swept values."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        swept = map(str, result.get("sweep", {}).values())
        key = (result.get("spec", ""), result["name"], *swept)
        groups.setdefault(key, []).append(result)
    return list(groups.values())


class Drawn(NamedTuple):
    """A point as it is drawn: its *runs*, its *label*, and what is *swept* by short key."""

    runs: Sequence[Result]
    label: str
    swept: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.runs[0]["name"])


def points_drawn(results: Sequence[Result]) -> list[Drawn]:
    """Return the points of *results*, labelled by what differs: swept values, names, or both."""
    groups = grouped(results)
    keys = dict.fromkeys(key for group in groups for key in group[0].get("sweep", {}))
    of = [{key: group[0].get("sweep", {}).get(key, "") for key in keys} for group in groups]
    varied = [key for key in keys if len({str(each[key]) for each in of}) > 1]
    ends = [key.rpartition(".")[2].strip('"') for key in varied]
    short = {
        key: end if ends.count(end) == 1 else key for key, end in zip(varied, ends, strict=True)
    }
    named = not varied or len({group[0]["name"] for group in groups}) > 1
    made = []
    for group, values in zip(groups, of, strict=True):
        swept = {short[key]: values[key] for key in varied}
        words = [group[0]["name"]] if named else []
        words += [f"{key}={value}" for key, value in swept.items()]
        made.append(Drawn(group, ", ".join(words), swept))
    return made


TIMED_MAX = len(COLORS)  # more lines over time are told apart by nobody


def draw_results(results: Sequence[Result], path: str) -> None:
    """Draw *results* of `simulate` into *path*. Raises as `drawn`."""
    points = points_drawn(results)
    timed = [point for point in points if len(point.runs[0]["sections"]) > 1][:TIMED_MAX]
    swept = points[0].swept
    rows = 2 * bool(timed) + bool(swept) + 3
    with drawn(path, rows, (INCHES_WIDE, 3.0 * rows)) as axes:
        left = iter(axes)
        if timed:
            _over_time(next(left), next(left), timed)
        if swept:
            _over_sweep(next(left), points)
        _distributions(next(left), points)
        _boxes(next(left), points)
        _load(next(left), points)


def _over_time(response: Any, queues: Any, points: Sequence[Drawn]) -> None:
    """Draw the first run of each point."""
    for number, point in enumerate(points):
        color, result = f"C{number}", point.runs[0]
        sections = result["sections"]
        edges_s = [*(section["from_s"] for section in sections), result["seconds"]]
        times = [section["response_ms"] for section in sections]
        lengths = [section.get("member_queues") or [nan] for section in sections]
        for axis, word, values, style in (
            (response, "mean", [each["mean"] for each in times], "-"),
            (response, "p99", [each["p99"] for each in times], ":"),
            (queues, "longest", [max(each) for each in lengths], "-"),
            (queues, "mean", [sum(each) / len(each) for each in lengths], ":"),
        ):
            label = f"{point.label}: {word}" if style == "-" else word
            axis.plot(*section_steps(edges_s, values), color=color, linestyle=style, label=label)
        for event in result["events"]:
            for axis in (response, queues):
                axis.axvline(event["at_s"], color=color, alpha=0.4, linewidth=0.8)
            top = response.get_ylim()[1]
            words = event["do"] + (f" {event['disk']}" if "disk" in event else "")
            response.text(event["at_s"], top, words, rotation=90, va="top", fontsize=7)
    response.set_ylabel("response time, ms")
    queues.set_ylabel("queue length")
    for axis in (response, queues):
        axis.set_xlabel("time, s")
        axis.legend(fontsize=7)


WIDE_SWEEP = 20  # a sweep over more than so many times the least value has a logarithmic axis


def _over_sweep(axis: Any, points: Sequence[Drawn]) -> None:
    """Draw means, with 95 % intervals where runs repeat, over one swept key; a line for the others.

    That key is the first whose values are numbers, or the first.
    """
    keys = list(points[0].swept)
    numbers = {key: all(_is_number(point.swept[key]) for point in points) for key in keys}
    key = next((key for key in keys if numbers[key]), keys[0])
    values = list(dict.fromkeys(point.swept[key] for point in points))
    lines: dict[str, list[Drawn]] = {}
    names = {point.name for point in points}
    for point in points:
        beside = [point.name] if len(names) > 1 else []
        beside += [f"{other}={value}" for other, value in point.swept.items() if other != key]
        lines.setdefault(", ".join(beside), []).append(point)
    for number, (words, line) in enumerate(lines.items()):
        x = [p.swept[key] if numbers[key] else values.index(p.swept[key]) for p in line]
        for name, style in (("mean", "-"), ("p99", ":")):
            found = [estimate([run["response_ms"][name] for run in p.runs]) for p in line]
            axis.errorbar(
                x,
                [each.mean for each in found],
                yerr=[each.half or 0.0 for each in found],
                fmt=f"C{number}o{style}",
                markersize=3,
                capsize=3,
                label=f"{words}: {name}" if words else name,
            )
    if not numbers[key]:
        axis.set_xticks(range(len(values)), [str(value) for value in values])
    elif min(values) > 0 and max(values) > WIDE_SWEEP * min(values):
        axis.set_xscale("log")
    count = len(points[0].runs)
    axis.set_xlabel(key)
    axis.set_ylabel(f"response time, ms ({count} runs, 95 %)" if count > 1 else "response time, ms")
    axis.legend(fontsize=7)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def section_steps(
    edges_s: Sequence[float], values: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the points of a line that has each value all through its section.

    Section i lasts from *edges_s* [i] to [i + 1]. A point at the start of each section, joined to
    the next one, would show a peak at the event that ends the section before it.
    """
    times = [at_s for pair in pairwise(edges_s) for at_s in pair]
    return times, [value for value in values for _ in range(2)]


class Classes(NamedTuple):
    """How many *reads* and *writes* took how long: class i from *edges_ms* [i] to [i + 1]."""

    edges_ms: Sequence[float]
    reads: Sequence[int]
    writes: Sequence[int]


def classes_of(runs: Sequence[Result]) -> Classes:
    """Return the distribution of all *runs* of a point together."""
    counts: dict[str, dict[int, int]] = {"reads": {}, "writes": {}}
    for run in runs:
        classes = run.get("distribution", NO_CLASSES)  # that of `sweep.compute_run`
        for kind, found in counts.items():
            for edge, count in zip(classes["edges_ms"], classes[kind], strict=False):
                number = round(10 * log10(edge))  # ten for each power of ten
                found[number] = found.get(number, 0) + int(count)
    numbers = counts["reads"].keys() | counts["writes"].keys()
    if not numbers:
        return Classes((), (), ())
    every = range(min(numbers), max(numbers) + 1)
    reads, writes = ([found.get(number, 0) for number in every] for found in counts.values())
    return Classes([10 ** (n / 10) for n in (*every, every.stop)], reads, writes)


def quantiles(
    edges: Sequence[float], counts: Sequence[int], shares: Sequence[float]
) -> list[float]:
    """Return the values below which are such *shares* of what is counted in classes.

    Within a class the logarithm of the values is taken to be even.

    >>> [round(value, 3) for value in quantiles([1.0, 10.0, 1000.0], [2, 2], [0.25, 0.5, 1.0])]
    [3.162, 10.0, 1000.0]
    """
    sums = list(accumulate(counts, initial=0))
    found = []
    for share in shares:
        wanted = share * sums[-1]
        at = next(n for n in range(len(counts)) if counts[n] and sums[n + 1] >= wanted)
        part = (wanted - sums[at]) / counts[at]
        found.append(edges[at] * (edges[at + 1] / edges[at]) ** part)
    return found


def _distributions(axis: Any, points: Sequence[Drawn]) -> None:
    """Draw which share of the reads, and of the writes, was answered within each time."""
    for number, point in enumerate(points):
        classes = classes_of(point.runs)
        for kind, counts, style in (("reads", classes.reads, "-"), ("writes", classes.writes, ":")):
            sums = list(accumulate(counts, initial=0))
            if sums[-1]:
                shares = [100 * each / sums[-1] for each in sums]
                axis.plot(
                    classes.edges_ms, shares, f"C{number}{style}", label=f"{point.label}: {kind}"
                )
    axis.set_xscale("log")
    axis.set_xlabel("response time, ms")
    axis.set_ylabel("answered within, %")
    if axis.lines:
        axis.legend(fontsize=7)


BOX = {"whislo": 0.05, "q1": 0.25, "med": 0.5, "q3": 0.75, "whishi": 0.95}


def _boxes(axis: Any, points: Sequence[Drawn]) -> None:
    """Draw for each point the times within which 5, 25, 50, 75 and 95 % were answered."""
    boxes: list[dict[str, Any]] = []
    for point in points:
        edges, reads, writes = classes_of(point.runs)
        counts = [a + b for a, b in zip(reads, writes, strict=True)]
        if any(counts):
            found = quantiles(edges, counts, list(BOX.values()))
            boxes.append({"label": point.label, **dict(zip(BOX, found, strict=True))})
    if boxes:
        axis.bxp(boxes, showfliers=False, orientation="horizontal")
        axis.set_xscale("log")
        axis.invert_yaxis()  # the first on top
    axis.set_xlabel("response time, ms: 5, 25, 50, 75, 95 %")


def _load(axis: Any, points: Sequence[Drawn]) -> None:
    width = 0.8 / len(points)
    for number, point in enumerate(points):
        members = members_of(point.runs[0])
        places = [role + (number - (len(points) - 1) / 2) * width for role, _ in members]
        done = [member["reads"] + member["writes"] for _, member in members]
        axis.bar(places, done, width=width, color=f"C{number}", label=point.label)
    axis.set_xlabel("member")
    axis.set_ylabel("operations")
    axis.legend(fontsize=7)
