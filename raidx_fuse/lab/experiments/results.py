"""Results of experiments, compared, and as a file for other programs: CSV or Parquet.

Parquet needs the extra `parquet`.

Every row says where it comes from: version of raidx, file and its hash, seed, and swept values. A
Parquet file has that of all its runs once more in its metadata, under `raidx`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from raidx_fuse.errors import Reason, UsageError

Result = dict[str, Any]

COUNTS = ("requests", "reads", "writes", "read_bytes", "write_bytes", "seconds", "rate")
PROVENANCE = ("version", "spec", "spec_sha256", "seed")
KINDS = ("response_ms", "read_ms", "write_ms")
PARITY = ("pre_reads", "rmw", "rcw", "full_stripe", "degraded_reads")


def _parts(result: Result) -> list[Result]:
    """Return the arrays of a result: itself, unless the experiment had several (pool_parts.py)."""
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
    """Return the rows of a table: the name of a measure, then its value in each experiment."""
    columns = [{name: format(value, how) for name, value, how in measures(r)} for r in results]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "") for column in columns)] for name in names]
    base = results[0]["response_ms"]["mean"]
    if len(results) > 1 and base:
        shares = [f"{result['response_ms']['mean'] / base - 1:+.1%}" for result in results]
        rows.insert(3, ["  against the first", *shares])
    return rows


def csv_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one row for each experiment (*from_s* empty) and one for each of its sections.

    Rows end with where the figures come from: version, file and its hash, seed, and swept values.
    """
    rows = []
    for result in results:
        origin = {name: result[name] for name in PROVENANCE if name in result}
        origin |= result.get("sweep", {})
        rows.append({"experiment": result["name"], "from_s": "", **_flat(result), **origin})
        for section in result["sections"]:
            first = {"experiment": result["name"], "from_s": section["from_s"]}
            rows.append({**first, **_flat(section), **origin})
    return rows


def _flat(part: Result) -> dict[str, Any]:
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
    """Return whether *path* gets Parquet; every other file gets CSV."""
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


def origin_of(result: Result) -> dict[str, Any]:
    swept: dict[str, Any] = result.get("sweep", {})
    return {name: result[name] for name in PROVENANCE if name in result} | swept


def write_rows(path: str, rows: Sequence[Mapping[str, Any]], results: Sequence[Result]) -> None:
    """Write *rows*, made of *results*, to *path*; an absent value is empty. Raises UsageError."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if is_parquet(path):
        columns = {
            name: [None if row.get(name) == "" else row.get(name) for row in rows] for name in names
        }
        _write_parquet(path, [columns], results)
        return
    _write_csv(path, names, ([row.get(name, "") for name in names] for row in rows))


def write_records(path: str, results: Sequence[Result]) -> None:
    """Write one row for each request of *results*, whose "records" are there.

    *at_s* is its arrival, from the start of the load. Raises UsageError.
    """
    parts = []
    for result in results:
        count = len(result["records"]["at_s"])
        said = {"experiment": result["name"], **origin_of(result)}
        parts.append({**{n: [v] * count for n, v in said.items()}, **result["records"]})
    if is_parquet(path):
        _write_parquet(path, parts, results)
        return
    names = list(dict.fromkeys(name for part in parts for name in part))

    def rows() -> Iterator[Sequence[Any]]:
        for part in parts:
            count = len(part["at_s"])
            yield from zip(*(part.get(name, [""] * count) for name in names), strict=True)

    _write_csv(path, names, rows())


def _write_csv(path: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    try:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows(rows)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _write_parquet(
    path: str, parts: Sequence[Mapping[str, Any]], results: Sequence[Result]
) -> None:
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
