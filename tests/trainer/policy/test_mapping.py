import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.policy.config import Shape
from headrace.trainer.policy.mapping import Attention, Cut, GateUp, Rule, Same, Vocabulary, rules

HIDDEN = 6


def shape(*, is_tied: bool = False, has_qkv_bias: bool = False, has_qk_norm: bool = False) -> Shape:
    return Shape(
        num_layers=4,
        num_heads=8,
        num_groups=4,
        head_dim=3,
        vocab_size=11,
        is_tied=is_tied,
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
    )


def whole(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Every element is another number."""
    found, begin = [], 0
    for size in sizes:
        number = torch.Size(size).numel()
        found.append(torch.arange(begin, begin + number).view(size))
        begin += number
    return found


@given(tp_size=st.sampled_from([1, 2, 4]), tail=st.sampled_from([(), (HIDDEN,)]), data=st.data())
def test_what_is_cut_for_ranks_joins_to_what_it_was(
    tp_size: int, tail: tuple[int, ...], data: st.DataObject
) -> None:
    num_tokens = data.draw(st.integers(1, 40))
    cases: list[tuple[Rule, list[torch.Tensor]]] = [
        (Same(("a",)), whole((8, *tail))),
        (Cut(("a",), 0), whole((8, *tail))),
        (Cut(("a",), 1), whole((3, 8))),
        (Vocabulary(("a",), num_tokens), whole((num_tokens, HIDDEN))),
        (Attention(("q", "k", "v"), 8, 4, 3), whole((24, *tail), (12, *tail), (12, *tail))),
        (GateUp(("gate", "up")), whole((8, *tail), (8, *tail))),
    ]
    for rule, tensors in cases:
        shards = [rule.shard(tensors, rank, tp_size) for rank in range(tp_size)]
        assert len({shard.shape for shard in shards}) == 1
        joined = rule.join(shards)
        assert len(joined) == len(rule.hf) == len(tensors)
        for found, wanted in zip(joined, tensors, strict=True):
            assert torch.equal(found, wanted)


def test_a_group_has_its_queries_then_its_key_then_its_value() -> None:
    query, key, value = torch.tensor([1, 2, 3, 4]), torch.tensor([10, 20]), torch.tensor([100, 200])
    rule = Attention(("q", "k", "v"), num_heads=4, num_groups=2, head_dim=1)
    assert rule.shard([query, key, value], 0, 1).tolist() == [1, 2, 10, 100, 3, 4, 20, 200]
    assert rule.shard([query, key, value], 1, 2).tolist() == [3, 4, 20, 200]


def test_a_rank_has_its_part_of_the_gate_before_its_part_of_the_up_projection() -> None:
    gate, up = torch.tensor([1, 2, 3, 4]), torch.tensor([10, 20, 30, 40])
    assert GateUp(("gate", "up")).shard([gate, up], 1, 2).tolist() == [3, 4, 30, 40]


def test_a_vocabulary_is_filled_up_with_zeros_and_comes_back_without() -> None:
    rule = Vocabulary(("a",), 3)
    shards = [rule.shard([torch.ones(3, 2)], rank, 2) for rank in range(2)]
    assert shards[1].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert rule.join(shards)[0].shape == (3, 2)


def test_a_stage_maps_its_own_layers() -> None:
    found = rules(shape(), layers=[2, 3])
    assert found["decoder.layers.0.mlp.linear_fc2.weight"].hf == ("model.layers.2.mlp.down_proj.weight",)
    assert found["decoder.layers.1.self_attention.linear_qkv.weight"].hf == (
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.k_proj.weight",
        "model.layers.3.self_attn.v_proj.weight",
    )
    assert not any(name.startswith("decoder.layers.2") for name in found)


@pytest.mark.parametrize(
    ("model", "name", "is_there"),
    [
        pytest.param(shape(has_qkv_bias=True), "linear_qkv.bias", True, id="qwen2-bias"),
        pytest.param(shape(), "linear_qkv.bias", False, id="no-bias"),
        pytest.param(shape(has_qk_norm=True), "q_layernorm.weight", True, id="qwen3-norm"),
        pytest.param(shape(), "q_layernorm.weight", False, id="no-norm"),
    ],
)
def test_families_have_their_own_weights(model: Shape, name: str, is_there: bool) -> None:  # noqa: FBT001
    assert (f"decoder.layers.0.self_attention.{name}" in rules(model, [0])) is is_there


@pytest.mark.parametrize(
    ("is_tied", "name"),
    [(True, "model.embed_tokens.weight"), (False, "lm_head.weight")],
    ids=["tied", "untied"],
)
def test_a_tied_head_is_the_embedding(is_tied: bool, name: str) -> None:  # noqa: FBT001
    assert rules(shape(is_tied=is_tied), [0])["output_layer.weight"].hf == (name,)
