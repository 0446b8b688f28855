"""What each process does under torchrun: its results go to a file of its rank."""

import sys
from pathlib import Path

import torch
from tests.trainer.policy.models import MODELS
from tests.trainer.policy.runs import CHECKPOINTED, resume, run_model

from headrace.trainer.policy import Parallel, ParallelSettings, Policy

FRESH_SEED = 5


def main(models: Path, results: Path, resumed: Path, settings: ParallelSettings) -> None:
    with Parallel.start(settings) as parallel:
        found: dict[str, object] = {}
        for name in MODELS:
            checkpoint = results / "checkpoints" / name if name in CHECKPOINTED else None
            found[name] = run_model(parallel, models / name, checkpoint)
        for name in CHECKPOINTED:
            found[f"resumed-{name}"] = resume(parallel, models / name, resumed / name)
        fresh = Policy(models / "fresh", parallel, seed=FRESH_SEED)
        found["fresh"] = fresh.hf_state_dict()
        if settings.tensor > 1:
            in_parts = Parallel(settings.model_copy(update={"sequence": True}), parallel.device)
            for name in CHECKPOINTED:
                found[f"sequence-{name}"] = run_model(in_parts, models / name)
        torch.save(found, results / f"rank-{parallel.rank}.pt")


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:4]]
    main(folders[0], folders[1], folders[2], ParallelSettings.model_validate_json(sys.argv[4]))
