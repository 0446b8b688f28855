"""The training demo's live view: rollouts, reward curve, version, lag. Pure but for the console's width."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from headrace.cli.demo.figures import Figures, Point

_BLOCKS = "▁▂▃▄▅▆▇█"


class View:
    """A renderable that says what was told last."""

    def __init__(self, target: float | None) -> None:
        self._target = target
        self._began = time.monotonic()
        self.figures: Figures | None = None
        self.points: Sequence[Point] = ()
        self.lags: Mapping[str, int] = {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        minutes, seconds = divmod(round(time.monotonic() - self._began), 60)
        yield Text(f"training   {minutes}:{seconds:02d}", style="bold")
        yield self._table()
        if self.lags:
            yield Text("lag         " + ", ".join(f"{name} {lag:,}" for name, lag in self.lags.items()))
        width = max(options.max_width - 24, 10)
        for name, values in (
            ("reward", [point.reward for point in self.points]),
            ("accuracy", [point.accuracy for point in self.points]),
        ):
            line = Text(f"{name:<9}")
            line.append(bars(values[-width:]), style="green")
            if values:
                line.append(f" {values[0]:.2f} → {values[-1]:.2f}")
            yield line

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 3))
        figures = self.figures
        if figures is not None:
            accuracy = "none yet" if figures.accuracy is None else f"{figures.accuracy:.3f}"
            if self._target is not None:
                accuracy += f" of {self._target:.2f}"
            version = "none yet" if figures.policy_version is None else str(figures.policy_version)
            gap = "none yet" if figures.largest_gap is None else f"{figures.largest_gap:.1e}"
            table.add_row(
                "rollouts", f"{figures.num_rollouts:,}", "accuracy", accuracy, "policy version", version
            )
            table.add_row(
                "transitions", f"{figures.num_transitions:,}", "batches", str(figures.num_batches),
                "logprob gap", gap,
            )  # fmt: skip
        return table


def bars(values: Sequence[float]) -> str:
    """Between 0 and 1."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(min(max(value, 0.0), 1.0) * top)] for value in values)
