"""The model under training, on megatron-core: from and to Hugging Face's files, over any number of processes.

`cpu` comes first: it imports Megatron without its warnings.
"""

from headrace.trainer.policy import cpu
from headrace.trainer.policy.config import UnsupportedModelError
from headrace.trainer.policy.optimizer import OptimizerSettings
from headrace.trainer.policy.parallel import Parallel, ParallelSettings
from headrace.trainer.policy.policy import LossFunction, Policy, StepOutput
from headrace.trainer.policy.schedule import ScheduleSettings

__all__ = [
    "LossFunction",
    "OptimizerSettings",
    "Parallel",
    "ParallelSettings",
    "Policy",
    "ScheduleSettings",
    "StepOutput",
    "UnsupportedModelError",
    "cpu",
]
