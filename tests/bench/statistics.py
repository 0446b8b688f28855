"""Quantiles and slopes."""

from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` of all values does not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * round(q * 1_000_000) // 1_000_000))
    return ordered[rank - 1]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through (x, y); 0 where the points don't spread."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
