"""The host on real Kafka, as processes: nothing lost, whatever is killed when (G4, G5, G8)."""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from tests.streams.host.harness import PARTITIONS, HostProcess, Log, wait_until

from headrace.cli.stack import ports
from headrace.cli.stack.kafka import KafkaBroker

pytestmark = pytest.mark.integration


@pytest.fixture
def log(kafka: KafkaBroker, topic_prefix: str) -> Iterator[Log]:
    opened = Log(kafka.bootstrap_servers, topic_prefix)
    yield opened
    opened.close()


@pytest.fixture
def host(log: Log, tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    made: list[HostProcess] = []

    def make(name: str = "host", **settings: object) -> HostProcess:
        made.append(HostProcess(log, tmp_path / name, **settings))
        return made[-1]

    yield make
    for process in made:
        process.kill()


def reached(log: Log, num_outputs: int) -> bool:
    return log.count(log.out) >= num_outputs


def assert_complete(log: Log) -> int:
    """Every pair is there, and whatever is there twice is the same; return the number of repetitions."""
    expected = log.expected()
    wait_until(lambda: len(log.outputs()) >= len(expected), what="all outputs")
    found = log.outputs()
    assert {name: set(pairs) for name, pairs in found.items()} == {k: {v} for k, v in expected.items()}
    return sum(len(pairs) - 1 for pairs in found.values())


@pytest.mark.chaos
@pytest.mark.parametrize("delete_state", [False, True], ids=["state kept", "state deleted"])
def test_kill_at_random_points(
    log: Log,
    host: Callable[..., HostProcess],
    delete_state: bool,  # noqa: FBT001
) -> None:
    rng = random.Random(7)
    worker = host(batch_max_records=100)
    log.publish_pairs(range(20_000))
    for num_outputs in sorted(rng.sample(range(1, 12_000), 4)):
        worker.start()
        wait_until(partial(reached, log, num_outputs), what=f"{num_outputs} outputs")
        worker.kill()
        if delete_state:
            shutil.rmtree(worker.state_dir)
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert_complete(log)
    assert worker.terminate() == 0


def test_a_bug_in_handle_stops_the_worker_and_commits_nothing_more(
    log: Log, host: Callable[..., HostProcess]
) -> None:
    worker = host()
    log.publish_pairs(range(100))
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    before = log.committed()
    log.publish([("a", b"k1", b"raise"), ("a", b"k1", b"id/1000"), ("b", b"k1", b"id/1000")])
    assert worker.wait() == 1
    assert "ValueError: the test asked for it" in worker.said()
    after = log.committed()
    wrong = next(m for m in log.read(log.sources[0]) if m.value() == b"raise")
    assert after[log.sources[0], wrong.partition() or 0] == wrong.offset()
    assert sum(after.values()) - sum(before.values()) <= 1
    worker.start()
    assert worker.wait() == 1


def test_an_output_that_the_broker_refuses_stops_the_worker(
    log: Log, host: Callable[..., HostProcess]
) -> None:
    worker = host()
    worker.start()
    log.publish([("a", b"k1", b"huge")])
    assert worker.wait() == 1
    assert "MessageSizeTooLarge" in worker.said()
    assert sum(log.committed().values()) == 0


def test_a_frozen_process_ends_itself(log: Log, host: Callable[..., HostProcess]) -> None:
    worker = host(watchdog_s=3)
    log.publish([("a", b"k1", b"freeze")])
    worker.start()
    assert worker.wait() == 70
    assert sum(log.committed().values()) == 0


def test_a_process_that_gets_nothing_done_ends_itself(
    kafka: KafkaBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """The broker answers, and the outputs wait for their topic."""
    log = Log(kafka.bootstrap_servers, topic_prefix, with_out=False)
    worker = HostProcess(log, tmp_path, watchdog_s=4)
    log.publish_pairs(range(10))
    worker.start()
    try:
        assert worker.wait() == 70
    finally:
        worker.kill()
        log.close()
    assert "no progress" in worker.said()


def test_a_restart_within_the_session_of_a_static_member(log: Log, host: Callable[..., HostProcess]) -> None:
    worker = host(instance_id="one", session_timeout_s=25, batch_max_records=100)
    log.publish_pairs(range(10_000))
    worker.start()
    wait_until(partial(reached, log, 200), what="200 outputs")
    worker.kill()
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero", timeout_s=15)
    assert_complete(log)
    assert worker.terminate() == 0


def test_metrics(log: Log, host: Callable[..., HostProcess]) -> None:
    port = ports.pick(None)
    worker = host(metrics_port=port)
    log.publish([("a", b"k1", b"ignore")] * 7)
    worker.start()

    def value(name: str) -> float:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        except httpx.TransportError:
            return -1.0
        found = [line for line in text.splitlines() if line.startswith(name + "{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else -1.0

    wait_until(lambda: value("headrace_host_records_total") == 7, what="seven records counted")
    wait_until(lambda: value("headrace_host_lag_records") == 0, what="no lag")
    assert value("headrace_processor_events_total") == 7
    assert value("headrace_host_lag_seconds") == 0
    assert value("headrace_host_partitions") == PARTITIONS
    wait_until(lambda: value("headrace_host_outputs_total") >= 1, what="a tick")
    assert worker.terminate() == 0


def test_ignored_records_are_committed_too(log: Log, host: Callable[..., HostProcess]) -> None:
    """CASES C13."""
    worker = host()
    worker.start()
    log.publish(("a" if i % 3 else "b", b"k%d" % (i % 11), b"ignore/%d" % i) for i in range(3000))
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert log.outputs() == {}
    assert worker.terminate() == 0


def test_a_graceful_stop_repeats_nothing(log: Log, host: Callable[..., HostProcess]) -> None:
    worker = host(batch_max_records=100)
    log.publish_pairs(range(5000))
    for num_outputs in (500, 2500):
        worker.start()
        wait_until(partial(reached, log, num_outputs), what=f"{num_outputs} outputs")
        assert worker.terminate() == 0
        assert log.lag() > 0
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert assert_complete(log) == 0
    assert worker.terminate() == 0


def test_state_stays_in_the_partition_of_its_records(log: Log, host: Callable[..., HostProcess]) -> None:
    worker = host()
    log.publish(("a", b"k%d" % i, b"id/%d" % i) for i in range(500))
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    partition_of = {message.key(): message.partition() for message in log.read(log.sources[0])}
    assert set(partition_of.values()) == set(range(PARTITIONS))
    changes = log.read(log.changelog)
    assert len(changes) == 500
    for change in changes:
        assert change.partition() == partition_of[(change.key() or b"").split(b"/")[1]]
    # Rebuilt from the changelog alone, the other halves find theirs.
    assert worker.terminate() == 0
    shutil.rmtree(worker.state_dir)
    log.publish(("b", b"k%d" % i, b"id/%d" % i) for i in range(500))
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert assert_complete(log) == 0
    assert [h for m in log.read(log.out)[:1] for h in m.headers() or []] == [("traceparent", b"00-1")]


def test_recovery_ends_where_the_last_record_of_the_changelog_is_gone(
    log: Log, host: Callable[..., HostProcess]
) -> None:
    """As compaction may leave it; here a transaction's marker stands in the last place."""
    worker = host()
    log.publish([("a", b"k1", b"id/1")])
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert worker.terminate() == 0
    shutil.rmtree(worker.state_dir)
    producer = Producer({"bootstrap.servers": log.bootstrap_servers, "transactional.id": log.prefix})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(log.changelog, key=b"other", value=b"1", partition=0)
    producer.commit_transaction()
    log.publish([("b", b"k1", b"id/1")])
    worker.start()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert assert_complete(log) == 0


@pytest.mark.chaos
def test_two_workers_share_and_take_over(log: Log, host: Callable[..., HostProcess]) -> None:
    first, second = host("first"), host("second")
    split = ("0,1", "2,3", "0,2", "1,3", "0,3", "1,2")

    def latest() -> set[str]:
        return {(message.value() or b"").decode() for message in log.read(log.ticks)[-2:]}

    first.start()
    wait_until(lambda: latest() == {"0,1,2,3"}, what="one worker with all partitions")
    log.publish_pairs(range(3000))
    second.start()
    log.publish_pairs(range(3000, 6000))
    wait_until(lambda: len(latest()) == 2 and latest() <= set(split), what="two workers with two each")
    log.publish_pairs(range(6000, 9000))
    assert first.terminate() == 0
    log.publish_pairs(range(9000, 10_000))
    wait_until(lambda: latest() == {"0,1,2,3"}, what="the second worker with all partitions")
    first.start()
    wait_until(lambda: len(latest()) == 2 and latest() <= set(split), what="two workers again")
    log.publish_pairs(range(10_000, 12_000))
    second.kill()
    wait_until(lambda: log.lag() == 0, what="lag zero")
    assert_complete(log)
    assert first.terminate() == 0


@pytest.mark.chaos
def test_the_broker_is_killed_and_comes_back(
    kafka_factory: Callable[[], KafkaBroker], topic_prefix: str, tmp_path: Path
) -> None:
    broker = kafka_factory().start()
    log = Log(broker.bootstrap_servers, topic_prefix)
    worker = HostProcess(log, tmp_path / "host", batch_max_records=200)
    try:
        log.publish_pairs(range(10_000))
        worker.start()
        wait_until(partial(reached, log, 500), what="500 outputs")
        broker.kill()
        broker.start()
        wait_until(lambda: log.lag() == 0, what="lag zero", timeout_s=60)
        assert_complete(log)
        assert worker.exit_status is None
        assert worker.terminate() == 0
    finally:
        worker.kill()
        log.close()
