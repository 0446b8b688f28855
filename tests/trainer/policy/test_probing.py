from pathlib import Path

import torch
from tests.trainer.policy.models import hugging_face

from headrace.trainer.policy import Parallel, Policy
from headrace.trainer.probing import probe_of


def test_a_probe_is_what_these_weights_compute(models: Path, parallel: Parallel) -> None:
    probes = {}
    for name in ("llama-tied", "qwen3"):
        probe = probes[name] = probe_of(Policy(models / name, parallel))
        assert probe is not None
        ids = torch.tensor([probe.token_ids])
        with torch.no_grad():
            logp = hugging_face(models / name)(ids).logits[0, :-1].log_softmax(-1)
        wanted = logp.gather(1, ids[0, 1:, None])[:, 0].tolist()
        assert probe.gap(wanted) < 1e-5
    one, other = probes.values()
    assert one is not None
    assert other is not None
    assert one.token_ids == other.token_ids
    assert one.gap(other.logprobs) > 0.1


def test_engines_tell_prompts_at_temperature_1_alone(models: Path, parallel: Parallel) -> None:
    assert probe_of(Policy(models / "qwen3", parallel, temperature=0.5)) is None
