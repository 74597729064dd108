"""Results as a file for other programs: CSV, or Parquet with the extra `parquet`.

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
from raidx_fuse.lab.experiments.results import PROVENANCE, Result


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
