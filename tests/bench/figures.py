"""What a bench says: figures as lines, and which of them belong to which part."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.schemas.errors import FatalError

GROUPS = {
    "publisher": ("publisher_spans_per_s",),
    "assembler": ("assembler_events_per_s",),
    "sink": ("sink_rows_per_s",),
    "freshness": ("freshness_p50_ms", "freshness_p99_ms"),
    "span_store": ("span_store_per_s",),
    "rollouts": ("rollouts_per_s_8", "rollouts_per_s_64"),
    "proxy": (
        "proxy_added_p50_ms_1",
        "proxy_added_p50_ms_16",
        "proxy_added_p50_ms_64",
        "proxy_added_p99_ms_1",
        "proxy_added_p99_ms_16",
        "proxy_added_p99_ms_64",
        "proxy_stream_added_p50_ms_16",
        "proxy_requests_per_s",
    ),
    "trainer": (
        "train_tokens_per_s",
        "publish_to_served_s",
        "loop_generation_percent",
        "loop_training_percent",
        "loop_sync_percent",
        "loop_idle_percent",
    ),
    "memory": (
        "assembler_rss_start_mb",
        "assembler_rss_end_mb",
        "assembler_rss_slope_mb_per_100k",
        "sink_rss_start_mb",
        "sink_rss_end_mb",
        "sink_rss_slope_mb_per_100k",
    ),
}
"""The figures of each group, in the order in which they are printed."""

SETS = {"log": ("publisher", "assembler", "sink", "freshness", "span_store")}
"""Names for several groups. Those that take minutes, `rollouts`, `proxy`, `trainer` and `memory`, have only
their own."""

_LEAST_COST = 0.01
"""What a line can show. A difference of two measurements can come out as less, even below 0."""


@dataclass(frozen=True)
class Peer:
    """What else does the same work, measured in the same run."""

    name: str
    value: float


@dataclass(frozen=True)
class Figure:
    """One measurement."""

    name: str
    value: float
    unit: str
    peer: Peer | None = None
    is_cost: bool = False
    """Less is better: the ratio says how many times less it is than the peer's."""

    def line(self) -> str:
        """`bench NAME VALUE UNIT`, and ` peer NAME VALUE ratio R` where there is one."""
        line = f"bench {self.name} {number(self.value)} {self.unit}"
        if self.peer is None:
            return line
        return f"{line} peer {self.peer.name} {number(self.peer.value)} ratio {self.rank:.2f}"

    @property
    def rank(self) -> float:
        """What repeats are compared by: the ratio where there is a peer, since both had the same machine."""
        if self.peer is None:
            return self.value
        if self.is_cost:
            return self.peer.value / max(self.value, _LEAST_COST)
        return self.value / self.peer.value


def median(repeats: Sequence[Figure]) -> Figure:
    """The one in the middle, as it was measured; of an even number the lower."""
    return sorted(repeats, key=lambda figure: figure.rank)[(len(repeats) - 1) // 2]


def number(value: float) -> str:
    """Three digits and more where there are more: nothing here is known better."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def select(only: str | None) -> Sequence[str]:
    """The groups that a name stands for: a set, a group or one of its figures. FatalError for others."""
    name = only or "log"
    if name in SETS:
        return SETS[name]
    for group, figures in GROUPS.items():
        if name == group or name in figures:
            return (group,)
    raise FatalError(f"no bench is called {name!r}; there are {', '.join([*SETS, *GROUPS])}")
