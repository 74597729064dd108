"""Parse and format sizes and times with units.

``64KiB`` and ``64K`` are 65536, ``64KB`` is 64000, ``512`` is bytes.

>>> parse_size("1.5MiB"), parse_size("2 GB"), parse_size("4096")
(1572864, 2000000000, 4096)
>>> format_size(1572864), format_size(1000), format_size(4096)
('1.50 MiB', '1000 B', '4 KiB')

Times likewise: ``100us``, ``0.1ms``, ``2s``, ``5m`` or ``5min``, ``12h``, ``7d``, ``2w``; a plain
number is seconds.

>>> parse_seconds("100us"), parse_seconds("4 ms"), parse_seconds("0.5"), parse_seconds("5m")
(0.0001, 0.004, 0.5, 300.0)
>>> format_seconds(5e-05), format_seconds(0.0010947), format_seconds(90.0), format_seconds(0)
('50us', '1.095ms', '90s', '0s')
>>> format_seconds(604800.0), format_seconds(300.0)
('7d', '5min')
"""

from __future__ import annotations

import re
from decimal import Decimal

from raidx_fuse.errors import UsageError

SIZE_BYTES_MAX = 1 << 62  # no file or device is larger
SECONDS_MAX = 100 * 365.25 * 86400
_TEXT_MAX = 60  # characters; longer texts are no size or time
_PREFIXES = "KMGTPE"
_SIZE = re.compile(rf"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([{_PREFIXES}])(iB|B)?|B)?\s*", re.IGNORECASE)
_TIME = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]{1,3})?)\s*(us|ms|s|min|m|h|d|w)?\s*", re.IGNORECASE
)
_SECONDS = {
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(7 * 86400),
}
_LONG = (("d", 86400), ("h", 3600), ("min", 60))


def parse_size(text: str) -> int:
    """Return the number of bytes that *text* means.

    Raises UsageError if it is not a size, not a whole number of bytes, or above SIZE_BYTES_MAX.
    """
    match = _SIZE.fullmatch(text) if len(text) <= _TEXT_MAX else None
    if not match:
        raise UsageError(
            f"{text[:_TEXT_MAX]!r} is not a size", action="write for example 64KiB, 1.5G or 4096"
        )
    number, prefix, suffix = match.groups()
    exponent = _PREFIXES.index(prefix.upper()) + 1 if prefix else 0
    base = 1000 if suffix and suffix.upper() == "B" else 1024
    size_bytes = Decimal(number) * base**exponent
    if size_bytes > SIZE_BYTES_MAX:
        raise UsageError(f"{text!r} is more bytes than a file or device can have")
    if size_bytes != int(size_bytes):
        raise UsageError(f"{text!r} is not a whole number of bytes")
    return int(size_bytes)


def parse_seconds(text: str) -> float:
    """Return the seconds that *text* means. Raises UsageError if it is no time, or too long."""
    match = _TIME.fullmatch(text) if len(text) <= _TEXT_MAX else None
    if not match:
        raise UsageError(
            f"{text[:_TEXT_MAX]!r} is not a time", action="write for example 4ms, 0.5s, 5min or 7d"
        )
    number, unit = match.groups()
    seconds = float(Decimal(number) * _SECONDS[(unit or "s").lower()])
    if seconds > SECONDS_MAX:
        raise UsageError(f"{text!r} is longer than a hundred years")
    return seconds


def format_seconds(seconds: float) -> str:
    """Return *seconds* as text that `parse_seconds` accepts, rounded to four digits."""
    for unit, of_s in _LONG:
        if seconds >= of_s and not seconds % of_s:
            return f"{seconds / of_s:.0f}{unit}"
    unit, factor = "s", 1.0
    if 0 < seconds < 1:
        unit, factor = ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    value = seconds * factor
    return f"{value:.4g}{unit}" if value < 1000 else f"{value:.0f}{unit}"


def format_size(size_bytes: int) -> str:
    """Return *size_bytes* in the largest binary unit that it reaches.

    A whole number if that is exact, otherwise rounded to three digits.
    """
    size = abs(size_bytes)
    exponent = min((size.bit_length() - 1) // 10, len(_PREFIXES)) if size else 0
    if not exponent:
        return f"{size_bytes} B"
    unit = 1 << 10 * exponent
    # 1023.99 MiB would round up to "1024 MiB": the next unit says that better.
    if size * 2 >= unit * 2047 and exponent < len(_PREFIXES) and size % unit:
        exponent, unit = exponent + 1, unit << 10
    value = size_bytes / unit
    digits = max(0, 3 - len(str(int(abs(value)))))
    text = f"{size_bytes // unit}" if size_bytes % unit == 0 else f"{value:.{digits}f}"
    return f"{text} {_PREFIXES[exponent - 1]}iB"
