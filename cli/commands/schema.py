"""`raidx schema`: the JSON Schemas of all documents that commands print under ``--json``.

They are made from types: documents.py has those of documents that programs rely on,
answers.py the others. The keyword *unit* is ours: the unit of a number; "number" is one that only
names something, "count" one without a unit. A test holds real documents of every command against
them.
"""

from __future__ import annotations

import json
import re
from inspect import cleandoc
from types import UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import click

from raidx_fuse import answers, documents
from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output
from raidx_fuse.errors import Reason, unknown

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = re.compile(r'"#/\$defs/(\w+)"')
_WORDS: dict[Any, str] = {
    **{int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"},
    **{list: "array", dict: "object"},
}


Schema = dict[str, Any]


class Shape(NamedTuple):
    """An object with the keys of types; those of *optional* types may be missing."""

    kind: Any
    optional: tuple[Any, ...] = ()


STATUS = Shape(documents.Status, (documents.ArrayStatus, documents.MountStatus))
_DETAILS, _LOSING = Shape(documents.VolumeDetails), Shape(documents.LosingPlan)
POOL_CHANGE = Shape(documents.PoolChange)
_JOINING = (Shape(documents.CopyPlan), Shape(documents.BundlePlan))
_MOVING = (Shape(documents.Moving), Shape(documents.MovePlan))
DOCUMENTS = {
    "add-disk": (Shape(documents.Grown), Shape(documents.GrowthPlan), *_JOINING),
    "advise": (Shape(documents.Advice),),
    "array evacuate": (POOL_CHANGE,),
    "array forget": (Shape(documents.Forgotten),),
    "array list": (Shape(documents.PoolArrays),),
    "balance": (Shape(documents.PoolChange, (documents.PoolPlan,)),),
    "check": (Shape(documents.Checked), Shape(documents.Repaired)),
    "clear": (Shape(documents.Cleared),),
    "completions": (Shape(answers.Completions),),
    "crash": (Shape(answers.Crashed, STATUS.optional),),
    "create": (STATUS, Shape(documents.CreationPlan), Shape(documents.Choices)),
    "damage": (Shape(documents.Damage),),
    "destroy": (Shape(documents.Destroyed),),
    "error": (Shape(documents.Failed),),
    "events": (Shape(documents.Events),),
    "examine": (Shape(documents.ExaminedMembers),),
    "explain": (
        *(Shape(answers.Explanation), Shape(answers.StripeState), Shape(answers.VolumePlace)),
        POOL_CHANGE,
    ),
    "fail-disk": (Shape(documents.Failing), Shape(documents.MemberPlan)),
    "get": (Shape(documents.Settings),),
    "inject": (Shape(answers.Injected),),
    "job": (Shape(documents.Jobs, (documents.Job,)),),
    "lab end": (Shape(answers.LabEnd),),
    "lab reset": (Shape(answers.LabReset),),
    "layout bundles": (Shape(answers.Bundles),),
    "layout chains": (Shape(answers.Chains),),
    "layout list": (Shape(answers.Layouts),),
    "layout load": (Shape(answers.LoadOfDisks),),
    "layout map": (Shape(answers.ChunkPlaces),),
    "layout recover": (Shape(answers.Recovery),),
    "layout show": (Shape(answers.Drawing),),
    "mount": (STATUS,),
    "peek": (Shape(answers.Peeked),),
    "quiz": (Shape(answers.Quiz),),
    "remove-disk": (
        *(Shape(documents.Removal), Shape(documents.MemberPlan), Shape(documents.ReshapePlan)),
        *_JOINING,
    ),
    "rename": (Shape(documents.Renamed),),
    "online": (
        *(Shape(documents.Replacement), Shape(documents.ReplacePlan)),
        Shape(documents.StaysOnline),
    ),
    "replace-disk": (Shape(documents.Replacement), Shape(documents.ReplacePlan)),
    "replay": (Shape(answers.Replayed),),
    "reshape": (Shape(documents.Reshaping), Shape(documents.ReshapePlan)),
    "resize": (_DETAILS, _LOSING),
    "restore-metadata": (Shape(documents.MetadataRestored),),
    "save-metadata": (Shape(documents.MetadataSaved),),
    "scan": (Shape(documents.Found),),
    "schema": (Shape(answers.Schemas),),
    "scrub": (Shape(documents.Scrub, (documents.Job,)),),
    "serve": (STATUS,),
    "set": (Shape(documents.Settings),),
    "simulate": (Shape(answers.Experiments),),
    "stats": (Shape(documents.Reports), Shape(documents.Heat)),
    "status": (STATUS,),
    "trim": (Shape(documents.Trimmed), _LOSING),
    "tune": (Shape(documents.Tuning), Shape(documents.TunerState), Shape(documents.TuningPlan)),
    "umount": (Shape(documents.Unmounted),),
    "view": (Shape(answers.Viewed),),
    "volume create": (_DETAILS,),
    "volume delete": (Shape(documents.Deleted), _LOSING),
    "volume list": (Shape(documents.Volumes),),
    "volume move": _MOVING,
    "volume rename": (_DETAILS,),
    "volume resize": (_DETAILS, _LOSING),
    "volume swap": _MOVING,
    "wait": (STATUS,),
    "watch": (Shape(answers.Watched),),
    "wipe": (Shape(documents.Wiped),),
}
"""The document of each command, with the shapes that it may have."""

SHAPES = {
    "array": Shape(documents.ArrayStatus, (documents.MountStatus,)),
    "status": STATUS,
}
"""What is not as its type says: `status` may be about several mounts, or about none."""
EXPLAINED, OPEN = ("redundancy", "events", "examined"), ("examined",)
"""Those with a description, and those that may have other keys."""


@verb()
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def schema(out: Output, words: tuple[str, ...]) -> None:
    """Print the JSON Schema of what a command prints under --json, with the unit of every number.

    COMMAND is a command of raidx, such as `status` or `volume list`; `error` is what any command
    prints that fails. Without one, the commands are listed.
    """
    names = schema_names()
    if not words:
        out.emit({"commands": names}, "\n".join(names))
        return
    name = " ".join(words)
    if name not in names:
        raise unknown("command with a schema", name, names, reason=Reason.UNKNOWN_COMMAND)
    if out.json:
        out.emit({"command": name, "schema": schema_of(name)})
        return
    click.echo(json.dumps(schema_of(name), indent=2))


def schema_names() -> list[str]:
    """Return the commands that have a schema, and "error" for any command that fails."""
    return sorted(DOCUMENTS)


def schema_of(name: str) -> Schema:
    """Return the schema of a command, one of `schema_names`, with all that it refers to."""
    schema = _document(name)
    types = (*vars(documents).values(), *vars(answers).values())
    kinds = {_name(each): each for each in types if is_typeddict(each)}
    found: Schema = {}
    wanted = set(_REFERENCE.findall(json.dumps(schema)))
    while wanted:
        for each in wanted:
            shape = SHAPES.get(each) or Shape(kinds[each])
            found[each] = _object(each, shape, whole=shape is STATUS)
        wanted = set(_REFERENCE.findall(json.dumps(found))) - found.keys()
    return {**schema, "$defs": {each: found[each] for each in sorted(found)}} if found else schema


def _document(name: str) -> Schema:
    """Return the schema of a document of `DOCUMENTS`, without what it refers to."""
    title = "a command that fails, --json" if name == "error" else f"raidx {name} --json"
    parts = [
        _reference(shape.kind) if shape in SHAPES.values() else _object(name, shape, whole=True)
        for shape in DOCUMENTS[name]
    ]
    content = parts[0] if len(parts) == 1 else {"anyOf": parts}
    return {"$schema": DIALECT, "title": title, **content}


def _name(kind: Any) -> str:
    """Return the name of a type among the definitions: `MemberCounters` is member_counters."""
    if kind is documents.ArrayStatus:
        return "array"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _reference(kind: Any) -> Schema:
    return {"$ref": f"#/$defs/{_name(kind)}"}


def _object(name: str, shape: Shape, *, whole: bool = False) -> Schema:
    """Return the schema of an object; a *whole* document has output_version."""
    may_miss = {key for kind in shape.optional for key in get_type_hints(kind)}
    hints: dict[str, Any] = {}
    for kind in (*shape.optional, shape.kind):
        hints |= get_type_hints(kind, include_extras=True)
    properties, required = {}, []
    if whole:
        properties["output_version"] = _value(documents.Number)
        required.append("output_version")
    for key, hint in hints.items():
        if get_origin(hint) is NotRequired:
            (hint,) = get_args(hint)
        elif key not in may_miss and shape.kind.__total__:
            required.append(key)
        properties[key] = _value(hint)
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if name in EXPLAINED:
        schema = {"description": cleandoc(shape.kind.__doc__), **schema}
    return schema | ({"additionalProperties": True} if name in OPEN else {})


def _value(hint: Any) -> Schema:
    """Return the schema of a value of type *hint*."""
    if hint is Any:
        return {}
    if is_typeddict(hint):
        return _reference(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, words = arguments
        keyword = "unit" if kind in (int, float) else "description"
        return {**_value(kind), keyword: words}
    if origin in (Union, UnionType):
        parts = [_value(each) for each in arguments]
        if any("$ref" in part for part in parts):
            return {"anyOf": parts}
        merged: Schema = {}
        for part in parts:
            merged |= part
        return {**merged, "type": [part["type"] for part in parts]}
    schema: Schema = {"type": _WORDS[origin or hint]}
    if origin is list:
        schema["items"] = _value(arguments[0])
    if origin is dict:
        schema["additionalProperties"] = _value(arguments[1])
    return schema
