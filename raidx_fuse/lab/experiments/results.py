"""Results of experiments, compared: the rows of a table and of a CSV file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
