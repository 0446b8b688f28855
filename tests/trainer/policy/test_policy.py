from pathlib import Path

import pytest
import torch
from tests.trainer.policy.models import (
    SETTINGS,
    Reference,
    batches,
    hugging_face,
    loss,
    micro_batch,
    statistics,
    total_loss,
)
from tests.trainer.policy.runs import run_steps

from headrace.trainer.policy import OptimizerSettings, Parallel, ParallelSettings, Policy, ScheduleSettings
from headrace.trainer.sample import LossOutput, MicroBatch


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    found = policy.hf_state_dict()
    assert found is not None
    return found


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["qwen2", "llama-tied"])
def test_what_is_loaded_is_exported(name: str, models: Path, parallel: Parallel) -> None:
    policy = Policy(models / name, parallel)
    wanted = hugging_face(models / name).state_dict()
    if name.endswith("tied"):
        del wanted["lm_head.weight"]
    assert_equal(weights_of(policy), wanted)


def test_logprobs_are_of_logits_divided_by_the_temperature(models: Path, parallel: Parallel) -> None:
    policy = Policy(models / "qwen2", parallel, temperature=0.5)
    batch = batches(0)[0]
    with torch.no_grad():
        wanted, _ = statistics(hugging_face(models / "qwen2"), batch.token_ids_BS, temperature=0.5)
    torch.testing.assert_close(policy.logprobs([batch])[0], wanted, atol=1e-5, rtol=0)


def test_a_head_in_parts_computes_the_same(models: Path, parallel: Parallel) -> None:
    policy = Policy(models / "llama-tied", parallel, SETTINGS)
    model = hugging_face(models / "llama-tied")
    policy._model.max_logits = 5 * 97
    wanted = total_loss(model, batches(0))
    wanted.backward()  # type: ignore[no-untyped-call]
    output = policy.train(batches(0), loss)
    assert output.loss == pytest.approx(wanted.item(), abs=1e-5)
    norm = torch.nn.utils.get_total_norm(
        [weight.grad for weight in model.parameters() if weight.grad is not None]
    )
    assert output.grad_norm == pytest.approx(norm.item(), abs=1e-5)


def test_padding_changes_nothing(models: Path, parallel: Parallel) -> None:
    """Neither on the right of a sequence, nor a whole micro-batch without weights, that fills a rank up."""
    batch = batches(0)[0]
    padded = batch._replace(
        **{
            name: torch.nn.functional.pad(tensor, (0, 6))
            for name, tensor in batch._asdict().items()
            if tensor is not None and tensor.dim() == 2
        }
    )
    empty = micro_batch(0, 1, 1)
    plain = Policy(models / "qwen3", parallel, SETTINGS)
    wanted_logprobs = plain.logprobs([batch])[0]
    wanted = plain.train([batch], loss)
    policy = Policy(models / "qwen3", parallel, SETTINGS)
    logprobs, nothing = policy.logprobs([padded, empty])
    torch.testing.assert_close(logprobs[:, :11], wanted_logprobs, atol=1e-5, rtol=0)
    assert nothing.tolist() == [[0.0]]
    found = policy.train([padded, empty], loss)
    assert (found.loss, found.grad_norm) == pytest.approx((wanted.loss, wanted.grad_norm), abs=1e-5)


def test_a_step_with_gradients_that_are_not_finite_changes_nothing(models: Path, parallel: Parallel) -> None:
    policy = Policy(models / "qwen2", parallel, SETTINGS)
    undisturbed = Policy(models / "qwen2", parallel, SETTINGS)

    def broken(logprobs_BS: torch.Tensor, _entropy_BS: torch.Tensor, _batch: MicroBatch) -> LossOutput:
        return LossOutput(logprobs_BS.sum() * float("nan"))

    before = weights_of(policy)
    output = policy.train(batches(0), broken)
    assert output.was_skipped
    assert policy.num_steps == 0
    assert_equal(weights_of(policy), before)
    assert policy.train(batches(0), loss) == undisturbed.train(batches(0), loss)
    assert_equal(weights_of(policy), weights_of(undisturbed))


def test_the_learning_rate_is_the_schedules(models: Path, parallel: Parallel) -> None:
    settings = OptimizerSettings(lr=1e-3, schedule=ScheduleSettings(warmup_steps=2))
    policy = Policy(models / "qwen2", parallel, settings)
    before = weights_of(policy)["model.norm.weight"]
    assert policy.train(batches(0), loss).lr == 5e-4
    # Adam's first step is the learning rate, whatever the gradient.
    moved = (weights_of(policy)["model.norm.weight"] - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 5e-4), atol=1e-6, rtol=0)
    assert policy.train(batches(1), loss).lr == 1e-3


def test_half_precision_keeps_what_is_smaller_than_its_own_steps(models: Path, parallel: Parallel) -> None:
    """The optimizer's weights are float32: updates too small for bf16 add up there."""
    # Norms are about 1, where bf16 knows no difference below 0.004.
    policy = Policy(models / "qwen2", parallel, OptimizerSettings(lr=5e-4), dtype=torch.bfloat16)
    name = "model.norm.weight"
    before = weights_of(policy)[name]
    assert before.dtype == torch.bfloat16
    policy.train(batches(0), loss)
    assert torch.equal(weights_of(policy)[name], before)
    for _ in range(10):
        policy.train(batches(0), loss)
    assert (weights_of(policy)[name] != before).float().mean() > 0.5
    assert policy.logprobs(batches(0))[0].dtype == torch.float32


def test_a_resumed_run_goes_on_bit_for_bit(models: Path, parallel: Parallel, tmp_path: Path) -> None:
    policy = Policy(models / "qwen3", parallel, SETTINGS)
    policy.train(batches(0), loss)
    policy.save(tmp_path)
    random = torch.rand(3)
    wanted = run_steps(policy, first=1)
    resumed = Policy(models / "qwen3", parallel, SETTINGS)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3), random)
    assert run_steps(resumed, first=1) == wanted
    assert_equal(weights_of(resumed), weights_of(policy))


def test_each_weight_counts_its_own_steps_after_a_resume(
    models: Path, parallel: Parallel, tmp_path: Path
) -> None:
    """Megatron gives all of them one tensor, which a step would count up once for each weight."""
    policy = Policy(models / "qwen2", parallel, SETTINGS)
    policy.train(batches(0), loss)
    policy.save(tmp_path)
    policy.load(tmp_path)
    states = policy._trained._optimizer.optimizer.state.values()
    assert len({state["step"].data_ptr() for state in states}) == len(states)
    policy.train(batches(1), loss)
    assert {state["step"].item() for state in states} == {2.0}


def test_a_policy_that_was_never_trained_can_be_saved(
    models: Path, parallel: Parallel, tmp_path: Path
) -> None:
    policy = Policy(models / "qwen2", parallel, SETTINGS)
    policy.save(tmp_path)
    resumed = Policy(models / "qwen2", parallel, SETTINGS)
    resumed.load(tmp_path)
    assert resumed.num_steps == 0
    assert run_steps(resumed) == run_steps(policy)


def test_a_seed_decides_a_model_without_weights(models: Path, parallel: Parallel) -> None:
    one, same, other = (Policy(models / "fresh", parallel, seed=seed) for seed in (1, 1, 2))
    assert_equal(weights_of(one), weights_of(same))
    name = "model.embed_tokens.weight"
    assert not torch.equal(weights_of(one)[name], weights_of(other)[name])


def test_a_policy_without_an_optimizer_only_speaks(models: Path, parallel: Parallel, tmp_path: Path) -> None:
    policy = Policy(models / "qwen2", parallel)
    assert len(policy.logprobs(batches(0))) == 4
    assert policy.logprobs([]) == []
    with pytest.raises(RuntimeError, match="without an optimizer"):
        policy.train(batches(0), loss)
    with pytest.raises(RuntimeError, match="without an optimizer"):
        policy.save(tmp_path)


def test_a_sequence_longer_than_the_models_positions_is_refused(models: Path, parallel: Parallel) -> None:
    policy = Policy(models / "qwen2", parallel)
    with pytest.raises(ValueError, match="16385 tokens"):
        policy.logprobs([micro_batch(0, 1, 16385)])


def test_files_that_are_not_the_configs_are_refused(models: Path, parallel: Parallel, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((models / "qwen3" / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((models / "llama" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="the config asks for"):
        Policy(tmp_path, parallel)


def test_processes_that_hold_no_whole_model_are_refused() -> None:
    with pytest.raises(ValueError, match="start a multiple of 2"):
        Parallel.start(ParallelSettings(tensor=2))
    Parallel.start().close()


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_bf16_is_near(name: str, models: Path, references: dict[str, Reference], parallel: Parallel) -> None:
    policy, wanted = Policy(models / name, parallel, SETTINGS, dtype=torch.bfloat16), references[name]
    for logprobs, wanted_logprobs in zip(policy.logprobs(batches(0)), wanted.logprobs, strict=True):
        torch.testing.assert_close(logprobs, wanted_logprobs, atol=0.2, rtol=0)
    steps = run_steps(policy)
    assert [step.loss for step in steps] == pytest.approx(wanted.losses, abs=0.01)
    assert [step.grad_norm for step in steps] == pytest.approx(wanted.grad_norms, rel=0.05)
    assert {weight.dtype for weight in weights_of(policy).values()} == {torch.bfloat16}
