"""Names and UUIDs in superblocks: which characters are allowed, and how others are replaced.

A name is a file name and is shown on terminals. So control characters and characters that are no
text are not allowed. Arrays that an earlier version created may have such names: a question mark
replaces each of these characters when the name is read.
"""

from __future__ import annotations

import re
import unicodedata

_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # ten times as fast as uuid.UUID
NAME_BYTES_MAX = 255
BRIEF_CHARACTERS = 200
_STEERING = frozenset(["Cc", "Cs", "Zl", "Zp"])
"""Categories of Unicode: control characters, lone surrogates, ends of lines and paragraphs."""
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional formatting characters: they change the order in which text is shown."""


def _is_unclean(character: str) -> bool:
    return character in _TURNING or unicodedata.category(character) in _STEERING


def is_clean(text: str) -> bool:
    """Return whether *text* can be shown on a terminal unchanged."""
    return (text.isascii() and text.isprintable()) or not any(map(_is_unclean, text))


def cleaned(text: str) -> str:
    """Return *text* with a question mark for each character that must not be shown."""
    if is_clean(text):
        return text
    return "".join("?" if _is_unclean(character) else character for character in text)


def brief(text: object) -> str:
    """Return *text* for an error message: cleaned, and cut to BRIEF_CHARACTERS."""
    shown = cleaned(str(text))
    return shown if len(shown) <= BRIEF_CHARACTERS else f"{shown[:BRIEF_CHARACTERS]}..."


def name_problem(name: str, use: str = "it names the image file too") -> str | None:
    """Return in words why an array cannot have *name*, or None; *use* is why it is a file name."""
    if not is_clean(name):
        return "it has characters that no terminal can show"
    if name in ("", ".", "..") or "/" in name:
        return use
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        return f"it is longer than {NAME_BYTES_MAX} bytes"
    return None


def is_uuid(text: object) -> bool:
    """Return whether *text* is a UUID in canonical form: lower case, with hyphens."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None
