"""The topics, each declared in one file of the `topics` folder; names are `<prefix>.<topic>.v<version>`."""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from headrace.schemas.errors import FatalError
from headrace.schemas.records import RECORDS, Record

TOPICS_FOLDER = Path(str(resources.files("headrace.schemas") / "topics"))


class TopicSpec(BaseModel):
    """What `headrace topics apply` makes true of a topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z-]+$")]
    version: Annotated[int, Field(ge=1)]
    description: str
    owner: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    key: str
    record: str
    compatibility: Literal["FULL_TRANSITIVE"]
    partitions: Annotated[int, Field(ge=1)]
    copartitioned: bool = False
    """Shares its number of partitions with the others so marked: one rollout, one partition number."""
    replication_factor: Annotated[int, Field(ge=1)]
    config: dict[str, str | int]

    def full_name(self, prefix: str) -> str:
        return f"{prefix}.{self.name}.v{self.version}"

    @property
    def record_type(self) -> type[Record]:
        return RECORDS[self.record]


@cache
def topic_specs() -> dict[str, TopicSpec]:
    """Every topic by its short name."""
    specs = [
        TopicSpec.model_validate(yaml.safe_load(path.read_text())) for path in TOPICS_FOLDER.glob("*.yaml")
    ]
    shared = {spec.partitions for spec in specs if spec.copartitioned}
    if len(shared) > 1:
        raise FatalError(f"co-partitioned topics declare different numbers of partitions: {sorted(shared)}")
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}


@cache
def topic_of(record: type[Record]) -> TopicSpec:
    """The one topic that carries this record."""
    (spec,) = (spec for spec in topic_specs().values() if spec.record == record.__name__)
    return spec


def topic_name(record: type[Record], prefix: str) -> str:
    """Full name of the topic that carries this record."""
    return topic_of(record).full_name(prefix)
