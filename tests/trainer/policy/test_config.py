from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.trainer.policy.models import config_of
from transformers import GPT2Config, PretrainedConfig

from headrace.trainer.policy import Parallel, UnsupportedModelError
from headrace.trainer.policy.config import Positions, Shape, transformer_config


def spread(tensor: int = 1, pipeline: int = 1) -> Parallel:
    settings = SimpleNamespace(sequence=False)
    fields = {"tp_size": tensor, "pp_size": pipeline, "settings": settings, "device": torch.device("cpu")}
    return cast("Parallel", SimpleNamespace(**fields))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GPT2Config(), id="another-family"),
        pytest.param(config_of("llama", hidden_act="gelu"), id="activation"),
        pytest.param(config_of("llama", attention_bias=True), id="attention-bias"),
        pytest.param(config_of("qwen3", attention_bias=True), id="qwen3-attention-bias"),
        pytest.param(config_of("llama", mlp_bias=True), id="mlp-bias"),
        pytest.param(config_of("qwen2", use_sliding_window=True, sliding_window=8), id="sliding-window"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(config: PretrainedConfig) -> None:
    with pytest.raises(UnsupportedModelError):
        Shape.of(config)


def rope(**changes: Any) -> PretrainedConfig:
    return cast("PretrainedConfig", SimpleNamespace(rope_parameters={"rope_theta": 7.0, **changes}))


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        pytest.param(rope(), Positions(7.0), id="default"),
        pytest.param(rope(rope_type="linear", factor=2.0), Positions(7.0, interpolation=2.0), id="linear"),
        pytest.param(
            rope(rope_type="llama3", factor=32.0, **LLAMA3),
            Positions(7.0, is_llama3=True, llama3_factor=32.0),
            id="llama3",
        ),
        pytest.param(SimpleNamespace(rope_theta=5.0), Positions(5.0), id="older-config"),
    ],
)
def test_positions(config: PretrainedConfig, positions: Positions) -> None:
    assert Positions.of(config) == positions


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(rope(rope_type="yarn", factor=4.0), id="yarn"),
        pytest.param(rope(partial_rotary_factor=0.5), id="partial"),
        pytest.param(rope(rope_type="llama3", factor=8.0, **{**LLAMA3, "low_freq_factor": 2.0}), id="llama3"),
    ],
)
def test_other_positions_are_refused(config: PretrainedConfig) -> None:
    with pytest.raises(UnsupportedModelError):
        Positions.of(config)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        pytest.param(spread(tensor=4), "2 key-value heads", id="groups"),
        pytest.param(spread(tensor=3), "4 heads", id="heads"),
        pytest.param(spread(pipeline=3), "2 layers", id="layers"),
    ],
)
def test_a_spread_that_does_not_divide_is_refused(parallel: Parallel, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        transformer_config(config_of("qwen2"), parallel, torch.float32)


@pytest.mark.parametrize(("tp_size", "rows"), [(1, 97), (2, 98), (4, 100)])
def test_the_vocabulary_is_padded_to_the_ranks(tp_size: int, rows: int) -> None:
    assert Shape.of(config_of("qwen2")).padded_vocab_size(tp_size) == rows
