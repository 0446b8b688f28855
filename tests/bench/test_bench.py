"""The command runs on real parts, and its output has the shape that was promised. Speed is not looked at."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bench.figures import GROUPS, SETS

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"bench ([a-z0-9_]+) (-?[0-9.]+) (\S+)( peer [a-z0-9_]+ [0-9.]+ ratio [0-9.]+)?")


def bench(*arguments: str, limit_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )


@pytest.mark.integration
def test_log_gives_each_of_its_figures_once_and_nothing_else() -> None:
    done = bench("--quick", "--only", "log")
    assert done.returncode == 0, done.stderr
    found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert all(found), done.stdout
    names = [match[1] for match in found if match]
    assert names == [name for group in SETS["log"] for name in GROUPS[group]]
    with_peer = [match[1] for match in found if match and match[4]]
    assert with_peer == ["sink_rows_per_s"]  # Agent-Lightning is left out of quick runs
    assert all(float(match[2]) > 0 for match in found if match)


@pytest.mark.integration
def test_rollouts_come_from_enqueue_to_trajectory() -> None:
    done = bench("--quick", "--only", "rollouts")
    assert done.returncode == 0, done.stderr
    found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert [(match[1], match[3]) for match in found if match] == [
        (name, "rollouts/s") for name in GROUPS["rollouts"]
    ]
    assert all(match and float(match[2]) > 0 for match in found), done.stdout


@pytest.mark.integration
def test_the_proxy_is_measured_and_each_of_its_calls_found_in_kafka() -> None:
    done = bench("--quick", "--only", "proxy")
    assert done.returncode == 0, done.stderr
    found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert [match[1] for match in found if match] == list(GROUPS["proxy"])
    values = {match[1]: float(match[2]) for match in found if match}
    # What is added is a difference: how it comes out on a busy machine is not looked at.
    assert values["proxy_requests_per_s"] > 0


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_trainer_is_measured_and_its_loop_closes() -> None:
    done = bench("--quick", "--only", "trainer", limit_s=840)
    assert done.returncode == 0, done.stderr
    found = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert [match[1] for match in found if match] == list(GROUPS["trainer"])
    assert [match[1] for match in found if match and match[4]] == ["train_tokens_per_s"]
    values = {match[1]: float(match[2]) for match in found if match}
    assert values["train_tokens_per_s"] > 0
    assert values["publish_to_served_s"] > 0
    # Each is rounded by itself.
    assert sum(value for name, value in values.items() if name.startswith("loop_")) == pytest.approx(
        100, abs=2
    )


@pytest.mark.integration
def test_memory_gives_its_figures() -> None:
    done = bench("--quick", "--only", "memory")
    assert done.returncode == 0, done.stderr
    names = [line.split()[1] for line in done.stdout.splitlines()]
    assert names == list(GROUPS["memory"])


def test_help_says_what_there_is() -> None:
    done = bench("--help")
    assert done.returncode == 0
    for name in (*SETS, *GROUPS):
        assert name in done.stdout


def test_an_unknown_name_is_refused_before_anything_starts() -> None:
    done = bench("--only", "speed")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("bench failed: no bench is called 'speed'")
