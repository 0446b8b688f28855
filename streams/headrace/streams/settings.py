"""How to reach Kafka, the schema registry and ClickHouse, read from the environment once, at the entry.

Names follow the two clients: `HEADRACE_KAFKA_*` and `HEADRACE_CLICKHOUSE_*`. Passwords are secrets and
print as stars.
"""

from typing import Any

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class KafkaSettings(BaseSettings):
    """Connection to Kafka; SASL and TLS settings pass through to the client."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_KAFKA_", frozen=True, extra="forbid")

    bootstrap_servers: str = "127.0.0.1:9092"
    topic_prefix: str = Field(default="headrace", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]*$")
    security_protocol: str = Field(default="PLAINTEXT", pattern=r"^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$")
    sasl_mechanism: str | None = Field(
        default=None, pattern=r"^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER|GSSAPI)$"
    )
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: SecretStr | None = None
    replication_factor: int | None = Field(default=None, ge=1)
    """Of topics that headrace creates; None: what the topic's file says."""
    partitions: int | None = Field(default=None, ge=1)
    """Of topics that headrace creates; None: what the topic's file says."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further librdkafka properties, as JSON; they win."""

    def librdkafka(self) -> dict[str, Any]:
        """The properties every confluent-kafka client of ours starts from."""
        properties: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password.get_secret_value() if self.sasl_password else None,
            "ssl.ca.location": self.ssl_ca_location,
            "ssl.certificate.location": self.ssl_certificate_location,
            "ssl.key.location": self.ssl_key_location,
            "ssl.key.password": self.ssl_key_password.get_secret_value() if self.ssl_key_password else None,
        }
        return {k: v for k, v in properties.items() if v is not None} | self.extra


class SchemaRegistrySettings(BaseSettings):
    """A Confluent-compatible Schema Registry; without a url, ids come from the lock file."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_SCHEMA_REGISTRY_", frozen=True, extra="forbid")

    url: str | None = None
    basic_auth: SecretStr | None = None
    """`user:password`."""


class ClickHouseSettings(BaseSettings):
    """Connection to ClickHouse over HTTP."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_CLICKHOUSE_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8123, ge=1, le=65535)
    username: str = "default"
    password: SecretStr = SecretStr("")
    database: str = Field(default="headrace", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    secure: bool = False
