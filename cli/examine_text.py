"""The page of `raidx examine`: what a member says of itself, for people; ``--json`` is the dump."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.status_text import date_of, state_text
from raidx_fuse.units import format_seconds

DATE_MIN_S = 1_000_000_000  # 2001: no time of anything here is as long
DAMAGED_NAMED = 4
EMPTY: Final[tuple[object, ...]] = (None, [], {}, "")
COUNTED: Final = ("events", "sequence")
REGIONS: Final = {
    "superblock": "superblocks",
    "bitmap": "stripes that a write may be under way in",
    "written": "map of the chunks that were ever written",
    "log": "log of the writes",
    "table": "places of moved chunks",
    "data": "data and parity",
    "sums": "checksums",
}
# What the page says in its own words; the rest of the configuration follows by its names.
SAID: Final = {
    *("path", "kind", "size", "carries", "held_by", "valid", "problem", "slots", "end_slots"),
    *("array_uuid", "name", "layout", "width", "chunk_bytes", "size_bytes", "created_s"),
    *("member_uuid", "role", "state", "clean", "events", "starts"),
    *("format", "slot", "sequence", "members", "regions", "pages", "history"),
}


def examine_page(found: dict[str, Any], out: Output) -> RenderableType:
    """Return the page of one member; also of a damaged one, of which little is known."""
    head = Table(named=True)
    for word, line in _head(found, out):
        head.add_row(f"{word}:", line)
    for key, value in found.items():
        if key not in SAID and value not in EMPTY:
            head.add_row(f"{_label(key)}:", _words(key, value, out))
    parts: list[RenderableType] = [head, *_titled("superblocks", _slots(found))]
    if found.get("valid"):
        parts += _titled("members", _members(found, out))
        parts += _titled("regions", _regions(found, out))
        parts += _titled("pages of metadata", _pages(found))
    return Group(*parts)


def _titled(title: str, table: Table) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), table] if table.rows else []


def _head(found: dict[str, Any], out: Output) -> Iterator[tuple[str, str | Text]]:
    yield "member", str(found["path"])
    if found.get("kind"):
        kind = "NBD export" if found["kind"] == "nbd" else found["kind"]
        what = f"{kind} of {out.size(found['size'])}"
        yield "is", f"{what}, carries {found['carries'] or 'nothing that is known'}"
    if found["problem"]:
        yield "problem", Text(found["problem"], style="yellow")
    if found.get("held_by"):
        yield "held by", found["held_by"]
    if not found.get("valid"):
        return
    yield "array", f"{found['name']}  ({found['array_uuid']})"
    shape = f"{found['layout']} on {plural(found['width'], 'member')}"
    yield "layout", f"{shape}, chunk {out.size(found['chunk_bytes'])}"
    if found.get("size_bytes"):
        yield "size", f"{out.size(found['size_bytes'])}, which was chosen"
    role = "spare" if found["role"] < 0 else f"role {found['role']}"
    state = Text.assemble(f"{role}, ", state_text(found["state"]), f"  ({found['member_uuid']})")
    yield "role", state
    if found.get("created_s"):
        yield "created", date_of(found["created_s"])
    clean = "unmounted" if found["clean"] else "mounted, or not unmounted as it should be"
    yield "clean", f"{_yes(found['clean'])}: {clean}"
    yield "history", f"{plural(found['starts'], 'start')}, {plural(found['events'], 'change')}"
    which = f"slot {found['slot']}, sequence {found['sequence']}"
    yield "format", f"{found['format']}; the newest superblock is in {which}"


def _slots(found: dict[str, Any]) -> Table:
    titles = ("place", "slot", "state", *COUNTED, "problem")
    table = Table(*titles, left=("place", "state", "problem"), indent=2)
    for place, key in (("front", "slots"), ("end", "end_slots")):
        for slot in found.get(key, ()):
            counts = ("-" if slot[name] is None else str(slot[name]) for name in COUNTED)
            table.add_row(place, str(slot["slot"]), slot["state"], *counts, slot["problem"] or "-")
    return table


def _members(found: dict[str, Any], out: Output) -> Table:
    titles = ("role", "state", "size", "uuid", "was last at")
    table = Table(*titles, left=("state", *titles[3:]), indent=2)
    for each in found["members"]:
        role = "-" if each["role"] < 0 else str(each["role"])
        size, uuid = out.size(each["size_bytes"]), each["member_uuid"]
        table.add_row(role, state_text(each["state"]), size, uuid, each.get("path_hint") or "-")
    return table


def _regions(found: dict[str, Any], out: Output) -> Table:
    table = Table("region", "from", "size", "holds", left=("region", "holds"), indent=2)
    for name, (offset, length) in found["regions"].items():
        if length:
            table.add_row(name, out.size(offset), out.size(length), REGIONS.get(name, "-"))
    return table


def _pages(found: dict[str, Any]) -> Table:
    table = Table("of", "room", "written", "problem", left=("of", "problem"), indent=2)
    for each in found["pages"]:
        damaged = each["damaged"]
        said = ", ".join(damaged[:DAMAGED_NAMED]) + ", ..." * (len(damaged) > DAMAGED_NAMED)
        problem = "; ".join(filter(None, (each["problem"], said and f"damaged: {said}")))
        table.add_row(each["kind"], str(each["room"]), str(each["written"]), problem or "-")
    return table


def _label(key: str) -> str:
    return key.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _words(key: str, value: Any, out: Output) -> str:
    """Return a value of the configuration in words: sizes with units, dates, yes and no."""
    if isinstance(value, bool):
        return _yes(value)
    if isinstance(value, dict):
        parts = []
        for name, one in value.items():
            if one not in EMPTY:
                said = _words(name, one, out)
                parts.append(f"{_label(name)} " + (f"({said})" if isinstance(one, dict) else said))
        return ", ".join(parts)
    if isinstance(value, list):
        return "; ".join(_words(key, one, out) for one in value) or "none"
    if isinstance(value, int | float) and key.endswith("_bytes"):
        return out.size(value)
    if isinstance(value, int | float) and key.endswith("_s"):
        return date_of(value) if value > DATE_MIN_S else format_seconds(value)
    return "none" if value is None else str(value)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
