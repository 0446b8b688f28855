import pytest

from headrace.trainer.policy.schedule import ScheduleSettings, learning_rate

LR = 1.0


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        pytest.param(ScheduleSettings(), {1: 1.0, 10_000: 1.0}, id="constant"),
        pytest.param(ScheduleSettings(warmup_steps=4), {1: 0.25, 4: 1.0, 5: 1.0}, id="warm-up"),
        pytest.param(
            ScheduleSettings(decay="linear", warmup_steps=2, num_steps=12),
            {1: 0.5, 2: 1.0, 7: 0.5, 12: 0.0, 13: 0.0},
            id="linear",
        ),
        pytest.param(
            ScheduleSettings(decay="cosine", num_steps=10, min_lr=0.2),
            {1: 0.2 + 0.8 * 0.9755282581475768, 5: 0.6, 10: 0.2, 99: 0.2},
            id="cosine-to-a-floor",
        ),
        pytest.param(
            ScheduleSettings(decay="linear", warmup_steps=5, num_steps=5), {5: 1.0, 6: 0.0}, id="no-span"
        ),
    ],
)
def test_learning_rate(settings: ScheduleSettings, rates: dict[int, float]) -> None:
    assert {step: learning_rate(settings, LR, step) for step in rates} == pytest.approx(rates)
