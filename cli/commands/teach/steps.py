"""The output of `raidx explain --step`: a request step by step, with the bytes of the array."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output
from raidx_fuse.engine.steps import steps_of

BYTES = 8  # of each cell
STRIPES_MAX = 16  # of which the bytes are shown


def stepped(out: Output, array: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return *plan* with its *steps*, and the first *bytes* of what each reads or computes."""
    steps = steps_of(plan)
    seen: dict[tuple[int, int, int], dict[str, str]] = {}
    for step in steps if len(plan["stripes"]) <= STRIPES_MAX else ():
        names = step["cells"]
        if step["does"] == "xor" and plan["operation"] == "read":
            names = [step["what"].partition(" = ")[0]]
        if step["does"] not in ("read", "xor") or not names:
            continue
        key = step["stripe"], step["from"], min(BYTES, step["to"] - step["from"])
        if key not in seen:
            looked = ask(out, array, "peek", stripe=key[0], begin=key[1], length=key[2])
            seen[key] = {cell["cell"]: cell["content"] or "" for cell in looked["cells"]}
        step["bytes"] = {name: seen[key].get(name, "") for name in names}
    return {**plan, "steps": steps}


def steps_page(document: dict[str, Any]) -> Text:
    """Return the steps as lines; what a power cut leaves is said where it changes."""
    page = Text()
    stripe = power = None
    for step in document["steps"]:
        if step["stripe"] != stripe:
            stripe, power = step["stripe"], None
            page.append(f"stripe {stripe}\n", style="bold cyan")
        page.append(f"  {step['step']:3}. {step['does']:12}{step['what']}\n")
        for name, content in step.get("bytes", {}).items():
            page.append(f"{'':19}{name}: {_shown(content)}\n", style="bright_black")
        if step["power"] is not None and step["power"] != power:
            power = step["power"]
            page.append(f"{'':7}if the power goes now: {power}\n", style="yellow")
    page.rstrip()
    return page


def _shown(content: str) -> str:
    data = bytes.fromhex(content)
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
    return f"{data.hex(' ')}  {text}"
