"""Settings of a trainer: a TOML file of sections, and the environment, which wins.

Kafka is reached by `HEADRACE_KAFKA_*`, as from everywhere. Nothing here imports torch.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from headrace.schemas.errors import FatalError

Dtype = Literal["auto", "float32", "bfloat16"]
LossAggregation = Literal["rollout_mean", "token_mean", "sequence_sum"]
RewardKind = Literal["outcome", "sum", "step"]
OldLogprobs = Literal["behaviour", "policy"]


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RunSettings(Section):
    name: str = Field(min_length=1, max_length=512)
    """The run's id, in its TrainStep records."""
    seed: int = Field(default=0, ge=0)
    output: Path
    """The folder that checkpoints and versions go to, where they are given no own."""


class ModelSettings(Section):
    path: Path
    """An HF folder: config.json, safetensors, tokenizer."""
    reference: Path | None = None
    """Of the model that the KL term measures from; None: the one at `path`."""
    dtype: Dtype = "auto"
    """auto: bfloat16 on a GPU, float32 on a CPU."""
    resource: str = Field(default="policy", min_length=1)
    """The name of the resource whose versions are published."""
    temperature: float = Field(default=1.0, gt=0)
    """That agents sample at: logprobs are of logits divided by it, as vLLM's processed_logprobs are."""


class ParallelSettings(Section):
    """What processes are left of torchrun's are data-parallel."""

    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    sequence: bool = False
    """Sequence parallelism: TP's processes share activations too, each a part of the sequence."""


class OptimizerSettings(Section):
    """AdamW."""

    lr: float = Field(default=1e-6, gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, ge=0)
    """The largest gradient norm; 0: no clipping."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """After the warm-up; cosine and linear fall to 0 at total_steps."""
    warmup_steps: int = Field(default=0, ge=0)
    total_steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.schedule != "constant" and self.total_steps is None:
            raise ValueError(f"schedule {self.schedule!r} needs total_steps")
        if self.total_steps is not None and self.warmup_steps > self.total_steps:
            raise ValueError("warmup_steps is more than total_steps")
        return self


class _AlgorithmSettings(Section):
    loss_aggregation: LossAggregation = "rollout_mean"
    """rollout_mean: each rollout counts the same; token_mean: each token; sequence_sum: sums of tokens."""
    num_epochs: int = Field(default=1, ge=1)
    """Times that a batch is trained on."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps of an epoch."""

    @property
    def needs_call_rewards(self) -> bool:
        """Whether a call without a credited reward can't be trained on."""
        return False


class PolicyGradientSettings(_AlgorithmSettings):
    """What GRPO and PPO share."""

    reward: RewardKind = "outcome"
    """Of a rollout: its outcome, or the sum of its calls' credited rewards; step: each call has its own."""
    normalize_std: bool = True
    """Divide advantages by the rewards' standard deviation; Dr. GRPO does not."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.28, ge=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """Where the advantage is negative the ratio counts as at most this."""
    old_logprobs: OldLogprobs = "behaviour"
    """What the clipped ratio is against: the engine's logprobs, or the trainer's before its first step on the
    batch, with truncated importance sampling for the rest (one more forward pass)."""
    tis_cap: float = Field(default=2.0, ge=0)
    """Of the truncated importance sampling weight; 0: none."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Of the KL term; above 0 a reference model is held."""
    entropy_coef: float = Field(default=0.0, ge=0)

    @property
    def needs_call_rewards(self) -> bool:
        return self.reward == "step"


class GrpoSettings(PolicyGradientSettings):
    """Advantages relative to the rollouts of the same group."""

    name: Literal["grpo"] = "grpo"


class PpoSettings(PolicyGradientSettings):
    """Advantages relative to the whole batch."""

    name: Literal["ppo"] = "ppo"
    clip_high: float = Field(default=0.2, ge=0)


class SftSettings(_AlgorithmSettings):
    """Supervised, on what accepted rollouts said."""

    name: Literal["sft"] = "sft"
    min_outcome: float | None = None
    """Rollouts with less, or without an outcome, are left out; None: none are."""


AlgorithmSettings = Annotated[GrpoSettings | PpoSettings | SftSettings, Field(discriminator="name")]


class DataSettings(Section):
    max_staleness: int = Field(default=4, ge=0)
    """How many versions a batch's oldest call may be behind; more: it is left out, and counted (C15)."""
    max_sequence_tokens: int = Field(default=4096, ge=2)
    too_long: Literal["cut", "drop"] = "cut"
    """What becomes of a longer sequence."""
    micro_batch_tokens: int = Field(default=16_384, ge=2)
    """Positions of a micro-batch, padding included; a longer sequence is alone in its own."""
    batch_wait_s: float = Field(default=60.0, gt=0)
    """Without a batch for so long the trainer says what it waits for, and again after as long (C14)."""
    on_bad_batch: Literal["stop", "skip"] = "stop"
    """A batch that is corrupt, or lacks shards, ends the run, each time; skip: it is logged, and left out."""
    agents: tuple[str, ...] = ()
    """Whose calls are trained on; empty: all."""
    start: Literal["earliest", "latest"] = "earliest"
    """Of the topic, for a run without a checkpoint."""


class CheckpointSettings(Section):
    every_steps: int = Field(default=10, ge=1)
    keep: int = Field(default=3, ge=1)
    path: Path | None = None
    """None: `checkpoints` in the run's folder."""


class PublishSettings(Section):
    every_steps: int = Field(default=1, ge=1)
    path: Path | None = None
    """None: `versions` in the run's folder. The proxy must see it under the same path."""
    keep: int = Field(default=3, ge=1)
    dtype: Dtype = "auto"
    """auto: as trained."""


class StopSettings(Section):
    """Whatever comes first; nothing: it goes on until it is stopped."""

    max_steps: int | None = Field(default=None, ge=1)
    max_versions: int | None = Field(default=None, ge=1)
    """That the run has published, the one that it began with among them."""
    reward: float | None = None
    """The mean over the last `reward_window` settled rollouts that is enough, in batches or not."""
    reward_window: int = Field(default=256, ge=1)


class TrainSettings(BaseSettings):
    """Environment: `HEADRACE_TRAIN_<SECTION>__<KEY>`, as in `HEADRACE_TRAIN_OPTIMIZER__LR=1e-5`."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_TRAIN_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    run: RunSettings
    model: ModelSettings
    parallel: ParallelSettings = ParallelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    algorithm: AlgorithmSettings = GrpoSettings()
    data: DataSettings = DataSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    publish: PublishSettings = PublishSettings()
    stop: StopSettings = StopSettings()

    @property
    def checkpoint_path(self) -> Path:
        return self.checkpoint.path or self.run.output / "checkpoints"

    @property
    def publish_path(self) -> Path:
        return self.publish.path or self.run.output / "versions"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings


def load(path: Path) -> TrainSettings:
    """The settings in the file, under the environment's; FatalError names each table and key at fault."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise FatalError(f"can't read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FatalError(f"{path} is no TOML: {error}") from error
    return read(tables, path)


def read(tables: Mapping[str, Any], origin: Path) -> TrainSettings:
    """The settings in parsed tables, under the environment's; `origin` is named in errors."""
    try:
        return TrainSettings(**tables)
    except SettingsError as error:
        raise FatalError(f"in the environment: {error}") from error
    except ValidationError as error:
        faults = "; ".join(_fault(each["loc"], each["type"], each["msg"]) for each in error.errors())
        raise FatalError(f"{origin}, or the environment over it: {faults}") from error


def _fault(place: tuple[int | str, ...], kind: str, message: str) -> str:
    """`[table] key: what is wrong`."""
    table, *keys = map(str, place) if place else ("",)
    if table == "algorithm" and keys:
        keys = keys[1:]  # the name that chose the algorithm
    if kind.startswith("union_tag"):
        keys = ["name"]
    words = {
        "extra_forbidden": f"there is no such {'key' if keys else 'table'}",
        "missing": "is missing",
        "union_tag_not_found": "is missing",
    }.get(kind, message.removeprefix("Value error, "))
    return f"{' '.join([f'[{table}]', '.'.join(keys)]).rstrip()}: {words}"
