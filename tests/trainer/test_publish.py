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
    (folder,) = tmp_path.glob("step-00000003-*")
    assert version.uri == folder.as_uri()
    assert version.manifest == manifest_of(folder)
    assert (version.version, version.trained_on, version.consumed_offsets) == (1, ("b",), {"batches:0": 1})
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert torch.equal(loaded[name], weights[name])
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert json.loads((folder / "config.json").read_text()) == json.loads((model / "config.json").read_text())


def folder_of(version: Any) -> Path:
    return Path(version.uri.removeprefix("file://"))


def plus(weights: dict[str, torch.Tensor], number: float) -> dict[str, torch.Tensor]:
    return {name: tensor + number for name, tensor in weights.items()}


def test_the_same_step_again_is_the_same_version(
    publisher: Publisher, settings: KafkaSettings, model: Path, tmp_path: Path
) -> None:
    """A trainer that was killed before its checkpoint comes to the step again; engines may be reading it."""
    weights = load_file(model / "model.safetensors")
    to = weights_publisher(publisher, model, tmp_path)
    first = publish(to, weights, 1)
    inode = folder_of(first).stat().st_ino
    assert publish(to, weights, 1) == first
    assert folder_of(first).stat().st_ino == inode
    assert read_resources(settings).versions_of("policy") == [1]
    other = publish(to, plus(weights, 1), 1)
    assert other.version == 2
    # What is published stays as it is.
    for version in (first, other):
        assert manifest_of(folder_of(version)) == version.manifest
    # Another is the newest meanwhile: engines are to have these again.
    assert publish(to, weights, 1).version == 3


def test_files_that_changed_on_the_disk_are_written_again(
    publisher: Publisher, model: Path, tmp_path: Path
) -> None:
    weights = load_file(model / "model.safetensors")
    to = weights_publisher(publisher, model, tmp_path)
    version = publish(to, weights, 1)
    (folder_of(version) / "model.safetensors").write_bytes(b"")
    assert publish(to, weights, 1) == version
    assert manifest_of(folder_of(version)) == version.manifest


def test_the_last_versions_are_kept(publisher: Publisher, model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    other = publish(weights_publisher(publisher, model, tmp_path, name="critic"), plus(weights, 7), 1)
    to = weights_publisher(publisher, model, tmp_path, dtype=torch.bfloat16)
    made = [publish(to, plus(weights, step), step) for step in range(4)]
    assert {*tmp_path.iterdir()} == {folder_of(version) for version in (other, *made[2:])}
    kept = load_file(folder_of(made[3]) / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}


def test_a_run_that_goes_on_from_an_older_checkpoint_keeps_what_it_publishes(
    publisher: Publisher, model: Path, tmp_path: Path
) -> None:
    """Its steps are lower than those of the time that it leaves behind."""
    weights = load_file(model / "model.safetensors")
    to = weights_publisher(publisher, model, tmp_path, keep=1)
    for step in (5, 6, 7):
        publish(to, plus(weights, step), step)
    again = publish(to, plus(weights, 0.5), 6)
    assert again.version == 4
    assert manifest_of(folder_of(again)) == again.manifest
    assert [*tmp_path.iterdir()] == [folder_of(again)]


def test_a_run_that_starts_over_publishes_what_it_starts_with(
    publisher: Publisher, model: Path, tmp_path: Path
) -> None:
    weights = load_file(model / "model.safetensors")
    to = weights_publisher(publisher, model, tmp_path)
    first = publish(to, weights, 0)
    publish(to, plus(weights, 1), 1)
    assert publish(to, weights, 0).version == 3
    assert manifest_of(folder_of(first)) == first.manifest


def test_what_a_killed_trainer_left_goes(publisher: Publisher, model: Path, tmp_path: Path) -> None:
    (tmp_path / ".unfinished-step-00000001-x").mkdir()
    weights_publisher(publisher, model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_can_t_be_written_is_not_published(
    publisher: Publisher, settings: KafkaSettings, model: Path, tmp_path: Path
) -> None:
    to = weights_publisher(publisher, model, tmp_path / "there", base=tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        publish(to, load_file(model / "model.safetensors"), 1)
    assert read_resources(settings).names() == []
    assert list((tmp_path / "there").iterdir()) == []
