"""Names that stand in superblocks: what may be in them, and what becomes of what may not.

A name is a file name and is shown on terminals, so it has no characters that steer one, and none
that are no text at all. Arrays that an earlier version made may have such a name: they are read
with a question mark in their place.
"""

from __future__ import annotations

import unicodedata

NAME_BYTES_MAX = 255
BRIEF_CHARACTERS = 200
_STEERING = frozenset(["Cc", "Cs", "Zl", "Zp"])
"""Categories of Unicode: control characters, lone surrogates, ends of lines and paragraphs."""
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They show what follows them in another order."""


def _is_unclean(character: str) -> bool:
    return character in _TURNING or unicodedata.category(character) in _STEERING


def is_clean(text: str) -> bool:
    """Say whether *text* can be shown on a terminal as it is."""
    return (text.isascii() and text.isprintable()) or not any(map(_is_unclean, text))


def cleaned(text: str) -> str:
    """Return *text* with a question mark for whatever must not be shown."""
    if is_clean(text):
        return text
    return "".join("?" if _is_unclean(character) else character for character in text)


def brief(text: object) -> str:
    """Return *text* as an error may show it: clean, and not for ever."""
    shown = cleaned(str(text))
    return shown if len(shown) <= BRIEF_CHARACTERS else f"{shown[:BRIEF_CHARACTERS]}..."


def name_problem(name: str) -> str | None:
    """Say in words why an array cannot have this *name*, which is clean; None if it can."""
    if name in ("", ".", "..") or "/" in name:
        return "it names the image file too"
    if len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        return f"it is longer than {NAME_BYTES_MAX} bytes"
    return None
