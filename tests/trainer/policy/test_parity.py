"""Any spread of a model computes what Hugging Face and AdamW do, and so does a run that went on elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.policy.models import MODELS, NUM_STEPS, Reference, batches, hugging_face
from tests.trainer.policy.processes import results_of, torchrun
from tests.trainer.policy.runs import CHECKPOINTED, Result, resume
from tests.trainer.policy.worker import FRESH_SEED

from headrace.trainer.policy import Parallel, ParallelSettings, Policy

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Spread:
    num_processes: int
    settings: ParallelSettings


SPREADS = {
    "dp2": Spread(2, ParallelSettings()),
    "tp2": Spread(2, ParallelSettings(tensor=2)),
    "pp2": Spread(2, ParallelSettings(pipeline=2)),
    "tp2-pp2": Spread(4, ParallelSettings(tensor=2, pipeline=2)),
    "dp2-tp2": Spread(4, ParallelSettings(tensor=2)),
    "dp2-pp2": Spread(4, ParallelSettings(pipeline=2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_process_computes_what_hugging_face_does(
    name: str, alone: tuple[dict[str, Result], Path], references: dict[str, Reference]
) -> None:
    assert_same(alone[0][name], references[name], batches_of=(0, 1))


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS.keys())
def test_processes_compute_what_hugging_face_does(
    spread: Spread,
    models: Path,
    alone: tuple[dict[str, Result], Path],
    references: dict[str, Reference],
    tmp_path: Path,
) -> None:
    arguments = [str(models), str(tmp_path), str(alone[1]), spread.settings.model_dump_json()]
    torchrun("tests.trainer.policy.worker", spread.num_processes, arguments)
    ranks = results_of(tmp_path)
    assert len(ranks) == spread.num_processes
    dp_size = spread.num_processes // (spread.settings.tensor * spread.settings.pipeline)
    for name in MODELS:
        for rank, found in enumerate(ranks):
            # Megatron's order: tensor, then data, then pipeline.
            dp_rank = rank // spread.settings.tensor % dp_size
            assert_same(found[name], references[name], batches_of=(dp_rank, dp_size), is_main=rank == 0)
    for name in CHECKPOINTED:
        assert_close(ranks[0][f"resumed-{name}"], references[name].weights)
        if spread.settings.tensor > 1:
            assert_same(ranks[0][f"sequence-{name}"], references[name], batches_of=(0, dp_size))
    assert_fresh(ranks, models)
    for name in CHECKPOINTED:
        with Parallel.start() as parallel:
            again = resume(parallel, models / name, tmp_path / "checkpoints" / name)
        assert_close(again, references[name].weights)


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "qwen3"])
def test_exported_weights_are_a_model_of_hugging_face(
    name: str, models: Path, alone: tuple[dict[str, Result], Path], references: dict[str, Reference]
) -> None:
    model = hugging_face(models / name)
    exported = alone[0][name].weights
    assert exported is not None
    missing, unexpected = model.load_state_dict(exported, strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if name.endswith("tied") else [])
    token_ids_BS = batches(0)[0].token_ids_BS
    with torch.no_grad():
        logits = model(token_ids_BS).logits
        model.load_state_dict(references[name].weights)
        torch.testing.assert_close(logits, model(token_ids_BS).logits, atol=1e-4, rtol=0)


def assert_same(
    found: Result, wanted: Reference, *, batches_of: tuple[int, int], is_main: bool = True
) -> None:
    first, step = batches_of
    for logprobs, wanted_logprobs in zip(found.logprobs, wanted.logprobs[first::step], strict=True):
        torch.testing.assert_close(logprobs, wanted_logprobs, atol=TOLERANCE, rtol=0)
        assert (logprobs[:, 0] == 0).all()
    assert len(found.steps) == NUM_STEPS
    for output, loss, grad_norm in zip(found.steps, wanted.losses, wanted.grad_norms, strict=True):
        assert output.loss == pytest.approx(loss, abs=TOLERANCE)
        assert output.grad_norm == pytest.approx(grad_norm, abs=TOLERANCE)
        assert not output.was_skipped
    # Sums are over all ranks, maxima the largest of any.
    assert [output.sums["num_actions"] for output in found.steps] == [61] * NUM_STEPS
    assert [output.maxima["length"] for output in found.steps] == [16] * NUM_STEPS
    if is_main:
        assert_close(found.weights, wanted.weights)
    else:
        assert found.loaded is None
        assert found.weights is None


def assert_close(found: dict[str, torch.Tensor] | None, wanted: dict[str, torch.Tensor]) -> None:
    assert found is not None
    # A tied head is in Hugging Face's own state dict, and not in what is exported.
    torch.testing.assert_close(found, {name: wanted[name] for name in found}, atol=TOLERANCE, rtol=0)


def assert_fresh(ranks: list[dict[str, Any]], models: Path) -> None:
    with Parallel.start() as parallel:
        fresh = Policy(models / "fresh", parallel, seed=FRESH_SEED).hf_state_dict()
    assert fresh is not None
    assert ranks[0]["fresh"].keys() == fresh.keys()
    assert all(torch.equal(ranks[0]["fresh"][name], weight) for name, weight in fresh.items())
