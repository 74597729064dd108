"""Text that is safe to print.

Much of what is printed comes from superblocks, paths and other daemons. It must not send control
characters to a terminal: `shown` makes any text printable.
"""

from __future__ import annotations

import os

_ASCII = str.maketrans({"━": "#", "─": ".", "•": "*", "…": "~"})


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return *text* with every character that is not printable as an escape.

    These are control characters, characters that change the direction of writing or have no width,
    and bytes that were not UTF-8. With *lines*, ends of lines stay. The escapes are those of Python
    and bash.

    >>> print(shown("a\x1b[2Jb"), shown("a\nb"), shown("a\udcff"), shown("a\u202eb"), shown("ä 漢"))
    a\x1b[2Jb a\nb a\xff a\u202eb ä 漢
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a path that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()


def is_plain_locale() -> bool:
    """Return whether the user asks for ASCII, by the locale C or POSIX.

    Python takes UTF-8 there nevertheless, and names in it are printed; but nothing is drawn in it.
    Of LANG=C it makes LC_CTYPE=C.UTF-8, so that says nothing.
    """
    kind = os.environ.get("LC_CTYPE", "")
    kind = "" if kind == "C.UTF-8" else kind
    return (os.environ.get("LC_ALL") or kind or os.environ.get("LANG")) in ("C", "POSIX")


def fitting(text: str, encoding: str) -> str:
    """Return *text* in the printable characters of *encoding*, and ends of lines."""
    text = shown(text, lines=True)
    if text.isascii():
        return text
    if encoding == "ascii" or is_plain_locale():
        text = text.translate(_ASCII)
    if encoding.startswith("utf"):
        return text
    return text.encode(encoding, "replace").decode(encoding)
