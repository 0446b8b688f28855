"""How a feeder's run is shown: a bar where somebody watches, and a line for each round of validation."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headrace.streams.client.feeder import FeedObserver, FeedProgress, ValidationReport


class FeedView:
    """A FeedObserver, and a context manager. `others` are told as well."""

    def __init__(self, others: Sequence[FeedObserver] = ()) -> None:
        self._others = others
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bar: TaskID | None = None

    def progressed(self, progress: FeedProgress) -> None:
        if self._bar is None:
            self._bar = self._progress.add_task("groups", total=progress.num_groups)
        num_done = progress.num_fed - progress.num_in_flight
        self._progress.update(self._bar, completed=num_done, description=described(progress))
        for other in self._others:
            other.progressed(progress)

    def validated(self, report: ValidationReport) -> None:
        click.echo(reported(report))
        for other in self._others:
            other.validated(report)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def described(progress: FeedProgress) -> str:
    """`epoch 2, version 7, outcome 0.43, 16 in flight`."""
    words = [f"epoch {progress.epoch + 1}"]
    if progress.version is not None:
        words.append(f"version {progress.version}")
    if progress.recent_outcome is not None:
        words.append(f"outcome {progress.recent_outcome:.3g}")
    words.append(f"{progress.num_in_flight} in flight")
    if progress.num_ahead > progress.num_in_flight:
        words.append(f"{progress.num_ahead - progress.num_in_flight} wait for the trainer")
    return ", ".join(words)


def reported(report: ValidationReport) -> str:
    """A round of validation in a line."""
    scored = report.num_rollouts - report.num_failed
    mean = "no outcome" if report.outcome_mean is None else f"outcome {report.outcome_mean:.4g}"
    words = (
        f"validation of version {report.version}: {mean} over {scored:,} of {report.num_rollouts:,} rollouts"
    )
    if report.num_failed:
        words += f", {report.num_failed:,} failed"
    return words + ("; other versions answered too" if report.is_mixed else "")


def summarized(progress: FeedProgress) -> str:
    """What became of a run."""
    fates = ", ".join(f"{number:,} {fate}" for fate, number in sorted(progress.fates.items()))
    words = f"{progress.num_fed:,} of {progress.num_groups:,} groups are fed: {fates or 'none has a verdict'}"
    return words + (f", {progress.num_in_flight:,} in flight" if progress.num_in_flight else "")
