"""`headrace demo`: agents work, and the model that they ask learns from it."""

import logging
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog
from rich.console import Console
from rich.live import Live

from headrace.cli.demo.figures import Figures, read_curve, read_figures
from headrace.cli.demo.recipe import MAX_GAP, Recipe, recipe_for
from headrace.cli.demo.view import View
from headrace.schemas.errors import FatalError
from headrace.streams.topology import PIPELINE

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client as ClickHouse

    from headrace.cli.demo.audit import Audit
    from headrace.cli.demo.stack import DemoStack
    from headrace.cli.demo.training import Training

PROCESSORS = ("dispatcher", "assembler", "batcher", "sink")
_LOOK_S = 1.0
_SETTLE_S = 90.0

STORY = {
    "Reward by the version of the weights that earned it": """\
SELECT resource_version AS version, num_attempts AS attempts, round(mean_reward, 3) AS mean_reward
FROM reward_by_version WHERE resource_name = 'policy' ORDER BY version""",
    "Where the trainer's time went": """\
SELECT part, round(sum(spent), 1) AS seconds,
       round(100 * sum(spent) / sum(sum(spent)) OVER (), 1) AS percent
FROM train_steps ARRAY JOIN mapKeys(durations_s) AS part, mapValues(durations_s) AS spent
GROUP BY part ORDER BY seconds DESC""",
    "What became of groups": """\
SELECT status, ifNull(reason, '') AS reason, count() AS number FROM groups
GROUP BY ALL ORDER BY number DESC""",
    "One transition, from the version that it made back to its spans": """\
SELECT resource_version AS made_version, batch_id, behaviour_version, attempt_id, step, sequence_id,
       span_id, reward
FROM lineage WHERE resource_version = (SELECT max(resource_version) FROM lineage)
ORDER BY attempt_id, step LIMIT 2""",
}


@click.command()
@click.option(
    "--model",
    type=click.Choice(["small", "smollm2"]),
    default="small",
    show_default=True,
    help="One of 60,000 weights that is made here, or SmolLM2-135M for a few steps.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the model and its tasks.")
@click.option("--accuracy", type=click.FloatRange(0, 1), help="At which it ends.  [default: 0.95]")
@click.option("--max-rollouts", type=click.IntRange(min=1), help="After which it ends.  [default: 20000]")
@click.option("--limit-s", type=click.FloatRange(min=1), default=900.0, show_default=True, help="Likewise.")
@click.option(
    "--png",
    type=click.Path(dir_okay=False, path_type=Path),
    default="demo-curve.png",
    show_default=True,
    help="Where the curve is saved.",
)
def demo(
    *, model: str, seed: int, accuracy: float | None, max_rollouts: int | None, limit_s: float, png: Path
) -> None:
    """Train a model by reinforcement learning while agents use it, all on this machine.

    Makes a small model, serves it with vLLM, and starts Kafka, ClickHouse, the processors, the proxy, a
    runner with a two-step agent, and the Megatron trainer. Agents read notes and open boxes; the model says
    which, and is rewarded for the right ones. Its warm start taught it to answer with a digit, and nothing of
    which. Batches go to the trainer, new versions into vLLM, and the reward goes up. Then SQL tells the
    story, and every record is accounted for. The exit status is 0 only if nothing was lost or doubled, and
    it has learnt.
    """
    from headrace.cli.demo.stack import demo_stack  # noqa: PLC0415  Kafka's and ClickHouse's clients
    from headrace.cli.demo.training import start_training  # noqa: PLC0415
    from headrace.streams.clickhouse import connect  # noqa: PLC0415  an extra

    console = Console()
    began = time.monotonic()
    # What the feeder has to say, the view shows better.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    recipe = recipe_for(model, accuracy=accuracy, max_rollouts=max_rollouts)
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(
            demo_stack(console, "demo", processors=PROCESSORS, environment=recipe.environment())
        )
        client = connect(stack.clickhouse)
        cleanup.callback(client.close)
        training = cleanup.enter_context(start_training(stack, recipe, seed, console))
        figures = _watch(stack, client, training, recipe, console, deadline=time.monotonic() + limit_s)
        training.wind_down(timeout_s=_SETTLE_S)
        _settle(stack, deadline=time.monotonic() + _SETTLE_S)
        done = _account(stack, client)
        points = read_curve(client, recipe.window)
        _tell_story(client, console)
        if points:
            from headrace.cli.demo.plot import save_curve  # noqa: PLC0415  an extra, and half a second

            save_curve(points, png)
            console.print(f"\nThe curve is in {png}.", highlight=False, soft_wrap=True)
    first, last = (points[0].accuracy, figures.accuracy or 0.0) if points else (0.0, 0.0)
    has_learnt = recipe.accuracy is None or last >= recipe.accuracy
    _print_result(done, first, last, time.monotonic() - began, has_learnt=has_learnt, console=console)
    sys.exit(0 if done.is_clean and has_learnt else 1)


def _watch(
    stack: "DemoStack",
    client: "ClickHouse",
    training: "Training",
    recipe: Recipe,
    console: Console,
    *,
    deadline: float,
) -> Figures:
    """Until it has learnt, or is at its limit; the last figures."""
    view = View(recipe.accuracy)
    ended = threading.Event()
    with Live(view, console=console, refresh_per_second=2, transient=not console.is_terminal):
        while True:
            stack.check()
            training.check()
            figures = view.figures = read_figures(client, recipe.window)
            view.points = read_curve(client, recipe.window)
            view.lags = _lags(stack)
            if recipe.is_over(figures) or time.monotonic() > deadline:
                return figures
            ended.wait(_LOOK_S)


def _lags(stack: "DemoStack") -> dict[str, int]:
    from headrace.streams.client.admin import group_lag  # noqa: PLC0415  brings Kafka's client

    prefix = stack.kafka.topic_prefix
    return {
        stage.name: sum(group_lag(stack.kafka, stage.group(prefix), stage.topics(prefix)).values())
        for stage in PIPELINE
    }


def _settle(stack: "DemoStack", *, deadline: float) -> None:
    """Until nothing is left to read."""
    while any(lags := _lags(stack).values()):
        stack.check()
        if time.monotonic() > deadline:
            raise FatalError(f"not done in time: {sum(lags)} records are still to be processed")
        time.sleep(0.2)


def _account(stack: "DemoStack", client: "ClickHouse") -> "Audit":
    from headrace.cli.demo.audit import audit  # noqa: PLC0415

    return audit(stack.kafka, client, max_gap=MAX_GAP)


def _tell_story(client: "ClickHouse", console: Console) -> None:
    from headrace.cli.sql_commands import show  # noqa: PLC0415  an extra

    for title, statement in STORY.items():
        console.print()
        console.print(title, style="bold", highlight=False)
        console.print(statement, style="dim", markup=False, highlight=False, soft_wrap=True)
        show(client, statement, console)


def _print_result(
    done: "Audit", first: float, last: float, seconds: float, *, has_learnt: bool, console: Console
) -> None:
    console.print()
    for words in done.words:
        console.print(words, style="red", markup=False, highlight=False, soft_wrap=True)
    failures = [
        *([] if done.is_clean else [f"wrong={done.wrong}"]),
        *([] if has_learnt else ["not_learnt"]),
    ]
    verdict = f"FAILED {' '.join(failures)}" if failures else "ok"
    click.echo(
        f"demo {verdict} attempts={done.attempts} transitions={done.transitions} batches={done.batches} "
        f"versions={done.versions} accuracy_first={first:.3f} accuracy_last={last:.3f} lost={done.lost} "
        f"duplicated={done.duplicated} seconds={seconds:.1f}"
    )
