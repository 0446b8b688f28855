"""Values as text in a terminal: shortened in the middle to a width, harmless, and arrays with their length.

Pure. Widths are in terminal cells: a Chinese character takes two.
"""

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

ELLIPSIS = "…"
MAX_ARRAY_WIDTH = 48
"""What an array may ask for; more of its items say little."""

_HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text in one line, without what would steer the terminal; bytes that are no UTF-8 in hex."""
    return _HARMFUL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape's
        return f"\\x{code - 0xDC00:02x}"
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return named.get(match[0], f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def shortened(text: str, width: int) -> str:
    """The text, or its two ends with … between them, in at most `width` cells."""
    if len(text) <= width // 2 or cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    left = width // 2
    right = width - left - 1
    head = set_cell_size(text[:left], left).rstrip() if left else ""
    tail = set_cell_size(text[-right:][::-1], right)[::-1].lstrip() if right else ""
    return f"{head}{ELLIPSIS}{tail}"


def plain(value: object) -> str:
    """A value out of JSON as ClickHouse would write it, whole."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_inner(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{visible(str(key))}: {_inner(item)}' for key, item in value.items())}}}"
    return visible(str(value))


def _inner(value: object) -> str:
    return f"'{visible(value)}'" if isinstance(value, str) else plain(value)


def fitted(value: object, width: int) -> str:
    """A value in at most `width` cells. Of a long array the first items that fit, and how many there are."""
    if isinstance(value, list):
        return _fitted_array(value, width)
    return shortened(plain(value), width)


def _fitted_array(items: list[object], width: int) -> str:
    # A token array may hold a hundred thousand ids: look at no more of them than could fit.
    if len(items) <= width:
        whole = plain(items)
        if cell_len(whole) <= width:
            return whole
    end = f"{ELLIPSIS} {len(items):,} items]"
    shown = ""
    for item in items:
        longer = f"{shown}{_inner(item)}, "
        if 1 + cell_len(longer) + cell_len(end) > width:
            break
        shown = longer
    return shortened(f"[{shown}{end}", width)


def natural_width(value: object) -> int:
    """The width that a value asks for."""
    if isinstance(value, list):
        return cell_len(fitted(value, MAX_ARRAY_WIDTH))
    return cell_len(plain(value))


def fit(natural: Sequence[int], least: Sequence[int], available: int) -> list[int] | None:
    """Widths that sum to at most `available`: the widest give way first, and to the same level.

    No column goes below its `least`, unless it asks for less. None if that is too much for them all.
    """
    least = [min(pair) for pair in zip(natural, least, strict=True)]
    if sum(least) > available:
        return None

    def at(level: int) -> list[int]:
        return [max(low, min(width, level)) for width, low in zip(natural, least, strict=True)]

    low, high = 0, max(natural, default=0)
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if sum(at(level)) <= available else (low, level - 1)
    widths = at(low)
    spare = available - sum(widths)
    for index, width in enumerate(natural):
        if spare and width > widths[index]:
            widths[index] += 1
            spare -= 1
    return widths
