"""Lineage: which agent made a call, where the name stands on a span above it."""

from collections.abc import Mapping

from headrace.schemas.records import Generation
from headrace.streams.ingest import gen_ai


class Lineage:
    """Spans by id, with their parents and the agents that they name."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._agents: dict[str, str] = {}

    def add(self, span_id: str, parent_span_id: str, attributes: Mapping[str, str]) -> None:
        self._parents[span_id] = parent_span_id
        if gen_ai.AGENT_NAME in attributes:
            self._agents[span_id] = attributes[gen_ai.AGENT_NAME]

    def named(self, generation: Generation | None, parent_span_id: str) -> Generation | None:
        """The generation with its agent's name: its own, else that of the nearest span above."""
        if generation is None or generation.agent:
            return generation
        at, seen = parent_span_id, set[str]()
        while at and at not in seen:
            if at in self._agents:
                return generation.model_copy(update={"agent": self._agents[at]})
            seen.add(at)
            at = self._parents.get(at, "")
        return generation
