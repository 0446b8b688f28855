"""Resources on real Kafka: versions that only go up, whoever publishes at once, and a store that keeps up."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.builders import TIME
from tests.pipeline import wait_until

from headrace.schemas.errors import BadRecordError, FatalError
from headrace.schemas.records import ResourceVersion
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.client.manifest import BadResourceError
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.resource_publishing import VersionTakenError, publish_resource
from headrace.streams.client.resource_versions import RESTORED, UnknownResourceError
from headrace.streams.client.resources import ResourceStore, ResourceTimeoutError, read_resources
from headrace.streams.client.rollouts import Client
from headrace.streams.client.tail import Tail
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration


@pytest.fixture
def publisher(rollout_topics: KafkaSettings) -> Iterator[Publisher]:
    with Publisher(rollout_topics, linger_ms=0) as made:
        yield made


def a_version(version: int, content: str, name: str = "prompt") -> ResourceVersion:
    return ResourceVersion(name=name, version=version, kind="prompt", content=content, time=TIME)


def test_versions_go_up_by_name(publisher: Publisher, rollout_topics: KafkaSettings) -> None:
    for name, expected in (("a", 1), ("a", 2), ("b", 1), ("a", 3)):
        made = publish_resource(publisher, name, "prompt", content=f"{name}{expected}", metadata={"x": "y"})
        assert (made.version, made.metadata) == (expected, {"x": "y"})
    versions = read_resources(rollout_topics)
    assert {name: versions.versions_of(name) for name in versions.names()} == {"a": [1, 2, 3], "b": [1]}
    assert versions.pinned("a", 2).content == "a2"


def test_a_folder_s_version_names_every_file(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"w")
    made = publish_resource(
        publisher,
        "policy",
        "weights",
        files=tmp_path,
        trained_on=["b1"],
        consumed_offsets={"batches:0": 7},
        parent_version=3,
    )
    assert made.uri == tmp_path.as_uri()
    assert made.manifest == {"sub/w.bin": hashlib.sha256(b"w").hexdigest()}
    assert (made.trained_on, made.consumed_offsets, made.parent_version) == (("b1",), {"batches:0": 7}, 3)
    elsewhere = publish_resource(publisher, "policy", "weights", files=tmp_path, uri="s3://models/1")
    assert (elsewhere.version, elsewhere.uri) == (2, "s3://models/1")


def test_what_is_not_whole_is_not_published(
    publisher: Publisher, rollout_topics: KafkaSettings, tmp_path: Path
) -> None:
    """G9."""
    with pytest.raises(BadResourceError, match="no files"):
        publish_resource(publisher, "policy", "weights", files=tmp_path)
    with pytest.raises(BadResourceError, match="nothing is given"):
        publish_resource(publisher, "policy", "weights")
    with pytest.raises(BadResourceError, match="name"):
        publish_resource(publisher, "", "prompt", content="x")
    with pytest.raises(BadRecordError, match="limit"):
        publish_resource(publisher, "big", "prompt", content="x" * 9_000_000)
    assert read_resources(rollout_topics).names() == []


def test_an_asked_version_must_be_above_the_newest(publisher: Publisher) -> None:
    assert publish_resource(publisher, "policy", "endpoint", uri="http://x", version=10).version == 10
    assert publish_resource(publisher, "policy", "endpoint", uri="http://x").version == 11
    for version in (0, 10, 11):
        with pytest.raises(VersionTakenError, match=f"version {version} of policy .* newest is 11"):
            publish_resource(publisher, "policy", "endpoint", uri="http://x", version=version)


def test_a_client_can_publish_too(client: Client) -> None:
    assert publish_resource(client, "prompt", "prompt", content="x").version == 1


def test_of_many_who_publish_at_once_each_gets_a_number_of_its_own(
    rollout_topics: KafkaSettings,
) -> None:
    num = 6
    made: list[ResourceVersion] = []
    barrier = threading.Barrier(num)

    def publish(number: int) -> None:
        with Publisher(rollout_topics, linger_ms=0) as publisher:
            barrier.wait(30)
            made.append(publish_resource(publisher, "prompt", "prompt", content=f"by {number}"))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(each.version for each in made) == list(range(1, num + 1))
    versions = read_resources(rollout_topics)
    assert {each.version: each.content for each in made} == {
        number: versions.pinned("prompt", number).content for number in versions.versions_of("prompt")
    }
    assert versions.covered() == [], "the last record of each version is its own: compaction keeps it"


class Rival:
    """Publishes right before the first record of a publisher under test goes out."""

    def __init__(self, settings: KafkaSettings, publisher: Publisher, *, times: int = 1) -> None:
        self._settings = settings
        self._publish = publisher.publish
        self._left = times

    def __call__(self, record: ResourceVersion, **options: object) -> None:
        if self._left:
            self._left -= 1
            with Publisher(self._settings, linger_ms=0) as rival:
                rival.publish(record.model_copy(update={"content": "the rival's"}))
        self._publish(record, **options)  # type: ignore[arg-type]


def test_the_loser_takes_the_next_number_and_puts_the_first_back(
    publisher: Publisher, rollout_topics: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "publish", Rival(rollout_topics, publisher, times=2))
    made = publish_resource(publisher, "prompt", "prompt", content="mine")
    assert made.version == 3
    versions = read_resources(rollout_topics)
    assert [versions.pinned("prompt", number).content for number in (1, 2, 3)] == [
        "the rival's",
        "the rival's",
        "mine",
    ]
    assert versions.covered() == []


def test_the_loser_of_an_asked_number_is_told(
    publisher: Publisher, rollout_topics: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "publish", Rival(rollout_topics, publisher))
    with pytest.raises(VersionTakenError, match="version 5 of prompt can't be published"):
        publish_resource(publisher, "prompt", "prompt", content="mine", version=5)
    assert read_resources(rollout_topics).pinned("prompt", 5).content == "the rival's"


def test_who_publishes_next_puts_back_what_a_crashed_loser_left(
    publisher: Publisher, rollout_topics: KafkaSettings
) -> None:
    for content in ("first", "second"):
        publisher.publish(a_version(1, content))
    publisher.flush()
    assert publish_resource(publisher, "other", "prompt", content="x").version == 1
    with Tail(rollout_topics, name="test") as tail:
        places = tail.places(f"{rollout_topics.topic_prefix}.resources.v1")
        records = list(tail.read(tail.beginnings(places), tail.ends(places)))
    assert [record.headers for record in records] == [(), (), ((RESTORED, b"1"),), ()]
    assert records[2].value == records[0].value


# --- the store ------------------------------------------------------------------------------------------


def test_a_started_store_has_all_that_was_published_before(
    publisher: Publisher, rollout_topics: KafkaSettings
) -> None:
    for number in range(1, 4):
        publish_resource(publisher, "prompt", "prompt", content=f"p{number}")
    publish_resource(publisher, "llm", "endpoint", uri="http://llm")
    with ResourceStore(rollout_topics) as store:
        assert {name: each.version for name, each in store.resolve().items()} == {"prompt": 3, "llm": 1}
        assert store.resolve({"prompt": 2})["prompt"].content == "p2"
        assert store.resolve({"prompt": 3})["llm"].uri == "http://llm"
        for pinned in ({"prompt": 4}, {"nothing": 1}):
            with pytest.raises(UnknownResourceError):
                store.resolve(pinned)


def test_a_store_of_an_empty_topic_starts(rollout_topics: KafkaSettings) -> None:
    with ResourceStore(rollout_topics) as store:
        assert store.resolve() == {}


def test_a_store_keeps_up_and_tells(publisher: Publisher, rollout_topics: KafkaSettings) -> None:
    publish_resource(publisher, "prompt", "prompt", content="before")
    told: list[tuple[str, int]] = []
    with ResourceStore(rollout_topics) as store:

        def fail(_: ResourceVersion) -> None:
            raise ValueError("a callback's own trouble")

        store.on_change(fail)
        store.on_change(lambda version: told.append((version.name, version.version)))
        publish_resource(publisher, "prompt", "prompt", content="after")
        assert store.wait_for("prompt", 2, timeout_s=30).content == "after"
        # A lower one, another of a known number, and no record: none of them is news.
        publisher.publish(a_version(0, "lower"))
        publisher.publish(a_version(2, "another"))
        publisher.publish_bytes(f"{rollout_topics.topic_prefix}.resources.v1", b"x", b"no record")
        publisher.flush()
        publish_resource(publisher, "llm", "endpoint", uri="http://llm")
        store.wait_for("llm", 1, timeout_s=30)
        assert store.resolve()["prompt"].content == "after"
        wait_until(lambda: len(told) == 2, what="two callbacks")
    assert told == [("prompt", 2), ("llm", 1)]


def test_waiting_for_a_version(publisher: Publisher, rollout_topics: KafkaSettings) -> None:
    publish_resource(publisher, "policy", "endpoint", uri="x", version=2)
    with ResourceStore(rollout_topics) as store:
        with pytest.raises(
            ResourceTimeoutError, match=r"policy had no version 3 after 0\.2 s: the newest is 2"
        ):
            store.wait_for("policy", 3, timeout_s=0.2)
        with pytest.raises(ResourceTimeoutError, match="there is none of that name"):
            store.wait_for("nothing", 1, timeout_s=0.2)
        with pytest.raises(UnknownResourceError, match="no version 1"):
            store.wait_for("policy", 1, timeout_s=30)


def test_a_store_says_what_keeps_it_from_starting(rollout_topics: KafkaSettings) -> None:
    """C18."""
    without_topics = rollout_topics.model_copy(update={"topic_prefix": "nothing-here"})
    with pytest.raises(FatalError, match=r"no topic nothing-here\.resources\.v1 .*topics apply"):
        ResourceStore(without_topics).start(timeout_s=30)
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1", extra={"log_level": 0})
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:1 could not be read within 0\.5 s"):
        ResourceStore(nowhere).start(timeout_s=0.5)
