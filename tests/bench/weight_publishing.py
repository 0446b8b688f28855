"""From the call that publishes weights until the proxy's engine serves them: vLLM, proxy and Kafka are real.

The model is the tests' own, of 120,000 weights: what takes time is the way, not the weights. Nobody calls it
meanwhile, so that no call is waited for.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import torch
from safetensors.torch import load_file
from tests.bench.parts import Lane, say
from tests.bench.watch import wait_until
from tests.tiny_model import make

from headrace.cli.stack.ports import pick
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.vllm import VllmServer
from headrace.streams.client.publisher import Publisher
from headrace.trainer.publish import WeightsPublisher

_NAME = "policy"


class ServedPolicy:
    """An engine and a proxy before it, of one lane."""

    def __init__(self, lane: Lane, model: Path) -> None:
        bytecode = StackSettings().cache / "vllm-bytecode"
        engine = VllmServer(lane.folder / "vllm", model=model, model_name=_NAME, bytecode=bytecode)
        lane.processes.enter_context(engine)
        port = pick(None)
        self.processes = [engine, lane.start("proxy", "--upstream", engine.endpoint, "--port", str(port))]
        self._client = lane.processes.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)
        )
        wait_until(
            lambda: self._version() is not None, what="a proxy that is ready", processes=self.processes
        )

    def wait_for(self, version: int) -> float:
        """The moment at which the engine was seen to serve it."""
        wanted = f"{_NAME}@{version}"
        return wait_until(
            lambda: self._version() == wanted, what=wanted, processes=self.processes, every_s=0.005
        )

    def _version(self) -> str | None:
        """What the engine serves; None if it does not."""
        try:
            (engine,) = self._client.get("/readyz").json()["engines"]
        except httpx.TransportError:
            return None
        return str(engine["version"]) if engine["state"] == "serving" else None


def published_to_served_s(lane: Lane, num_versions: int) -> list[float]:
    """Of each version but the first, which warms up."""
    models = [make(lane.folder / f"model-{seed}", seed=seed) for seed in range(2)]
    tensors = [load_file(model / "model.safetensors") for model in models]
    policy = ServedPolicy(lane, models[0])
    found: list[float] = []
    with Publisher(lane.kafka) as publisher:
        weights = WeightsPublisher(
            publisher, name=_NAME, run_id="bench", base=models[0], folder=lane.folder / "versions", keep=3
        )
        for step in range(num_versions + 1):
            began = time.perf_counter()
            version = _publish(weights, tensors[step % 2], step)
            published = time.perf_counter()
            served = policy.wait_for(version)
            found.append(served - began)
            known_s = published - began
            say(f"publish: version {version} in Kafka after {known_s:.2f} s, served after {found[-1]:.2f} s")
    return found[1:]


def _publish(publisher: WeightsPublisher, weights: Mapping[str, torch.Tensor], step: int) -> int:
    """Its version."""
    return publisher.publish(
        weights, step, trained_on=(), offsets={}, parent_version=step or None, metadata={}
    ).version
