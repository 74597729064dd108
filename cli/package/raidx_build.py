"""Pages for man and completions of shells; the build backend that puts them into the wheel.

The pages are made from MANUAL.md, which is made from the commands, and from FORMAT.md. So a build
needs click for the completions, but none of the other libraries. pyproject.toml names this module
as the backend (PEP 517): all hooks are those of setuptools, after the files have been made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).absolute().parent  # raidx_fuse/cli is a link: it is not followed
MADE = Path("build") / "share"  # where pyproject.toml finds them, below the top of the tree
SHELLS = {  # shell -> where its completion lies below share/
    "bash": "bash-completion/completions/raidx",
    "zsh": "zsh/site-functions/_raidx",
    "fish": "fish/vendor_completions.d/raidx.fish",
}
MENDED = {  # in click's scripts
    "bash": (  # it divides KEY=VALUE into three words, and completes the last one alone
        (
            "    local response\n",
            """    local response word words=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if (( ${#words[@]} )) && [[ $word == '=' || ${words[-1]} == *= ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
    done
""",
        ),
        ("${COMP_WORDS[*]}", "${words[*]}"),
        ("COMP_CWORD=$COMP_CWORD", "COMP_CWORD=$((${#words[@]} - 1))"),
        (
            "            COMPREPLY+=($value)\n",
            """            [[ $value == *= ]] && compopt -o nospace 2>/dev/null
            [[ $word == '=' || ${words[-1]} != "$word" ]] && value=${value#"${words[-1]%%=*}="}
            COMPREPLY+=("$value")
""",
        ),
    ),
    # it would end a description at its first comma
    "fish": (('(string split "," $completion)', '(string split -m 1 "," $completion)'),),
}
SECTION = {"raidx-format": 5}  # all others: 8, commands for administrators


# ---- Markdown to roff ----


def _text(markdown: str) -> str:
    """Return a piece of Markdown as text of roff."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("\\|", "|")
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\*\*([^*]+)\*\*", r"\\fB\1\\fR", text)
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip()[1:-1])]


def _table(rows: list[str]) -> Iterator[str]:
    """Yield a table as a list: the first cell of a row is its tag."""
    titles = _cells(rows[0])
    for row in rows[2:]:
        first, *rest = _cells(row)
        yield ".TP"
        yield _text(first) or "\\&"
        if len(rest) == 1:
            yield _text(rest[0]) or "\\&"
            continue
        said = [f"{title}: {cell}" for title, cell in zip(titles[1:], rest, strict=True) if cell]
        yield _text("; ".join(said)) or "\\&"


def roff(markdown: str) -> Iterator[str]:
    """Yield the lines of roff for a piece of Markdown: headings, text, lists, tables, code."""
    lines = markdown.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if line.startswith("#"):
            words = line.lstrip("#").strip()
            yield f".SH {_text(words.upper())}" if line.startswith("## ") else f".SS {_text(words)}"
        elif line.startswith("|"):
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            yield from _table(lines[at:end])
            yield ".PP"
        elif line.startswith(("```", "    ")):
            is_fenced = line.startswith("```")
            while end < len(lines) and (
                not lines[end].startswith("```") if is_fenced else lines[end].startswith("    ")
            ):
                end += 1
            code = lines[at + 1 : end] if is_fenced else lines[at:end]
            yield from (".PP", ".RS 4", ".nf")
            yield from (_text(each.replace("`", "")) or "\\&" for each in code)
            yield from (".fi", ".RE")
            end += is_fenced
        elif line.startswith(("- ", "* ")) or re.match(r"\d+\. ", line):
            mark, _, words = line.partition(" ")
            while end < len(lines) and lines[end].startswith("  "):
                words += " " + lines[end].strip()
                end += 1
            yield f".IP {_text(mark) if mark[0].isdigit() else chr(92) + '(bu'} 4"
            yield _text(words)
        elif line.strip():
            while end < len(lines) and lines[end].strip() and not lines[end].startswith(("|", "#")):
                end += 1
            yield ".PP"
            yield _text(" ".join(lines[at:end]))
        at = end


def _page(name: str, what: str, *parts: str) -> str:
    """Return a page for man: *parts* are Markdown."""
    section = SECTION.get(name, 8)
    title = _text(name.upper())
    lines = [f'.TH "{title}" {section} "" "raidx" "raidx manual"', ".nh", ".SH NAME"]
    lines += [f"{_text(name)} \\- {_text(what.rstrip('.'))}"]
    for part in parts:
        lines += roff(part)
    return "\n".join(lines) + "\n"


def man_pages() -> dict[str, str]:
    """Return file name -> text of every page for man."""
    manual = (HERE.parent / "MANUAL.md").read_text(encoding="utf-8")
    head, _, rest = manual.partition("## Commands\n")
    commands, *parted = re.split(r"(?m)^(?=## )", rest)
    sections = {part[3:].partition("\n")[0]: part for part in parted}
    settings = [part for title, part in sections.items() if title.startswith("Settings")]
    fstab = sections["Lines of fstab"]
    commands = re.sub(r"(?m)^\*\*[^*]+\*\*\n", "", commands)
    verbs = re.split(r"(?m)^### raidx ", commands)[1:]
    pages: dict[str, str] = {}
    known = []
    for verb in verbs:
        words, _, body = verb.partition("\n")
        usage, _, text = body.strip().partition("\n")
        description, bar, options = text.partition("| option | meaning |")
        name = f"raidx-{words.replace(' ', '-')}"
        first = re.split(r"(?<=[.]) |\n", description.strip())[0]
        known.append((name, first))
        parts = [f"## Synopsis\n\n    {usage.strip()}\n", f"## Description\n\n{description}\n"]
        parts += [f"## Options\n\n{bar}{options}"] if bar else []
        parts += settings if words == "set" else []
        parts += ["## See also\n\nraidx(8), also for --json, --bytes, --help; raidx-format(5)\n"]
        pages[f"{name}.8"] = _page(name, first, *parts)
    listed = "\n".join(f"| `{name}(8)` | {first} |" for name, first in known)
    body = re.sub(r"^# .*\n\nGenerated by .*\n", "", head)
    pages["raidx.8"] = _page(
        "raidx",
        "a virtual disk over member disks: RAID to mount, break, grow and study",
        "## Synopsis\n\n    raidx COMMAND [OPTIONS] ...\n",
        f"## Description\n{body}",
        f"## Commands\n\n| page | about |\n|---|---|\n{listed}\n",
        *(part for part in sections.values() if part not in (*settings, fstab)),
        "## See also\n\nraidx-set(8) for all settings; mount.raidx(8), raidx-format(5)\n",
    )
    pages["mount.raidx.8"] = _page(
        "mount.raidx",
        "mount an array by a line of fstab",
        "## Synopsis\n\n    mount.raidx SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]\n",
        fstab.replace("## Lines of fstab", "## Description"),
        "## See also\n\nraidx-mount(8), raidx(8), mount(8), systemd.mount(5)\n",
    )
    text = (HERE.parents[1] / "FORMAT.md").read_text(encoding="utf-8").partition("\n")[2]
    pages["raidx-format.5"] = _page(
        "raidx-format",
        "what lies on a member of an array",
        f"## Description\n{text}",
        "## See also\n\nraidx(8), raidx-examine(8)\n",
    )
    return pages


# ---- completions ----


def completion_script(shell: str) -> str:
    """Return the completion script of a shell, one of SHELLS."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click knows the three
    # Only the name of the program goes into it. `source` would also look for a bash of today.
    made = kind(None, {}, "raidx", "_RAIDX_COMPLETE")  # type: ignore[arg-type]
    script = made.source_template % made.source_vars()
    for theirs, ours in MENDED.get(shell, ()):
        assert theirs in script, "click has another script"
        script = script.replace(theirs, ours)
    return script


def write_shared(folder: Path) -> list[Path]:
    """Write pages and completions below *folder*, which is a share/; return their paths."""
    files = {f"man/man{name[-1]}/{name}": text for name, text in man_pages().items()}
    files |= {place: completion_script(shell) for shell, place in SHELLS.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [folder / name for name in files]


# ---- the build backend ----


def build_wheel(*arguments: Any, **named: Any) -> str:
    """Make the files, then a wheel as setuptools does."""
    from setuptools import build_meta

    write_shared(MADE)
    name: str = build_meta.build_wheel(*arguments, **named)
    return name


def __getattr__(name: str) -> Any:
    """Return any other hook of setuptools."""
    if name.startswith("_"):
        raise AttributeError(name)
    from setuptools import build_meta

    return getattr(build_meta, name)
