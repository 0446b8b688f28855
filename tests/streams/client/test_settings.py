"""SASL and TLS settings reach the client as librdkafka names them; secrets stay secret."""

import json

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings

FULL = {
    "BOOTSTRAP_SERVERS": "a:9093,b:9093",
    "SECURITY_PROTOCOL": "SASL_SSL",
    "SASL_MECHANISM": "SCRAM-SHA-512",
    "SASL_USERNAME": "user",
    "SASL_PASSWORD": "pass word",
    "SSL_CERTIFICATE_LOCATION": "/tls/cert.pem",
    "SSL_KEY_LOCATION": "/tls/key.pem",
    "SSL_KEY_PASSWORD": "key word",
    "SSL_CA_LOCATION": "/tls/ca.pem",
}


def set_environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"HEADRACE_KAFKA_{name}", value)


def test_everything_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, FULL)
    assert KafkaSettings().librdkafka() == {
        "bootstrap.servers": "a:9093,b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "user",
        "sasl.password": "pass word",
        "ssl.ca.location": "/tls/ca.pem",
        "ssl.certificate.location": "/tls/cert.pem",
        "ssl.key.location": "/tls/key.pem",
        "ssl.key.password": "key word",
    }


def test_what_is_not_set_is_left_to_the_client() -> None:
    properties = KafkaSettings(bootstrap_servers="a:1").librdkafka()
    assert properties == {"bootstrap.servers": "a:1", "security.protocol": "PLAINTEXT"}


def test_extra_properties_win(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"security.protocol": "SSL", "client.rack": "r1", "socket.keepalive.enable": True}
    set_environment(monkeypatch, {"EXTRA": json.dumps(extra)})
    assert KafkaSettings().librdkafka().items() >= extra.items()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_the_client_takes_them(protocol: str, mechanism: str) -> None:
    settings = KafkaSettings.model_validate(
        {
            "bootstrap_servers": "127.0.0.1:1",
            "security_protocol": protocol,
            "sasl_mechanism": mechanism,
            "sasl_username": "user",
            "sasl_password": "secret",
        }
    )
    Publisher(settings)
    AdminClient({"log_level": 0} | settings.librdkafka())


def test_secrets_do_not_print(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, FULL)
    settings = KafkaSettings()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert "pass word" not in shown
    assert "key word" not in shown


@pytest.mark.parametrize(
    "wrong",
    [
        {"security_protocol": "TLS"},
        {"sasl_mechanism": "MD5"},
        {"topic_prefix": "has.dot"},
        {"topic_prefix": ""},
        {"partitions": 0},
        {"brokers": "a:1"},
    ],
    ids=lambda wrong: "=".join(map(str, next(iter(wrong.items())))),
)
def test_what_is_wrong_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        KafkaSettings.model_validate(wrong)
