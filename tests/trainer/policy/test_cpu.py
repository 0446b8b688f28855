"""What stands in for CUDA reaches Megatron alone, and nothing at all where CUDA is."""

import sys
from pathlib import Path

import pytest
import torch
from megatron.core.pipeline_parallel import schedules
from tests.trainer.policy.models import hugging_face

from headrace.trainer.policy import Parallel, cpu


def megatron_sees() -> dict[str, object]:
    names = [name for name in sys.modules if name.startswith("megatron.core")]
    return {name: getattr(sys.modules[name], "torch", None) for name in names}


def test_nothing_is_done_where_cuda_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    before = megatron_sees(), torch.Tensor.cuda, torch.Tensor.type
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not cpu.install()
    with cpu.building():
        assert (megatron_sees(), torch.Tensor.cuda, torch.Tensor.type) == before


def test_megatron_makes_tensors_of_cuda_on_the_cpu() -> None:
    assert cpu.install()
    assert schedules.torch.zeros(2, device="cuda").device.type == "cpu"
    assert schedules.torch.cuda.current_device() == torch.device("cpu")
    assert schedules.torch.Tensor is torch.Tensor


def test_installing_again_changes_nothing() -> None:
    cpu.install()
    before = megatron_sees()
    assert cpu.install()
    assert megatron_sees() == before


def test_everyone_else_keeps_torch() -> None:
    names = ("zeros", "empty", "tensor", "arange", "compile")
    before = [getattr(torch, name) for name in names]
    current_device = torch.cuda.current_device
    cpu.install()
    assert [getattr(torch, name) for name in names] == before
    assert torch.cuda.current_device is current_device


def test_tensors_say_cuda_only_while_a_model_is_built() -> None:
    cpu.install()
    tensor = torch.zeros(1)
    with cpu.building():
        assert tensor.type() == "torch.cuda.FloatTensor"
        assert tensor.cuda() is tensor
    assert tensor.type() == "torch.FloatTensor"


def test_hugging_face_loads_its_rotary_table_afterwards(models: Path, parallel: Parallel) -> None:
    """Where factories are replaced for everyone, it comes out of memory that nobody wrote."""
    del parallel
    model = hugging_face(models / "qwen3")
    frequencies = model.get_submodule("model.rotary_emb").get_buffer("inv_freq")
    wanted = 1.0 / (10000.0 ** (torch.arange(0, 16, 2) / 16))
    torch.testing.assert_close(frequencies, wanted)
