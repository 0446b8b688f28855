from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.errors import FatalError
from headrace.trainer.algorithms import make_algorithm
from headrace.trainer.samples import SampleRules
from headrace.trainer.settings import GrpoSettings, PpoSettings, SftSettings, TrainSettings, load, read

EXAMPLES = Path(__file__).parents[2] / "trainer" / "examples"
FILE = Path("train.toml")
LEAST: dict[str, Any] = {"run": {"name": "r", "output": "out"}, "model": {"path": "m"}}


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_examples(name: str) -> None:
    settings = load(EXAMPLES / f"{name}.toml")
    assert settings.algorithm.name == name
    assert make_algorithm(settings.algorithm, SampleRules.from_settings(settings)).name == name


def test_the_grpo_example_shows_every_key_that_has_a_value_to_show() -> None:
    settings = load(EXAMPLES / "grpo.toml")
    shown = settings.model_dump(exclude_unset=True)
    hidden = {
        f"{table}.{key}"
        for table, values in settings.model_dump().items()
        for key in values.keys() - shown[table].keys()
    }
    assert hidden == {
        "algorithm.dual_clip",
        "checkpoint.path",
        "model.reference",
        "publish.path",
        "stop.max_versions",
    }


def test_defaults() -> None:
    settings = read(LEAST, FILE)
    assert settings.algorithm == GrpoSettings()
    assert settings.checkpoint_path == Path("out/checkpoints")
    assert settings.publish_path == Path("out/versions")
    elsewhere = read(LEAST | {"checkpoint": {"path": "c"}, "publish": {"path": "p"}}, FILE)
    assert (elsewhere.checkpoint_path, elsewhere.publish_path) == (Path("c"), Path("p"))


def test_the_environment_wins_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TRAIN_OPTIMIZER__LR", "0.5")
    monkeypatch.setenv("HEADRACE_TRAIN_ALGORITHM__CLIP_LOW", "0.1")
    monkeypatch.setenv("HEADRACE_TRAIN_DATA__AGENTS", '["solver"]')
    tables = {"optimizer": {"lr": 1.0, "eps": 0.25}, "algorithm": {"name": "ppo", "clip_low": 0.3}}
    settings = read(LEAST | tables, FILE)
    assert (settings.optimizer.lr, settings.optimizer.eps) == (0.5, 0.25)
    assert settings.algorithm == PpoSettings(clip_low=0.1)
    assert settings.data.agents == ("solver",)


def test_rules_for_samples() -> None:
    tables = {
        "model": {"path": "m", "resource": "solver-weights"},
        "data": {"max_sequence_tokens": 64, "too_long": "drop", "agents": ["solver"]},
        "algorithm": {"name": "grpo", "reward": "step"},
    }
    assert SampleRules.from_settings(read(LEAST | tables, FILE)) == SampleRules(
        max_tokens=64,
        too_long="drop",
        agents=frozenset({"solver"}),
        resource="solver-weights",
        needs_call_rewards=True,
    )
    assert not SftSettings().needs_call_rewards


def test_no_sequence_is_longer_than_the_model_has_positions() -> None:
    settings = read(LEAST | {"data": {"max_sequence_tokens": 64}}, FILE)
    for positions, expected in ((32, 32), (128, 64)):
        rules = SampleRules.from_settings(settings, max_positions=positions, vocabulary=10)
        assert (rules.max_tokens, rules.vocabulary) == (expected, 10)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        pytest.param({"optimizer": {"lr": -1}}, r"\[optimizer\] lr: .*greater than 0", id="value"),
        pytest.param({"optimizer": {"lr": float("nan")}}, r"\[optimizer\] lr: .*finite", id="nan"),
        pytest.param(
            {"optimizer": {"betas": [1.0, 0.9]}}, r"\[optimizer\] betas\.0: .*less than 1", id="item"
        ),
        pytest.param({"optimizer": {"lrr": 1}}, r"\[optimizer\] lrr: there is no such key", id="key"),
        pytest.param({"optimiser": {}}, r"\[optimiser\]: there is no such table", id="table"),
        pytest.param({"optimizer": 3}, r"\[optimizer\]: .*dict", id="no table"),
        pytest.param({"model": {}}, r"\[model\] path: is missing", id="missing"),
        pytest.param(
            {"optimizer": {"schedule": "cosine"}},
            r"\[optimizer\]: schedule 'cosine' needs total_steps",
            id="end",
        ),
        pytest.param(
            {"optimizer": {"warmup_steps": 9, "total_steps": 8}}, r"\[optimizer\]: warmup_steps", id="warm-up"
        ),
        pytest.param({"algorithm": {"name": "dpo"}}, r"\[algorithm\] name: .*'dpo'.*'sft'", id="algorithm"),
        pytest.param({"algorithm": {}}, r"\[algorithm\] name: is missing", id="no algorithm"),
        pytest.param(
            {"algorithm": {"name": "ppo", "clip_low": 3}}, r"\[algorithm\] clip_low: ", id="its value"
        ),
        pytest.param(
            {"algorithm": {"name": "sft", "clip_low": 0.1}},
            r"\[algorithm\] clip_low: there is no",
            id="another's",
        ),
        pytest.param(
            {"optimizer": {"lr": 0}, "data": {"start": "now"}},
            r"\[optimizer\] lr: .*; \[data\] start: ",
            id="two",
        ),
    ],
)
def test_errors_name_the_table_and_the_key(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(FatalError, match=f"^train.toml, or the environment over it: .*{message}"):
        read(LEAST | tables, FILE)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FatalError, match=r"can't read .*absent\.toml: No such file"):
        load(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[run\n")
    with pytest.raises(FatalError, match=r"bad\.toml is no TOML: .*line 1"):
        load(bad)
    monkeypatch.setenv("HEADRACE_TRAIN_OPTIMIZER__BETAS", "[0.9,")
    with pytest.raises(FatalError, match=r"in the environment: .*optimizer"):
        read(LEAST, FILE)


def test_settings_do_not_change() -> None:
    settings = read(LEAST, FILE)
    with pytest.raises(ValueError, match="frozen"):
        settings.run = settings.run  # type: ignore[misc]
    assert isinstance(settings, TrainSettings)
