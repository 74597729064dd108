"""Text that is safe to print.

Much of what is printed comes from superblocks, paths and other daemons. It must not send control
characters to a terminal: `shown` makes any text printable.
"""

from __future__ import annotations

_ASCII = str.maketrans({"━": "-", "•": "*", "…": "~"})


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


def fitting(text: str, encoding: str) -> str:
    """Return *text* in the printable characters of *encoding*, and ends of lines."""
    text = shown(text, lines=True)
    if text.isascii() or encoding.startswith("utf"):
        return text
    known = text.translate(_ASCII) if encoding == "ascii" else text
    return known.encode(encoding, "replace").decode(encoding)
