"""What the environment says about the local stack."""

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class StackSettings(BaseSettings):
    """Read once, at the command's entry."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", frozen=True, populate_by_name=True)

    home: Path = Field(default=Path(".headrace"), description="data, logs and state of the stack")
    cache: Path = Field(
        default_factory=lambda: Path.home() / ".cache" / "headrace",
        description="what is fetched once and shared by all stacks: Kafka's jars",
    )
    java_home: Path | None = Field(default=None, validation_alias=AliasChoices("java_home", "JAVA_HOME"))

    # Where these are set, the stack starts no such server of its own.
    kafka_bootstrap_servers: str | None = None
    clickhouse_host: str | None = None
    clickhouse_port: int | None = None

    @property
    def external_kafka(self) -> bool:
        return self.kafka_bootstrap_servers is not None

    @property
    def external_clickhouse(self) -> bool:
        return self.clickhouse_host is not None or self.clickhouse_port is not None
