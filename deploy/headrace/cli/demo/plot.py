"""The training demo's curve as a PNG."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headrace.cli.demo.figures import Point


def save_curve(points: Sequence[Point], path: Path) -> None:
    """Reward and accuracy over rollouts."""
    ends: list[int] = []
    for point in points:
        ends.append((ends[-1] if ends else 0) + point.num_rollouts)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(ends, [point.reward for point in points], label="reward: boxes that were right")
    axes.plot(ends, [point.accuracy for point in points], label="accuracy: both were right")
    axes.set(xlabel="rollouts", ylim=(0, 1.02), title="headrace demo: agents learn while they work")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
