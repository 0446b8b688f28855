"""Probing: what the policy's weights compute for a fixed sequence, for whoever loads them to compare."""

import random

import torch

from headrace.schemas.probe import Probe
from headrace.trainer.policy import Policy
from headrace.trainer.sample import MicroBatch

_NUM_TOKENS = 24
_SEED = 1
_DIGITS = 6


def probe_of(policy: Policy) -> Probe | None:
    """None where the policy's own logprobs are not those of temperature 1. Collective."""
    if policy.temperature != 1.0:
        return None
    token_ids = _token_ids(policy.vocabulary, min(_NUM_TOKENS, policy.max_positions - 1))
    (logprobs_BS,) = policy.logprobs([_micro_batch(token_ids)])
    logprobs = [round(logprob, _DIGITS) for logprob in logprobs_BS[0, 1:].tolist()]
    return Probe(token_ids=tuple(token_ids), logprobs=tuple(logprobs))


def _token_ids(vocabulary: int, number: int) -> list[int]:
    """The same for every version: what changes is the weights."""
    return random.Random(_SEED).choices(range(vocabulary), k=number)  # noqa: S311  reproducible, not secret


def _micro_batch(token_ids: list[int]) -> MicroBatch:
    zeros_BS = torch.zeros(1, len(token_ids))
    return MicroBatch(
        token_ids_BS=torch.tensor([token_ids]),
        weights_BS=zeros_BS,
        advantages_BS=zeros_BS,
        behaviour_logprobs_BS=zeros_BS,
        old_logprobs_BS=zeros_BS,
    )
