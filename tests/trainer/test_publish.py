"""G9: a version is on the topic only when its files are whole; a step publishes once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.cli.stack.kafka import KafkaBroker
from headrace.streams.client.admin import apply_topics
from headrace.streams.client.manifest import manifest_of
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resources import read_resources
from headrace.streams.settings import KafkaSettings
from headrace.trainer.publish import WeightsPublisher

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture
def settings(kafka: KafkaBroker, topic_prefix: str) -> KafkaSettings:
    made = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(made)
    return made


@pytest.fixture
def publisher(settings: KafkaSettings) -> Iterator[Publisher]:
    with Publisher(settings) as made:
        yield made


def weights_publisher(publisher: Publisher, model: Path, folder: Path, **fields: Any) -> WeightsPublisher:
    known: dict[str, Any] = {"name": "policy", "run_id": "run", "base": model, "folder": folder, "keep": 2}
    return WeightsPublisher(publisher, **(known | fields))


def publish(to: WeightsPublisher, weights: dict[str, torch.Tensor], step: int) -> Any:
    return to.publish(
        weights,
        step,
        trained_on=["b"],
        offsets={"batches:0": 1},
        parent_version=None,
        metadata={"algorithm": "grpo"},
    )


def test_a_version_is_a_model_that_others_load(publisher: Publisher, model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    name, tensor = next(iter(weights.items()))
    weights[name] = tensor + 1
    version = publish(weights_publisher(publisher, model, tmp_path), weights, 3)
    folder = tmp_path / "step-00000003"
    assert version.uri == folder.as_uri()
    assert version.manifest == manifest_of(folder)
    assert (version.version, version.trained_on, version.consumed_offsets) == (1, ("b",), {"batches:0": 1})
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert torch.equal(loaded[name], weights[name])
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert json.loads((folder / "config.json").read_text()) == json.loads((model / "config.json").read_text())


def test_the_same_step_again_is_the_same_version(
    publisher: Publisher, settings: KafkaSettings, model: Path, tmp_path: Path
) -> None:
    """A trainer that was killed before its checkpoint comes to the step again; engines may be reading it."""
    weights = load_file(model / "model.safetensors")
    to = weights_publisher(publisher, model, tmp_path)
    first = publish(to, weights, 1)
    inode = (tmp_path / "step-00000001").stat().st_ino
    assert publish(to, weights, 1) == first
    assert (tmp_path / "step-00000001").stat().st_ino == inode
    assert read_resources(settings).versions_of("policy") == [1]
    other = publish(to, {name: tensor + 1 for name, tensor in weights.items()}, 1)
    assert other.version == 2
    assert other.manifest == manifest_of(tmp_path / "step-00000001")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_the_last_versions_are_kept(publisher: Publisher, model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    to = weights_publisher(publisher, model, tmp_path, dtype=torch.bfloat16)
    for step in range(4):
        publish(to, weights, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    kept = load_file(tmp_path / "step-00000003" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}


def test_what_can_t_be_written_is_not_published(
    publisher: Publisher, settings: KafkaSettings, model: Path, tmp_path: Path
) -> None:
    to = weights_publisher(publisher, model, tmp_path / "there", base=tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        publish(to, load_file(model / "model.safetensors"), 1)
    assert read_resources(settings).names() == []
    assert list((tmp_path / "there").iterdir()) == []
