"""Where Kafka and ClickHouse are: the environment says so, else the running local stack, else defaults.

Whoever can't be reached is reported with its address and with what that address came from.
"""

from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.state import Endpoints, running_endpoints
from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError
from headrace.schemas.registry import RegistryIds
from headrace.streams.settings import ClickHouseSettings, KafkaSettings, SchemaRegistrySettings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

ANSWER_S = 5.0


def kafka_settings(*, quiet: bool = False) -> KafkaSettings:
    """How to reach Kafka. `quiet`: without the client's own log lines; the command says once what fails."""
    settings = read_settings(KafkaSettings)
    stack = _stack()
    update: dict[str, object] = {"extra": {"log_level": 0} | settings.extra} if quiet else {}
    if "bootstrap_servers" not in settings.model_fields_set and stack:
        update["bootstrap_servers"] = stack.kafka_bootstrap_servers
    return settings.model_copy(update=update)


def clickhouse_settings() -> ClickHouseSettings:
    """How to reach ClickHouse. A host or a port in the environment means that the stack isn't asked."""
    settings = read_settings(ClickHouseSettings)
    stack = _stack()
    if settings.model_fields_set.isdisjoint({"host", "port"}) and stack:
        at = {"host": stack.clickhouse_host, "port": stack.clickhouse_port}
        return settings.model_copy(update=at)
    return settings


def read_settings(kind: type[SettingsT]) -> SettingsT:
    """The settings as the environment has them; FatalError names the variable that is wrong."""
    try:
        return kind()
    except SettingsError as error:
        # A list or an object that is no JSON; its message names the field.
        raise FatalError(f"{kind.model_config.get('env_prefix', '')}…: {error}") from error
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        problems = [
            f"{prefix}{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise FatalError("; ".join(problems)) from None


def codec() -> Codec:
    """Schema ids from the registry, where one is configured."""
    registry = read_settings(SchemaRegistrySettings)
    if registry.url is None:
        return Codec()
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415  an extra

    properties = {"url": registry.url}
    if registry.basic_auth is not None:
        properties["basic.auth.user.info"] = registry.basic_auth.get_secret_value()
    return Codec(RegistryIds(SchemaRegistryClient(properties)))


def existing_topics(settings: KafkaSettings) -> frozenset[str]:
    """Names of the broker's topics. KafkaUnavailableError if none answers within 5 s."""
    from confluent_kafka import KafkaException  # noqa: PLC0415  half of the time that `headrace sql` takes to start

    from headrace.streams.client.admin import admin_client  # noqa: PLC0415
    from headrace.streams.client.errors import KafkaUnavailableError  # noqa: PLC0415

    try:
        return frozenset(admin_client(settings).list_topics(timeout=ANSWER_S).topics)
    except KafkaException as error:
        given = "bootstrap_servers" in read_settings(KafkaSettings).model_fields_set
        raise KafkaUnavailableError(
            f"no answer from Kafka at {settings.bootstrap_servers} within {ANSWER_S:g} s "
            f"({error.args[0].str()}). {_hint('HEADRACE_KAFKA_BOOTSTRAP_SERVERS', given=given)}"
        ) from error


def connect_clickhouse(settings: ClickHouseSettings, *, database: str | None = None) -> "Client":
    """A client. ClickHouseUnavailableError if there is no answer, ClickHouseRefusedError for a bad one."""
    from headrace.cli.sql_errors import cause, server_message  # noqa: PLC0415
    from headrace.streams import clickhouse  # noqa: PLC0415  an extra, and half a second

    try:
        return clickhouse.connect(settings, database=database)
    except clickhouse.ClickHouseUnavailableError as error:
        given = not read_settings(ClickHouseSettings).model_fields_set.isdisjoint({"host", "port"})
        raise clickhouse.ClickHouseUnavailableError(
            f"no answer from ClickHouse at {settings.host}:{settings.port} ({cause(error)}). "
            f"{_hint('HEADRACE_CLICKHOUSE_HOST', given=given)}"
        ) from error
    except clickhouse.ClickHouseRefusedError as error:
        raise clickhouse.ClickHouseRefusedError(
            f"ClickHouse at {settings.host}:{settings.port}: {server_message(str(error))}"
        ) from error


def _stack() -> Endpoints | None:
    return running_endpoints(read_settings(StackSettings).home.resolve())


def _hint(variable: str, *, given: bool) -> str:
    if given:
        return "The environment points there."
    if _stack():
        return "The local stack says that it is there: `headrace status`."
    home = read_settings(StackSettings).home.resolve()
    return f"No local stack runs in {home}: start one with `headrace up`, or set {variable}."
