"""The JSON Schemas of all documents that commands print under ``--json``.

They are files in schemas/, one for each command, and what several have in common in shared.json.
The keyword *unit* is ours: the unit of a number; "number" is one that only names something, "count"
one without a unit. A test holds real documents of every command against them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas"
SHARED = "shared"
_REFERENCE = re.compile(r'"#/\$defs/(\w+)"')


def schema_names() -> list[str]:
    """Return the commands that have a schema, and "error" for any command that fails."""
    files = (path.stem for path in FOLDER.glob("*.json") if path.stem != SHARED)
    return sorted(_command(stem) for stem in files)


def _command(stem: str) -> str:
    group, dash, verb = stem.partition("-")
    return f"{group} {verb}" if dash and group in ("layout", "volume", "array", "lab") else stem


def _read(stem: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((FOLDER / f"{stem}.json").read_text())
    return schema


def schema_of(name: str) -> dict[str, Any]:
    """Return the schema of a command, one of `schema_names`, with all that it refers to."""
    schema = _read(name.replace(" ", "-"))
    shared = _read(SHARED)["$defs"]
    wanted: set[str] = set()
    found = set(_REFERENCE.findall(json.dumps(schema)))
    while found - wanted:
        wanted |= found
        found = set(_REFERENCE.findall(json.dumps([shared[each] for each in sorted(wanted)])))
    return (
        {**schema, "$defs": {name: shared[name] for name in sorted(wanted)}} if wanted else schema
    )
