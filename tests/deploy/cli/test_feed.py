"""`headrace feed`: its words, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.feed_commands import _settings
from headrace.cli.feed_view import described, reported, summarized
from headrace.cli.main import main
from headrace.schemas.errors import FatalError
from headrace.streams.client.feeder import FeedProgress, ValidationReport

PROGRESS = FeedProgress(
    num_groups=1200,
    num_fed=1030,
    epoch=1,
    num_in_flight=16,
    num_ahead=40,
    num_val_left=0,
    version=7,
    fates={"no_contrast": 14, "batched": 1000},
    recent_outcome=0.4321,
    reports=(),
    is_over=False,
)


def test_progress_in_words() -> None:
    assert described(PROGRESS) == "epoch 2, version 7, outcome 0.432, 16 in flight, 24 wait for the trainer"
    fresh = PROGRESS._replace(epoch=0, version=None, recent_outcome=None, num_ahead=16)
    assert described(fresh) == "epoch 1, 16 in flight"
    assert summarized(PROGRESS) == (
        "1,030 of 1,200 groups are fed: 1,000 batched, 14 no_contrast, 16 in flight"
    )


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (
            ValidationReport(5, 40, 40, 2, 0.73125, is_mixed=False),
            "validation of version 5: outcome 0.7312 over 38 of 40 rollouts, 2 failed",
        ),
        (
            ValidationReport(0, 1, 1, 1, None, is_mixed=False),
            "validation of version 0: no outcome over 0 of 1 rollouts, 1 failed",
        ),
        (
            ValidationReport(5, 2, 2, 0, 1.0, is_mixed=True),
            "validation of version 5: outcome 1 over 2 of 2 rollouts; other versions answered too",
        ),
    ],
)
def test_a_report_in_words(report: ValidationReport, words: str) -> None:
    assert reported(report) == words


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_FEEDER_EPOCHS", "5")
    monkeypatch.setenv("HEADRACE_FEEDER_SEED", "3")
    found = _settings({"epochs": 2, "seed": None, "group_size": None}, "dir/boxes.jsonl")
    assert (found.run, found.epochs, found.seed, found.group_size) == ("boxes", 2, 3, 8)
    monkeypatch.setenv("HEADRACE_FEEDER_RUN", "named")
    assert _settings({"run": None}, "-").run == "named"
    with pytest.raises(FatalError, match="give both, or none"):
        _settings({"max_staleness": 1}, "-")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    (tmp_path / "tasks.jsonl").write_text('{"q": 1}\n\n')
    (tmp_path / "bad.jsonl").write_text('{"q": 1}\nnot json\n')
    (tmp_path / "empty.jsonl").write_text("\n")

    def invoke(file: str, *arguments: str) -> str:
        result = CliRunner().invoke(main, ["feed", str(tmp_path / file), *arguments])
        assert result.exit_code != 0
        return result.output

    return invoke


def test_what_can_not_be_fed(run: Callable[..., str], tmp_path: Path) -> None:
    assert "line 2 is not JSON" in run("bad.jsonl")
    assert "has no tasks" in run("empty.jsonl")
    assert "--val goes with" in run("tasks.jsonl", "--val-every", "2")
    assert "--val goes with" in run("tasks.jsonl", "--val", str(tmp_path / "tasks.jsonl"))
