"""A policy on one GPU: it computes what Hugging Face does on the CPU, in float32 and about that in bf16."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.trainer.policy.models import MODELS, SETTINGS, Reference, batches, loss, reference, write_model
from tests.trainer.policy.runs import run_model, run_steps

from headrace.trainer.policy import Parallel, Policy, cpu
from headrace.trainer.policy.model import has_transformer_engine

pytestmark = pytest.mark.gpu

# Transformer Engine multiplies float32 as TF32.
TOLERANCE = 2e-2 if has_transformer_engine() else 1e-4
# Seen on a CPU: logprobs 0.08, losses 0.002, gradient norms 1.3 %.
BF16_LOGPROBS, BF16_LOSSES, BF16_NORMS = 0.2, 0.02, 0.05


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        write_model(folder / name, name)
    return folder


@pytest.fixture(scope="module")
def references(models: Path) -> dict[str, Reference]:
    return {name: reference(models / name) for name in MODELS}


@pytest.fixture
def parallel() -> Iterator[Parallel]:
    with Parallel.start() as found:
        yield found


def test_megatron_has_the_real_cuda(parallel: Parallel) -> None:
    assert parallel.device.type == "cuda"
    assert not cpu.is_needed()
    assert torch.zeros(1, device="cuda").type() == "torch.cuda.FloatTensor"


@pytest.mark.parametrize("name", MODELS)
def test_float32_computes_what_hugging_face_does(
    name: str, models: Path, references: dict[str, Reference], parallel: Parallel
) -> None:
    found, wanted = run_model(parallel, models / name), references[name]
    for logprobs, wanted_logprobs in zip(found.logprobs, wanted.logprobs, strict=True):
        torch.testing.assert_close(logprobs, wanted_logprobs, atol=TOLERANCE, rtol=0)
    assert [step.loss for step in found.steps] == pytest.approx(wanted.losses, abs=TOLERANCE)
    assert [step.grad_norm for step in found.steps] == pytest.approx(wanted.grad_norms, abs=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_the_default_and_near(
    name: str, models: Path, references: dict[str, Reference], parallel: Parallel
) -> None:
    policy = Policy(models / name, parallel, SETTINGS)
    wanted = references[name]
    for logprobs, wanted_logprobs in zip(policy.logprobs(batches(0)), wanted.logprobs, strict=True):
        assert logprobs.dtype == torch.float32
        torch.testing.assert_close(logprobs.cpu(), wanted_logprobs, atol=BF16_LOGPROBS, rtol=0)
    steps = run_steps(policy)
    assert [step.loss for step in steps] == pytest.approx(wanted.losses, abs=BF16_LOSSES)
    assert [step.grad_norm for step in steps] == pytest.approx(wanted.grad_norms, rel=BF16_NORMS)
    weights = policy.hf_state_dict()
    assert weights is not None
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert {weight.device.type for weight in weights.values()} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_goes_on(dtype: torch.dtype, models: Path, parallel: Parallel, tmp_path: Path) -> None:
    policy = Policy(models / "qwen3", parallel, SETTINGS, dtype=dtype)
    policy.train(batches(0), loss)
    policy.save(tmp_path)
    random = torch.rand(3, device="cuda")
    wanted = run_steps(policy, first=1)
    resumed = Policy(models / "qwen3", parallel, SETTINGS, dtype=dtype)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3, device="cuda"), random)
    found = run_steps(resumed, first=1)
    assert [step.loss for step in found] == pytest.approx([step.loss for step in wanted], rel=1e-5)


def test_a_policy_that_was_never_trained_can_be_saved(
    models: Path, parallel: Parallel, tmp_path: Path
) -> None:
    policy = Policy(models / "qwen2", parallel, SETTINGS)
    policy.save(tmp_path)
    policy.load(tmp_path)
    assert policy.num_steps == 0


def test_a_large_vocabulary_takes_no_more_memory_than_its_parts(parallel: Parallel, tmp_path: Path) -> None:
    """All logits of 32,768 positions and 131,072 tokens would be 16 GiB in float32, gradients as much."""
    folder = write_model(tmp_path / "large", "qwen2", with_weights=False, vocab_size=131072)
    policy = Policy(folder, parallel, SETTINGS)
    batch = batches(0)[0]
    wide = type(batch)(*(None if t is None else t.repeat_interleave(128, 0) for t in batch))  # type: ignore[arg-type]
    wide = type(batch)(*(t if t is None or t.dim() == 1 else t.repeat(1, 12)[:, :128] for t in wide))  # type: ignore[arg-type]
    torch.cuda.reset_peak_memory_stats()
    policy.train([wide], loss)
    assert torch.cuda.max_memory_allocated() < 4 << 30
