"""Curves in a terminal: a line of blocks, as high as the values. Pure."""

from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], width: int) -> str:
    """The values from the oldest to the newest, averaged to at most so many columns."""
    if not values or width < 1:
        return ""
    columns = shrunk(values, width)
    low, high = min(columns), max(columns)
    span = high - low
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((each - low) / span * top) if span else top // 2] for each in columns)


def shrunk(values: Sequence[float], width: int) -> list[float]:
    """Means of as many neighbours as make the width."""
    if len(values) <= width:
        return list(values)
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
