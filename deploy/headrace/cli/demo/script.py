"""What each attempt of the demo does, and what must come of it: written down before it is played.

The demo's agent plays the script in a runner; the account compares ClickHouse with the script. Pure: seed,
number and attempt give the script.
"""

import random
from dataclasses import dataclass
from typing import Literal

from headrace.schemas.records import Generation, RolloutConfig

GROUP_SIZE = 4
MODEL = "tiny-policy"

Kind = Literal["complete", "incomplete", "fails", "hangs", "no_outcome", "untrainable"]
StepKind = Literal["call", "tool", "unused", "lost"]

_WEIGHTS: dict[Kind, float] = {
    "complete": 82,
    "incomplete": 6,
    "fails": 6,
    "hangs": 0.2,
    "no_outcome": 3,
    "untrainable": 3,
}
_REASONS: dict[Kind, str | None] = {
    "complete": None,
    "incomplete": "missing_sequence_ids",
    "fails": "attempt_failed",
    "hangs": "attempt_timeout",
    "no_outcome": "no_outcome_reward",
    "untrainable": "no_trainable_calls",
}


def config(grace_s: float, credit_rule: str) -> RolloutConfig:
    """Of every rollout: a failure is tried once more, a hang is not."""
    return RolloutConfig(
        timeout_s=5.0,
        heartbeat_timeout_s=15.0,
        max_attempts=2,
        retry_on=("failed", "unresponsive"),
        reward_grace_s=grace_s,
        credit_rule=credit_rule,
    )


def credit_rule_of(number: int) -> str:
    return "per_step@1" if number % 3 == 0 else "outcome@1"


@dataclass(frozen=True)
class Step:
    """One sequence id: a model call, a tool, an id that is not used, or a span lost on its way."""

    kind: StepKind
    generation: Generation | None = None
    is_doubled: bool = False
    """Published twice, as a program that tries again would."""


@dataclass(frozen=True)
class Transition:
    """What one model call must look like in the end."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float | None


@dataclass(frozen=True)
class Script:
    """Steps take sequence ids 1, 2, 3 … and are published in `order`; an outcome takes the next id."""

    kind: Kind
    number: int
    steps: tuple[Step, ...]
    order: tuple[int, ...]
    outcome: float | None

    @property
    def reason(self) -> str | None:
        """Why the attempt must not train; None: it must be accepted."""
        return _REASONS[self.kind]

    @property
    def is_tried_again(self) -> bool:
        return self.kind == "fails"

    def span_ids(self) -> set[int]:
        """Sequence ids of which there is a span, a void one where the id is not used."""
        return {at for at, step in enumerate(self.steps, 1) if step.kind != "lost"}

    def reward_ids(self) -> set[int]:
        """Sequence ids of rewards."""
        return {len(self.steps) + 1} if self.outcome is not None else set()

    def transitions(self) -> dict[int, Transition]:
        """By sequence id."""
        calls = [(at, step.generation) for at, step in enumerate(self.steps, 1) if step.generation]
        found = {}
        for index, (at, call) in enumerate(calls):
            is_credited = credit_rule_of(self.number) == "outcome@1" or index == len(calls) - 1
            found[at] = Transition(
                call.prompt_token_ids,
                call.response_token_ids,
                call.response_logprobs,
                self.outcome if is_credited else None,
            )
        return found


def script(seed: int, number: int, attempt: int) -> Script:
    """The script of one attempt of one rollout."""
    rng = random.Random(f"{seed}:{number}:{attempt}")  # noqa: S311  a workload, not a secret
    kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    steps: list[Step] = []
    prompt = tuple(rng.choices(range(384), k=rng.randint(8, 24)))
    for turn in range(rng.randint(1, 4)):
        call = _call(rng, prompt, turn, is_known=kind != "untrainable")
        steps.append(Step("call", call, is_doubled=rng.random() < 0.1))
        if rng.random() < 0.5:
            steps.append(Step("tool", is_doubled=rng.random() < 0.1))
        if rng.random() < 0.1:
            steps.append(Step("unused"))
        prompt = prompt + call.response_token_ids + tuple(rng.choices(range(384), k=rng.randint(2, 6)))
    if kind == "incomplete":
        steps[rng.randrange(len(steps))] = Step("lost")
    order = list(range(len(steps)))
    rng.shuffle(order)
    has_outcome = kind in {"complete", "incomplete", "untrainable"}
    outcome = round(rng.random(), 3) if has_outcome else None
    return Script(kind, number, tuple(steps), tuple(order), outcome)


def _call(rng: random.Random, prompt: tuple[int, ...], turn: int, *, is_known: bool) -> Generation:
    """A call as an engine would report it; without token ids as an API that gives none would."""
    response = tuple(rng.choices(range(384), k=rng.randint(4, 32)))
    logprobs = tuple(-rng.random() * 4 for _ in response)
    return Generation(
        agent="solver",
        model=MODEL,
        resource_name="policy",
        resource_version=1 + turn % 3,
        request=f'{{"model": "{MODEL}", "turn": {turn}}}',
        response=f'{{"usage": {{"completion_tokens": {len(response)}}}}}',
        prompt_token_ids=prompt if is_known else (),
        response_token_ids=response if is_known else (),
        response_logprobs=logprobs if is_known else (),
        prompt_tokens=len(prompt),
        completion_tokens=len(response),
        finish_reason=rng.choice(("stop", "length", "tool_calls")),
        sampling={"temperature": 1.0},
        untrainable_reason=None if is_known else "no_token_ids",
    )
