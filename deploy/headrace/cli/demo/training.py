"""What the training demo starts beside its stack: a model, its engine, proxy, runner, trainer and feeder."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from headrace.cli.demo.boxes import tasks
from headrace.cli.demo.recipe import AGENT, CREDIT_RULE, MAX_MEAN_GAP, Recipe
from headrace.cli.demo.stack import DemoStack
from headrace.cli.endpoints import read_settings
from headrace.cli.stack.ports import LOOPBACK, pick
from headrace.cli.stack.processor import ProcessorProcess
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.vllm import VllmServer
from headrace.schemas.errors import FatalError, HeadraceError
from headrace.schemas.records import RolloutConfig

RUN = "demo"
_NUM_TASKS = 200
_EPOCHS = 1000
_TRAINER_STOP_S = 180.0
_MODULES = {"small": "headrace.cli.demo.small_model", "smollm2": "headrace.cli.demo.smollm2"}


class Training:
    """What runs, until it is told to end."""

    def __init__(self, stack: DemoStack, recipe: Recipe, seed: int, trainer: ProcessorProcess) -> None:
        self._stack = stack
        self._recipe = recipe
        self._seed = seed
        self._trainer = trainer
        self._stop = threading.Event()
        self._failure: HeadraceError | None = None
        self._feeding = threading.Thread(target=self._feed, name="headrace-demo-feeder", daemon=True)

    def start(self) -> None:
        self._feeding.start()

    def check(self) -> None:
        """FatalError, if feeding has failed."""
        if self._failure is not None:
            raise FatalError(f"feeding tasks failed: {self._failure}")

    def wind_down(self, timeout_s: float) -> None:
        """Feed no more, let what runs end, and the trainer finish its batch."""
        from headrace.streams.client.rollouts import Client  # noqa: PLC0415  brings Kafka's client

        self._stop.set()
        self._feeding.join(timeout_s)
        with Client(self._stack.kafka) as client:
            client.wait_all(_enqueued(self._stack), timeout_s=timeout_s)
        self._stack.stop(self._trainer)
        if self._trainer.exit_status != 0:
            raise FatalError(f"the trainer did not end well:\n{self._trainer.tail()}")

    def close(self) -> None:
        self._stop.set()
        if self._feeding.is_alive():
            self._feeding.join(5.0)

    def _feed(self) -> None:
        from headrace.streams.client.feeder import Feeder, FeederSettings  # noqa: PLC0415  Kafka's client
        from headrace.streams.client.rollouts import JSON, Client  # noqa: PLC0415

        recipe = self._recipe
        settings = FeederSettings(
            run=RUN,
            group_size=recipe.group_size,
            epochs=_EPOCHS,
            seed=self._seed,
            max_in_flight_groups=(recipe.max_staleness + 1) * recipe.batch_groups,
            max_staleness=recipe.max_staleness,
            groups_per_version=recipe.batch_groups,
        )
        config = RolloutConfig(
            timeout_s=120,
            reward_grace_s=0,
            retry_on=("unresponsive", "failed"),
            credit_rule=CREDIT_RULE,
        )
        try:
            with Client(self._stack.kafka) as client:
                given: list[JSON] = [*tasks(_NUM_TASKS, self._seed, recipe.form)]
                feeder = Feeder(client, given, settings, config=config)
                feeder.run(self._stop)
        except HeadraceError as error:
            self._failure = error


@contextmanager
def start_training(stack: DemoStack, recipe: Recipe, seed: int, console: Console) -> Iterator[Training]:
    """Everything runs within; the first rollouts are on their way."""
    model = stack.home / "model"
    with console.status("the model is made and taught to answer with a digit"):
        words = _make_model(recipe.model, model, seed)
    console.print(words, markup=False, highlight=False, soft_wrap=True)
    config = stack.home / "train.toml"
    config.write_text(recipe.configuration(RUN, model, stack.home / "run", seed))
    trainer = stack.process("train", "--config", str(config), OMP_NUM_THREADS="1")
    # It finishes its batch and writes a checkpoint first, of SmolLM2 with Adam's state 1.6 GB.
    trainer.stop_timeout_s = _TRAINER_STOP_S
    stack.start(trainer)
    engine = VllmServer(
        stack.home / "vllm",
        model=model,
        max_model_len=recipe.max_model_len,
        max_num_seqs=recipe.concurrency,
        bytecode=read_settings(StackSettings).cache / "vllm-bytecode",
        log_dir=stack.home / "logs",
    )
    stack.start(engine)
    port = pick(None)
    stack.start(
        stack.process(
            "proxy",
            "--upstream",
            engine.endpoint,
            "--port",
            str(port),
            HEADRACE_PROXY_CHECK_S="2",
            HEADRACE_PROXY_MAX_GAP=str(MAX_MEAN_GAP),
        )
    )
    stack.start(
        stack.process(
            "runner", AGENT, "--proxy", f"http://{LOOPBACK}:{port}", "--concurrency", str(recipe.concurrency),
            HEADRACE_RUNNER_PROXY_OPEN_TIMEOUT_S="120",
        )
    )  # fmt: skip
    training = Training(stack, recipe, seed, trainer)
    training.start()
    try:
        yield training
    finally:
        training.close()


def _make_model(kind: str, folder: Path, seed: int) -> str:
    """In a process of its own: torch and Megatron stay out of this one. What it says at its end."""
    done = subprocess.run(
        [sys.executable, "-m", _MODULES[kind], str(folder), str(seed)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FatalError(f"the model could not be made:\n{done.stderr.strip()[-2000:]}")
    return done.stdout.splitlines()[-1]


def _enqueued(stack: DemoStack) -> list[str]:
    """Rollouts that were handed over."""
    from headrace.cli.demo.audit import Log  # noqa: PLC0415
    from headrace.schemas.records import RolloutCommand  # noqa: PLC0415

    commands = Log(stack.kafka).read(RolloutCommand)
    return sorted({each.rollout_id for each in commands if each.kind == "enqueue"})
