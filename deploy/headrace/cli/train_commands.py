"""`headrace train`: learns from finalized batches and publishes new weights."""

import sys
from pathlib import Path

import click

from headrace.cli import logs
from headrace.cli.endpoints import codec, kafka_settings
from headrace.cli.examples import examples


@click.command(
    epilog=examples(
        "headrace train --config grpo.toml",
        "torchrun --nproc-per-node 8 -m headrace.cli train --config grpo.toml",
    )
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The run's settings, in TOML; trainer/examples has some.",
)
@click.option("--check", is_flag=True, help="Only say whether the settings are right.")
def train(config: Path, *, check: bool) -> None:
    """Train a policy on finalized batches, with Megatron, and publish its versions.

    Goes on from the run's newest checkpoint, if it has one; each batch is trained on once. Runs until what
    [stop] asks for is reached, or until SIGTERM or Ctrl-C: then the batch in hand is finished, and a
    checkpoint written. Under torchrun the model is spread by [parallel]. Settings of the environment win:
    HEADRACE_TRAIN_OPTIMIZER__LR=1e-5, and HEADRACE_KAFKA_*.
    """
    from headrace.trainer.settings import load  # noqa: PLC0415  an extra

    settings = load(config)
    if check:
        click.echo(f"{config} is right: run {settings.run.name}, {settings.algorithm.name}")
        return
    logs.configure()
    from headrace.trainer.run import run  # noqa: PLC0415  torch takes seconds

    sys.exit(run(kafka_settings(), settings, codec()))
