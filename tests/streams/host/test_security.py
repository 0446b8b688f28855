import pytest
from faust.auth import GSSAPICredentials, SASLCredentials, SSLCredentials

from headrace.schemas.errors import FatalError
from headrace.streams.host.security import broker_urls, credentials
from headrace.streams.settings import KafkaSettings

USER = {"sasl_username": "u", "sasl_password": "secret"}


def test_plain_text_needs_no_credentials() -> None:
    assert credentials(KafkaSettings()) is None


def test_several_brokers() -> None:
    kafka = KafkaSettings(bootstrap_servers="a:1, b:2")
    assert broker_urls(kafka) == ["kafka://a:1", "kafka://b:2"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_user_and_password(protocol: str, mechanism: str) -> None:
    kafka = KafkaSettings.model_validate({"security_protocol": protocol, "sasl_mechanism": mechanism, **USER})
    found = credentials(kafka)
    assert isinstance(found, SASLCredentials)
    assert (found.username, found.password) == ("u", "secret")
    assert (found.protocol.value, found.mechanism.value) == (protocol, mechanism)
    assert (found.ssl_context is None) == (protocol == "SASL_PLAINTEXT")


def test_tls_alone() -> None:
    found = credentials(KafkaSettings(security_protocol="SSL"))
    assert isinstance(found, SSLCredentials)


def test_kerberos() -> None:
    kafka = KafkaSettings(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")
    assert isinstance(credentials(kafka), GSSAPICredentials)


@pytest.mark.parametrize(
    "fields",
    [
        {"sasl_mechanism": "OAUTHBEARER"},
        {"sasl_mechanism": "PLAIN"},
        {"sasl_mechanism": "PLAIN", "sasl_username": "u"},
    ],
    ids=["no token provider", "no user", "no password"],
)
def test_what_is_missing_is_said(fields: dict[str, str]) -> None:
    kafka = KafkaSettings.model_validate({"security_protocol": "SASL_SSL", **fields})
    with pytest.raises(FatalError, match=r"HEADRACE_KAFKA_SASL|needs HEADRACE"):
        credentials(kafka)
