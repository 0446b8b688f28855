"""`headrace rollouts` on real Kafka, with the real dispatcher and a runner that does what it is told."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.builders import CODEC
from tests.deploy.cli.conftest import Cli
from tests.pipeline import wait_until
from tests.streams.client.dispatching import HandRunner, dispatcher_process

from headrace.schemas.ids import uuid7
from headrace.streams.client.rollout_history import read_history
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration

TASKS = "".join(f'{{"id": "t{number}", "q": "secret {number}"}}\n' for number in range(3))


@pytest.fixture
def runner(kafka_settings: KafkaSettings, tmp_path: Path) -> Iterator[HandRunner]:
    """With the dispatcher behind it."""
    process = dispatcher_process(kafka_settings, tmp_path / "dispatcher")
    process.start()
    with HandRunner(kafka_settings) as made:
        yield made
    process.kill()


def enqueue(cli: Cli, *options: str, tasks: str = TASKS) -> list[str]:
    return cli("rollouts", "enqueue", "-", *options, stdin=tasks).stdout.split()


# --- enqueue --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kafka_settings")
def test_ids_are_printed(kafka_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(TASKS + "\n")
    result = kafka_cli("rollouts", "enqueue", str(file), "-n", "2")
    assert len(set(result.stdout.split())) == 6
    assert result.stderr == "6 rollouts of 3 tasks are enqueued\n"
    listed = kafka_cli.json("rollouts", "list")
    assert [row["rollout_id"] for row in listed] == result.stdout.split()
    assert Counter(row["state"] for row in listed) == {"queuing": 6}


@pytest.mark.usefixtures("kafka_settings")
def test_ids_go_to_a_file(kafka_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    assert enqueue(kafka_cli, "--output", str(file)) == []
    assert len(file.read_text().split()) == 3
    waited = kafka_cli("rollouts", "wait", "--file", str(file), "--timeout", "3", status=1)
    assert "3 of 3 rollouts are not final. 3 queuing" in waited.stderr


def test_every_option_reaches_the_command(kafka_cli: Cli, kafka_settings: KafkaSettings) -> None:
    options = [
        *("--mode", "val", "--num-samples", "2", "--timeout", "7.5", "--heartbeat-timeout", "3"),
        *("--max-attempts", "5", "--retry-on", "timeout", "--retry-on", "failed", "--reward-grace", "1"),
        *("--accept", "none", "--credit-rule", "discounted(0.9)@1", "--agent", "solver"),
        *("--resource", "policy=4", "--resource", "a=b=0", "--metadata", "run=x=y", "--task-id", "id"),
    ]
    (one, _) = enqueue(kafka_cli, *options, tasks='{"id": 7}')
    command = read_history(kafka_settings, CODEC, one).enqueued
    assert command is not None
    assert command.model_dump(include={"task", "task_id", "mode", "group_size", "resources", "metadata"}) == {
        "task": '{"id":7}',
        "task_id": "7",
        "mode": "val",
        "group_size": 2,
        "resources": {"policy": 4, "a=b": 0},
        "metadata": {"run": "x=y"},
    }
    assert command.config.model_dump() == {
        "timeout_s": 7.5,
        "heartbeat_timeout_s": 3.0,
        "max_attempts": 5,
        "retry_on": ("timeout", "failed"),
        "reward_grace_s": 1.0,
        "accept": (),
        "credit_rule": "discounted(0.9)@1",
        "agents": ("solver",),
    }


def test_without_options_the_defaults_are_the_record_s(kafka_cli: Cli, kafka_settings: KafkaSettings) -> None:
    (one,) = enqueue(kafka_cli, tasks="null")
    command = read_history(kafka_settings, CODEC, one).enqueued
    assert command is not None
    assert command.config == type(command.config)()


@pytest.mark.parametrize(
    ("tasks", "options", "status", "words"),
    [
        ('{"a": 1}\n{"a": secret}\n', [], 1, "line 2 is not JSON, and nothing was enqueued: Expecting value"),
        ('[NaN, "secret"]\n', [], 1, "line 1 is not JSON"),
        ('"secret"\n', ["--task-id", "id"], 1, "task 1 has no 'id' that could name it"),
        ("1\n", ["--credit-rule", "best"], 1, "unknown credit rule 'best'"),
        ("1\n", ["--timeout", "inf"], 1, "timeout_s: Input should be a finite number"),
        ("1\n", ["--timeout", "-1"], 2, "x>=0"),
        ("1\n", ["--retry-on", "none", "--retry-on", "timeout"], 2, "--retry-on none goes with no other"),
        ("1\n", ["--resource", "policy=new"], 2, "'policy=new' is not NAME=VERSION"),
        ("1\n", ["--metadata", "policy"], 2, "'policy' is not NAME=VALUE"),
    ],
    ids=[
        "no JSON",
        "no number",
        "no task id",
        "no credit rule",
        "endless",
        "negative",
        "none and one",
        "no version",
        "no pair",
    ],
)
@pytest.mark.usefixtures("kafka_settings")
def test_what_is_wrong_is_said_and_nothing_is_enqueued(
    kafka_cli: Cli, tasks: str, options: list[str], status: int, words: str
) -> None:
    result = kafka_cli("rollouts", "enqueue", "-", *options, status=status, stdin=tasks)
    assert words in result.stderr
    assert "secret" not in result.output
    assert "Traceback" not in result.output
    assert kafka_cli.json("rollouts", "list") == []


# --- wait and cancel ------------------------------------------------------------------------------------


def test_enqueue_and_wait(kafka_cli: Cli, runner: HandRunner) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(runner.run, 3)
        result = kafka_cli("rollouts", "enqueue", "-", "--wait", stdin=TASKS)
        running.result(60)
    assert result.stdout == "3 succeeded, of 3\n"


def test_the_exit_status_says_whether_all_succeeded(kafka_cli: Cli, runner: HandRunner) -> None:
    ids = enqueue(kafka_cli)
    tasks = runner.take(3)
    runner.end(runner.start(tasks[:2]))
    runner.end(runner.start(tasks[2:]), "failed", "it\x1b[31mbroke")
    assert (
        kafka_cli("rollouts", "wait", *(task.rollout_id for task in tasks[:2])).stdout
        == "2 succeeded, of 2\n"
    )
    result = kafka_cli("rollouts", "wait", *ids, ids[0], status=1)
    assert result.stdout.splitlines() == [
        "2 succeeded, 1 failed, of 3",
        f"{tasks[2].rollout_id}  failed: it\\x1b[31mbroke",
    ]


def test_a_group_is_waited_for_and_cancelled(kafka_cli: Cli, runner: HandRunner) -> None:
    ids = enqueue(kafka_cli, "-n", "2")
    tasks = runner.take(6)
    group = tasks[0].group_id
    mine = {task.rollout_id for task in tasks if task.group_id == group}
    result = kafka_cli("rollouts", "cancel", "--group", group)
    assert result.stdout == "2 rollouts asked to end as cancelled\n"
    waited = kafka_cli("rollouts", "wait", "--group", group, "--timeout", "60", status=1)
    assert waited.stdout.startswith("2 cancelled, of 2\n")
    assert kafka_cli("rollouts", "cancel", *mine).stdout == (
        "0 rollouts asked to end as cancelled; 2 had ended before\n"
    )
    listed = kafka_cli.json("rollouts", "list", "--state", "cancelled")
    assert {row["rollout_id"] for row in listed} == mine
    assert set(ids) > mine


@pytest.mark.usefixtures("kafka_settings")
@pytest.mark.parametrize("verb", ["wait", "cancel", "show"])
def test_what_does_not_exist_is_said(kafka_cli: Cli, verb: str) -> None:
    unknown = uuid7()
    assert f"no such rollout: {unknown}" in kafka_cli("rollouts", verb, unknown, status=1).stderr
    assert "'7' is not the id of a rollout" in kafka_cli("rollouts", verb, "7", status=1).stderr
    if verb != "show":
        assert "no rollouts of group g" in kafka_cli("rollouts", verb, "--group", "g", status=1).stderr
        assert "say which rollouts" in kafka_cli("rollouts", verb, status=2).stderr


# --- list and show --------------------------------------------------------------------------------------


def test_list_filters_and_limits(kafka_cli: Cli, runner: HandRunner) -> None:
    ids = enqueue(kafka_cli, "--mode", "val")
    runner.run(2)
    more = enqueue(kafka_cli, tasks="1")
    kafka_cli("rollouts", "wait", ids[0], ids[1], ids[2], "--timeout", "1", status=1)
    wait_until(
        lambda: len(kafka_cli.json("rollouts", "list", "--state", "succeeded")) == 2, what="two to end"
    )

    def listed(*options: str) -> set[str]:
        return {row["rollout_id"] for row in kafka_cli.json("rollouts", "list", *options)}

    assert listed() == {*ids, *more}
    assert listed("--mode", "train") == set(more)
    assert listed("--group", more[0]) == set(more)
    assert len(listed("--state", "succeeded", "--state", "queuing", "--mode", "val")) == 3
    assert listed("--limit", "1") == set(more)
    assert listed("--since", "1h") == {*ids, *more}
    assert listed("--since", "2200-01-01") == set()
    shown = kafka_cli("rollouts", "list", "--limit", "2").stdout
    assert "4 rollouts, the newest 2 shown; --limit 0 shows all, times in UTC" in shown
    assert more[0] in shown
    assert "0 rollouts\n" in kafka_cli("rollouts", "list", "--group", "nobody's").stdout


def test_show_tells_a_rollout_s_life(kafka_cli: Cli, runner: HandRunner) -> None:
    options = ["--max-attempts", "2", "--retry-on", "failed", "--resource", "policy=4"]
    (one,) = enqueue(kafka_cli, *options, tasks='{"q": "secret"}')
    runner.run(1, "failed", "no luck")
    runner.run(1)
    kafka_cli("rollouts", "wait", one)
    shown = kafka_cli("rollouts", "show", one).stdout
    for words in (
        "2 at most, again on failed",
        "policy 4",
        "requeuing",
        "last error",
        "no luck",
        "succeeded",
    ):
        assert words in shown
    assert "secret" not in shown
    assert '"q": "secret"' in kafka_cli("rollouts", "show", one, "--task").stdout
    (row,) = kafka_cli.json("rollouts", "show", one)
    assert (row["state"], row["attempts"], row["last_error"]) == ("succeeded", 2, "no luck")
    assert [state["state"] for state in row["states"]] == [
        "queuing",
        "running",
        "requeuing",
        "running",
        "succeeded",
    ]
    assert row["config"]["max_attempts"] == 2
    assert "task" not in row
    (with_task,) = kafka_cli.json("rollouts", "show", one, "--task")
    assert json.loads(with_task["task"]) == {"q": "secret"}


@pytest.mark.usefixtures("kafka_settings")
def test_show_before_the_dispatcher_has_seen_it(kafka_cli: Cli) -> None:
    (one,) = enqueue(kafka_cli, tasks="1")
    assert "no state yet: the dispatcher has not seen it" in kafka_cli("rollouts", "show", one).stdout
    (row,) = kafka_cli.json("rollouts", "show", one)
    assert (row["state"], row["states"], row["cancels"]) == ("queuing", [], [])


# --- help and trouble -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["enqueue", "list", "show", "wait", "cancel"])
def test_help_has_examples(kafka_cli_anywhere: Cli, verb: str) -> None:
    assert f"headrace rollouts {verb}" in kafka_cli_anywhere("rollouts", verb, "--help").stdout


@pytest.fixture
def kafka_cli_anywhere() -> Cli:
    return Cli({"HEADRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})


def test_no_broker_is_said(kafka_cli_anywhere: Cli) -> None:
    result = kafka_cli_anywhere("rollouts", "enqueue", "-", status=1, stdin="1\n")
    assert "no answer from Kafka at 127.0.0.1:1" in result.stderr


def test_no_topics_is_said(kafka_cli: Cli) -> None:
    result = kafka_cli("rollouts", "enqueue", "-", status=1, stdin="1\n")
    assert "`headrace topics apply` creates it" in result.stderr
