"""Against torch's own log_softmax and its gradients."""

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from headrace.trainer.policy.distribution import token_statistics


class Alone:
    """A group of one."""

    def size(self) -> int:
        return 1


ALONE = cast("dist.ProcessGroup", Alone())


def by_torch(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[Any, Any]:
    logp = (logits / temperature).log_softmax(-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["flat", "peaked"])
def test_logprobs_entropies_and_gradients_are_those_of_log_softmax(temperature: float, scale: float) -> None:
    random = torch.Generator().manual_seed(0)
    logits = (torch.randn(7, 13, generator=random) * scale).requires_grad_()
    targets = torch.randint(0, 13, (7,), generator=random)
    factors = torch.randn(2, 7, generator=random)
    found = token_statistics(logits, targets, first=0, temperature=temperature, group=ALONE)
    wanted = by_torch(logits.double(), targets, temperature)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs.float(), atol=1e-5, rtol=1e-6)
    (gradient,) = torch.autograd.grad((torch.stack(found) * factors).sum(), logits)
    (wanted_gradient,) = torch.autograd.grad((torch.stack(wanted) * factors).sum(), logits)
    torch.testing.assert_close(gradient, wanted_gradient, atol=1e-5, rtol=1e-5)


def test_half_precision_logits_are_summed_in_float32_and_get_their_own_kind_of_gradient() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 1000, generator=random).bfloat16().requires_grad_()
    targets = torch.arange(4)
    logprobs, entropy = token_statistics(logits, targets, first=0, temperature=1.0, group=ALONE)
    wanted = by_torch(logits.double(), targets, 1.0)
    torch.testing.assert_close(logprobs, wanted[0].float(), atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, wanted[1].float(), atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad((logprobs + entropy).sum(), logits)
    assert gradient.dtype == torch.bfloat16


def test_logits_are_as_they_were() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    before = logits.detach().clone()
    logprobs, _ = token_statistics(logits, torch.tensor([0, 1, 2]), first=0, temperature=0.5, group=ALONE)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(logits, before)


def test_certainty_has_no_entropy_and_finite_gradients() -> None:
    logits = torch.tensor([[1000.0, 0.0, -1000.0]], requires_grad=True)
    logprobs, entropy = token_statistics(logits, torch.tensor([0]), first=0, temperature=1.0, group=ALONE)
    assert logprobs.tolist() == [0.0]
    assert entropy.tolist() == [0.0]
    (gradient,) = torch.autograd.grad((logprobs + entropy).sum(), logits)
    assert gradient.isfinite().all()
