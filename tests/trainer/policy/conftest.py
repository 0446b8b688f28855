"""Models, and this process as a run of one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.policy.models import MODELS, Reference, reference, write_model
from tests.trainer.policy.runs import CHECKPOINTED, Result, run_model

from headrace.trainer.policy import Parallel


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of folders: each kind of model, and one without weights."""
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        write_model(folder / name, name)
    write_model(folder / "fresh", "qwen3", with_weights=False)
    return folder


@pytest.fixture(scope="session")
def references(models: Path) -> dict[str, Reference]:
    return {name: reference(models / name) for name in MODELS}


@pytest.fixture
def parallel() -> Iterator[Parallel]:
    with Parallel.start() as found:
        yield found


@pytest.fixture(scope="session")
def alone(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Result], Path]:
    """What one process makes of the models, and the folder of its checkpoints."""
    checkpoints = tmp_path_factory.mktemp("alone")
    with Parallel.start() as parallel:
        found = {
            name: run_model(parallel, models / name, checkpoints / name if name in CHECKPOINTED else None)
            for name in MODELS
        }
    return found, checkpoints
