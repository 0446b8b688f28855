"""The agent of the rollouts bench: `headrace runner rollout_agent:idle`."""

from headrace.streams.runner import agent


@agent
async def idle(_task: object, _resources: object) -> None:
    """Whatever the task."""
