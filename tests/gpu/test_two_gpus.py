"""Models spread over two GPUs, over NCCL; `run.sh` takes this file where there are two."""

from pathlib import Path

import pytest
import torch
from tests.gpu.test_policy import TOLERANCE
from tests.trainer.policy.models import MODELS, reference, write_model
from tests.trainer.policy.processes import results_of, torchrun
from tests.trainer.policy.runs import CHECKPOINTED, run_model

from headrace.trainer.policy import Parallel, ParallelSettings

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "settings",
    [ParallelSettings(), ParallelSettings(tensor=2), ParallelSettings(pipeline=2)],
    ids=["dp2", "tp2", "pp2"],
)
def test_two_gpus_compute_what_hugging_face_does(settings: ParallelSettings, tmp_path: Path) -> None:
    models, alone, results = tmp_path / "models", tmp_path / "alone", tmp_path / "results"
    results.mkdir()
    for name in MODELS:
        write_model(models / name, name)
    write_model(models / "fresh", "qwen3", with_weights=False)
    with Parallel.start() as parallel:
        for name in CHECKPOINTED:
            run_model(parallel, models / name, alone / name)
    arguments = [str(models), str(results), str(alone), settings.model_dump_json()]
    torchrun("tests.trainer.policy.worker", 2, arguments)
    found = results_of(results)[0]
    for name in MODELS:
        wanted = reference(models / name)
        assert [step.loss for step in found[name].steps] == pytest.approx(wanted.losses, abs=TOLERANCE)
        assert [step.grad_norm for step in found[name].steps] == pytest.approx(
            wanted.grad_norms, abs=TOLERANCE
        )
        for key, weight in found[name].weights.items():
            torch.testing.assert_close(weight, wanted.weights[key], atol=TOLERANCE, rtol=0)
    for name in CHECKPOINTED:
        for key, weight in found[f"resumed-{name}"].items():
            torch.testing.assert_close(weight, found[name].weights[key], atol=TOLERANCE, rtol=0)
