"""Progress: what a run shows in a terminal, or says in its log where nobody watches."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import structlog
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.trainer.curve import curve

_LABELS = {
    "outcome": "reward",
    "loss": "loss",
    "entropy": "entropy",
    "approx_kl": "KL to the old policy",
    "clip_fraction": "clipped",
    "engine_gap_max": "largest logprob gap to the engine",
    "grad_norm": "gradient norm",
    "lr": "learning rate",
}

log = structlog.get_logger(__name__)


class Report(NamedTuple):
    """One step's, of which a run has many."""

    step: int
    num_batches: int
    policy_version: int | None
    num_rollouts: int
    num_tokens: int
    num_stale: int
    metrics: Mapping[str, float]
    durations_s: Mapping[str, float]
    num_steps: int | None = None
    """Optimizer steps on the batch, 0 where it was passed over; None: not said."""


class Progress(Protocol):
    def step(self, report: Report) -> None: ...

    def waiting(self, what: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress_for(console: Console, run_id: str) -> Progress:
    """Live where somebody watches."""
    return LiveProgress(console, run_id) if console.is_terminal else LogProgress()


class LogProgress:
    """One event a step."""

    def step(self, report: Report) -> None:
        shown = {name: round(report.metrics[name], 6) for name in _LABELS if name in report.metrics}
        seconds = round(sum(report.durations_s.values()), 3)
        log.info(
            "step",
            step=report.step,
            policy_version=report.policy_version,
            num_rollouts=report.num_rollouts,
            num_stale=report.num_stale,
            seconds=seconds,
            **shown,
        )

    def waiting(self, what: str) -> None:
        log.info("waiting", what=what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class NoProgress:
    """On every rank but one."""

    def step(self, report: Report) -> None: ...

    def waiting(self, what: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class LiveProgress:
    """A table of the last step, and the curve of rewards."""

    def __init__(self, console: Console, run_id: str) -> None:
        self._console = console
        self._run_id = run_id
        self._began = time.monotonic()
        self._outcomes: list[float] = []
        self._last: Report | None = None
        self._waiting = "the first batch"
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def step(self, report: Report) -> None:
        self._last, self._waiting = report, ""
        if "outcome" in report.metrics:
            self._outcomes.append(report.metrics["outcome"])

    def waiting(self, what: str) -> None:
        self._waiting = what

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        report = self._last
        if report is not None:
            version = "none yet" if report.policy_version is None else str(report.policy_version)
            table.add_row("step", str(report.step), "policy version", version)
            table.add_row("rollouts", f"{report.num_rollouts:,}", "tokens", f"{report.num_tokens:,}")
            shown = [(_LABELS[name], report.metrics[name]) for name in _LABELS if name in report.metrics]
            for left, right in zip(shown[::2], [*shown[1::2], ("", None)], strict=False):
                second = (right[0], f"{right[1]:.4g}") if right[1] is not None else ("", "")
                table.add_row(left[0], f"{left[1]:.4g}", *second)
        minutes, seconds = divmod(round(time.monotonic() - self._began), 60)
        head = f"run {self._run_id}   {minutes}:{seconds:02d}"
        if self._waiting:
            head += f"   waiting for {self._waiting}"
        line = Text(curve(self._outcomes, max(self._console.width - 20, 10)), style="green")
        if self._outcomes:
            line.append(f"  {self._outcomes[0]:.2f} → {self._outcomes[-1]:.2f}", style="default")
        return Group(Text(head, style="bold"), table, line)
