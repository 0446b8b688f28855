"""Kafka settings as Faust and aiokafka want them."""

import ssl

from faust.auth import Credentials, GSSAPICredentials, SASLCredentials, SSLCredentials

from headrace.schemas.errors import FatalError
from headrace.streams.settings import KafkaSettings


def broker_urls(kafka: KafkaSettings) -> list[str]:
    return [f"kafka://{server.strip()}" for server in kafka.bootstrap_servers.split(",") if server.strip()]


def credentials(kafka: KafkaSettings) -> Credentials | None:
    """Raise FatalError for what aiokafka can't do with these settings alone."""
    context = _ssl_context(kafka) if kafka.security_protocol.endswith("SSL") else None
    if not kafka.security_protocol.startswith("SASL"):
        return None if context is None else SSLCredentials(context)
    mechanism = kafka.sasl_mechanism or "PLAIN"
    if mechanism == "OAUTHBEARER":
        raise FatalError(
            "HEADRACE_KAFKA_SASL_MECHANISM=OAUTHBEARER needs a token provider, which stream processors "
            "do not have; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or GSSAPI"
        )
    if mechanism == "GSSAPI":
        return GSSAPICredentials(ssl_context=context, mechanism=mechanism)
    if kafka.sasl_username is None or kafka.sasl_password is None:
        raise FatalError(f"SASL mechanism {mechanism} needs HEADRACE_KAFKA_SASL_USERNAME and _SASL_PASSWORD")
    return SASLCredentials(
        username=kafka.sasl_username,
        password=kafka.sasl_password.get_secret_value(),
        ssl_context=context,
        mechanism=mechanism,
    )


def _ssl_context(kafka: KafkaSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=kafka.ssl_ca_location)
    if kafka.ssl_certificate_location is not None:
        password = kafka.ssl_key_password
        context.load_cert_chain(
            kafka.ssl_certificate_location,
            kafka.ssl_key_location,
            None if password is None else password.get_secret_value(),
        )
    return context
