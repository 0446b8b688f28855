"""Probe: what a version of weights computes for some tokens, by which an engine that loaded it is known.

The trainer puts one into a version's metadata; whoever loads the version asks the engine for the same. What
differs is not what was trained: a head that was not loaded, another model, weights of another version.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

_NAME = "probe"


class Probe(BaseModel):
    """Of one sequence, at temperature 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=2)]
    logprobs: tuple[FiniteFloat, ...]
    """Of each token but the first, given those before it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.logprobs) != len(self.token_ids) - 1:
            raise ValueError("a probe has a logprob for each token but the first")
        return self

    def metadata(self) -> dict[str, str]:
        """As a version carries it."""
        return {_NAME: self.model_dump_json()}

    def gap(self, logprobs: Sequence[float]) -> float:
        """The mean difference: in bfloat16 single ones may be large."""
        return fmean(abs(one - other) for one, other in zip(self.logprobs, logprobs, strict=True))

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """None where there is none, or none that can be read."""
        if _NAME not in metadata:
            return None
        try:
            return cls.model_validate_json(metadata[_NAME])
        except ValidationError:
            return None
