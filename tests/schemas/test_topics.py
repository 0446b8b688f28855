"""Topic files say what the records say."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from headrace.schemas import topics
from headrace.schemas.errors import FatalError
from headrace.schemas.records import RECORDS, DeadLetter, Span
from headrace.schemas.topics import TopicSpec, topic_name, topic_of, topic_specs

MAX_SHARD_BYTES = 8 * 1024 * 1024


@pytest.fixture
def topics_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Topic files that this test may change."""
    shutil.copytree(topics.TOPICS_FOLDER, tmp_path / "topics")
    monkeypatch.setattr(topics, "TOPICS_FOLDER", tmp_path / "topics")
    topic_specs.cache_clear()
    yield tmp_path / "topics"
    topic_specs.cache_clear()


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    spec = yaml.safe_load(path.read_text())
    change(spec)
    path.write_text(yaml.safe_dump(spec))


def test_each_record_has_one_topic() -> None:
    assert sorted(spec.record for spec in topic_specs().values()) == sorted(RECORDS)
    assert all(topic_of(record).record_type is record for record in RECORDS.values())


def test_each_topic_stands_in_the_file_of_its_name() -> None:
    assert {path.stem for path in topics.TOPICS_FOLDER.iterdir()} == set(topic_specs())


@pytest.mark.parametrize("spec", topic_specs().values(), ids=topic_specs())
def test_the_key_is_the_record_s(spec: TopicSpec) -> None:
    # A dead letter has the key of the record that it holds.
    assert spec.key == ("key_bytes" if spec.record_type is DeadLetter else spec.record_type.key_field)
    assert spec.key in spec.record_type.model_fields


@pytest.mark.parametrize("spec", topic_specs().values(), ids=topic_specs())
def test_the_broker_settings_hold_what_records_need(spec: TopicSpec) -> None:
    assert spec.config["compression.type"] == "zstd"
    assert int(spec.config["max.message.bytes"]) > MAX_SHARD_BYTES
    assert (spec.config["cleanup.policy"] == "compact") == (spec.name == "resources")
    assert ("retention.ms" in spec.config) == (spec.config["cleanup.policy"] == "delete")


def test_one_rollout_lives_in_one_partition_number() -> None:
    shared = {spec.name: spec.partitions for spec in topic_specs().values() if spec.copartitioned}
    assert set(shared) == {"rollouts", "rollout-states", "attempts", "spans", "rewards"}
    assert len(set(shared.values())) == 1
    assert all(topic_specs()[name].key == "rollout_id" for name in shared)
    assert topic_specs()["tasks"].partitions > shared["rollouts"]


def test_names_carry_prefix_and_version() -> None:
    assert topic_name(Span, "team-a") == "team-a.spans.v1"


def test_co_partitioned_topics_may_not_differ(topics_folder: Path) -> None:
    edit(topics_folder / "spans.yaml", lambda spec: spec.update(partitions=5))
    with pytest.raises(FatalError, match=r"different numbers of partitions: \[4, 5\]"):
        topic_specs()


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(partitions=0),
        lambda spec: spec.update(colour="red"),
        lambda spec: spec.pop("owner"),
        lambda spec: spec.update(name="Spans!"),
        lambda spec: spec.update(compatibility="BACKWARD"),
    ],
    ids=["no partitions", "unknown word", "no owner", "name", "compatibility"],
)
def test_a_wrong_topic_file_is_refused(
    topics_folder: Path, change: Callable[[dict[str, object]], object]
) -> None:
    edit(topics_folder / "spans.yaml", change)
    with pytest.raises(ValidationError):
        topic_specs()
