"""The pure parts of the training demo: its task, its figures' places, its curve, its recipe."""

from pathlib import Path

import pytest
from rich.console import Console
from tests.builders import TIME
from tests.trainer.rollouts import a_trajectory

from headrace.cli.demo.audit import Audit, check_training
from headrace.cli.demo.boxes import FORM, LETTERS, examples, note_in, right_box, tasks
from headrace.cli.demo.figures import Figures, Point
from headrace.cli.demo.plot import save_curve
from headrace.cli.demo.recipe import recipe_for
from headrace.cli.demo.view import View, bars
from headrace.schemas.records import BatchShard, TrainStep
from headrace.trainer.settings import load


def test_tasks_have_each_letter_equally_often() -> None:
    made = list(tasks(40, seed=1))
    assert sorted(task["letter"] for task in made) == sorted(LETTERS * 4)
    assert made == list(tasks(40, seed=1))
    assert made != list(tasks(40, seed=2))
    assert all(len(task["boxes"]) == 10 for task in made)


def test_examples_show_the_form_and_nothing_of_the_rule() -> None:
    (task,) = tasks(1, seed=1, form=FORM)
    shown = list(examples(task))
    assert len(shown) == 6
    assert all(letter not in LETTERS and answer.isdecimal() for letter, answer in shown)
    assert list(examples(next(tasks(1, seed=1)))) == []


@pytest.mark.parametrize(("letter", "box"), [("a", "1"), ("i", "9"), ("j", "0")])
def test_the_right_box(letter: str, box: str) -> None:
    assert right_box(letter) == box


@pytest.mark.parametrize(
    ("said", "note"),
    [
        pytest.param("3", "d", id="a box"),
        pytest.param("", "a", id="nothing"),
        pytest.param("33", "a", id="two"),
        pytest.param("²", "a", id="no box's number"),
    ],
)
def test_what_lies_in_a_box(said: str, note: str) -> None:
    assert note_in(said, {"letter": "a", "boxes": "abcdefghij"}) == note


def figures(**known: float | None) -> Figures:
    made: dict[str, float | None] = {
        "num_rollouts": 1000, "accuracy": 0.5, "num_batches": 3, "policy_version": 4, "num_transitions": 2000,
        "largest_gap": 1e-5,
    }  # fmt: skip
    return Figures(**(made | known))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "known", "is_over"),
    [
        pytest.param("small", {}, False, id="learning"),
        pytest.param("small", {"accuracy": 0.96}, True, id="learnt"),
        pytest.param("small", {"accuracy": 1.0, "num_rollouts": 100}, False, id="too early to say"),
        pytest.param("small", {"num_rollouts": 20_000}, True, id="at its limit"),
        pytest.param("small", {"accuracy": None, "policy_version": None}, False, id="nothing yet"),
        pytest.param("smollm2", {"policy_version": 3, "num_rollouts": 40}, True, id="steps enough"),
        pytest.param("smollm2", {"policy_version": 2, "num_rollouts": 40}, False, id="steps to do"),
    ],
)
def test_when_it_ends(model: str, known: dict[str, float | None], is_over: bool) -> None:  # noqa: FBT001
    assert recipe_for(model).is_over(figures(**known)) is is_over


@pytest.mark.parametrize("model", ["small", "smollm2"])
def test_its_configuration_is_one(model: str, tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(recipe_for(model).configuration("demo", tmp_path / "model", tmp_path / "run", 3))
    settings = load(path)
    assert (settings.run.seed, settings.model.path) == (3, tmp_path / "model")
    # A version for each batch.
    assert settings.publish.every_steps == settings.algorithm.num_epochs


def test_what_is_asked_for_otherwise() -> None:
    recipe = recipe_for("small", accuracy=0.5, max_rollouts=10)
    assert (recipe.accuracy, recipe.max_rollouts) == (0.5, 10)


def test_the_view_fits_and_says_all() -> None:
    view = View(0.95)
    console = Console(width=80, record=True)
    console.print(view)
    view.figures, view.lags = figures(), {"sink": 12}
    view.points = [Point(place / 100, place / 200, 320) for place in range(100)]
    console.print(view)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("1,000", "0.500 of 0.95", "policy version", "1.0e-05", "sink 12", "0.00 → 0.99"):
        assert words in text


def test_bars() -> None:
    assert bars([0.0, 0.5, 1.0, 2.0, -1.0]) == "▁▅██▁"


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    save_curve([Point(0.1, 0.0, 320), Point(0.9, 0.8, 100)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_audit_counts_what_differs() -> None:
    audit = Audit()
    audit.compare("spans", [(1,), (2,), (2,)], [(2,), (2,), (3,)])
    assert (audit.lost, audit.duplicated, audit.wrong) == (1, 1, 1)
    assert not audit.is_clean
    assert audit.words == [
        "1 spans lost, such as (1,)",
        "1 spans not published, such as (3,)",
        "1 spans too many",
    ]


def a_shard(batch_id: str, last_offset: int) -> BatchShard:
    member = a_trajectory(name=batch_id)
    return BatchShard(
        batch_id=batch_id, shard=0, num_shards=1, manifest_hash="", source_partition=0,
        last_offset=last_offset, trajectories=(member,), time=TIME,
    )  # fmt: skip


def a_step(*batch_ids: str, gap: float = 1e-5) -> TrainStep:
    return TrainStep(
        run_id="demo", step=1, algorithm="grpo", policy_version=1, batch_ids=batch_ids,
        metrics={"engine_gap_max": gap}, time=TIME,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([a_step("a"), a_step("b")], (0, 0), id="in order, and one to come"),
        pytest.param([a_step("b"), a_step("c")], (0, 1), id="one passed over"),
        pytest.param([a_step("a"), a_step("c"), a_step("b")], (0, 1), id="in another order"),
        pytest.param([a_step("a"), a_step("b"), a_step("b")], (1, 1), id="one twice"),
        pytest.param([a_step("a", gap=2e-3)], (0, 1), id="computed otherwise"),
        pytest.param([a_step("a"), a_step("b", gap=float("nan"))], (0, 1), id="nothing that can be compared"),
    ],
)
def test_the_audit_of_training(steps: list[TrainStep], expected: tuple[int, int]) -> None:
    audit = Audit()
    check_training(audit, [a_shard("b", 20), a_shard("a", 10), a_shard("c", 30)], steps, max_gap=1e-3)
    assert (audit.duplicated, audit.wrong) == expected
