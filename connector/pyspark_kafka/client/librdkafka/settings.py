"""The settings of the `librdkafka` engine: properties by role, and timeouts.

The settings are translated from `ClientOptions`. librdkafka checks them on the driver. Invariant:
no error contains a secret.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import Producer as RdProducer

from pyspark_kafka.client.java_names import (
    Role,
    api_timeout_ms,
    is_secret,
    librdkafka_properties,
    native_token_source,
    positive_milliseconds,
    setting_of,
)
from pyspark_kafka.client.librdkafka.errors import LOG, code_of
from pyspark_kafka.client.librdkafka.fetch import CONSUMER_DEFAULTS, CONSUMER_OWNED
from pyspark_kafka.client.librdkafka.producer import PRODUCER_DEFAULTS, PRODUCER_OWNED
from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.values import ClientOptions

_PROPERTY: Final = re.compile(r'property "([^"]+)"|`([a-z._]+)` must|: ([a-z._]+) failed')
"""Matches the name of the property in librdkafka's error messages."""
_NO_GSSAPI: Final = "No provider for SASL mechanism GSSAPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrdkafkaSettings:
    """The settings of a client.

    `admin`, `consumer` and `producer` contain the librdkafka properties of these clients. The
    connector's defaults are not included.
    """

    bootstrap_servers: str
    admin: Mapping[str, str] = field(repr=False)
    consumer: Mapping[str, str] = field(repr=False)
    producer: Mapping[str, str] = field(repr=False)
    poll_timeout_ms: int
    api_timeout_s: float
    fetch_offset_num_retries: int
    fetch_offset_retry_interval_ms: int

    @classmethod
    def of(cls, options: ClientOptions, role: Role) -> Self:
        """Translate and check the options. Raises `OptionError` for an invalid setting.

        The options apply to `role`. If `role` is `consumer`, the producer properties contain only
        connection settings, and vice versa.
        """
        fixed = {"bootstrap.servers": options.bootstrap_servers}
        admin = {**_with_token_method(librdkafka_properties(options.kafka, role="admin")), **fixed}
        given = {**_with_token_method(librdkafka_properties(options.kafka, role=role)), **fixed}
        _check_token_source(given)
        settings = cls(
            bootstrap_servers=options.bootstrap_servers,
            admin=admin,
            consumer={**(given if role == "consumer" else admin), "group.id": options.group_id},
            producer=given if role == "producer" else admin,
            poll_timeout_ms=options.poll_timeout_ms,
            api_timeout_s=api_timeout_ms(options.kafka) / 1000,
            fetch_offset_num_retries=options.fetch_offset_num_retries,
            fetch_offset_retry_interval_ms=options.fetch_offset_retry_interval_ms,
        )
        _check(settings, role, options.kafka)
        return settings


def _with_token_method(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Set `sasl.oauthbearer.method` to `oidc` if a token endpoint is set.

    The Java client derives the method from the URL of the token endpoint. With librdkafka's default
    method, no token would be requested.
    """
    url = properties.get("sasl.oauthbearer.token.endpoint.url", "").strip().lower()
    mechanism = properties.get("sasl.mechanism", "").strip().upper()
    if mechanism != "OAUTHBEARER" or not url.startswith(("https://", "http://")):
        return properties
    return {"sasl.oauthbearer.method": "oidc", **properties}


def _check_token_source(properties: Mapping[str, str]) -> None:
    """Raise `OptionError` for token sources that only the native engine supports."""
    name = native_token_source(properties)
    if name is not None:
        raise OptionError(
            f"Option 'kafka.{name}' requires the 'native' engine, because the 'librdkafka' engine "
            "does not support token providers or token files.",
            advice="Set 'engine' to 'native', and remove all options that the 'native' engine does "
            "not support.",
            option=f"kafka.{name}",
        )


def _check(settings: LibrdkafkaSettings, role: Role, kafka: Mapping[str, str]) -> None:
    """Check the settings with a librdkafka client that has no bootstrap servers to connect to."""
    given = settings.consumer if role == "consumer" else settings.producer
    properties: dict[str, Any] = {
        name: value for name, value in given.items() if name != "bootstrap.servers"
    }
    if role == "producer":
        # In librdkafka, 0 disables the timeout.
        name = "delivery.timeout.ms"
        positive_milliseconds(name, properties.get(name, PRODUCER_DEFAULTS[name]))
        properties = {**PRODUCER_DEFAULTS, **properties, **PRODUCER_OWNED}
    else:
        properties = {**CONSUMER_DEFAULTS, **properties, **CONSUMER_OWNED}
    with rejected_properties_as_option_errors(properties, kafka):
        (Consumer if role == "consumer" else RdProducer)(properties, logger=LOG).close()


@contextlib.contextmanager
def rejected_properties_as_option_errors(
    properties: Mapping[str, Any], kafka: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Raise `OptionError`, without secrets, if librdkafka rejects a property.

    `kafka` contains the user's settings from which the properties were translated.
    """
    try:
        yield
    except (KafkaException, TypeError, ValueError) as error:
        text = str(code_of(error).str() if isinstance(error, KafkaException) else error).strip()
        for name, value in properties.items():
            if is_secret(name) and isinstance(value, str) and value:
                text = text.replace(value, "***")
        raise _invalid(text.removesuffix("."), kafka or {}) from None


def _invalid(text: str, kafka: Mapping[str, str]) -> OptionError:
    """Return the error for a message from librdkafka.

    The error names the option that sets the rejected property, if this option is known.
    """
    if _NO_GSSAPI in text:
        return OptionError(
            "The SASL mechanism is GSSAPI (Kerberos), which the confluent-kafka wheels do not "
            "support.",
            advice="Set 'kafka.sasl.mechanism' to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or "
            "OAUTHBEARER. To use Kerberos, build librdkafka with libsasl2, and build "
            "confluent-kafka from source with this librdkafka.",
            option="kafka.sasl.mechanism",
        )
    found = _PROPERTY.search(text)
    name = setting_of(next(filter(None, found.groups())), kafka) if found else None
    if name is None:
        return OptionError(f"librdkafka rejects the 'kafka.*' options: {text}.")
    value = "" if is_secret(name) else f" with the value {kafka[name]!r}"
    return OptionError(
        f"librdkafka rejects option 'kafka.{name}'{value}: {text}.",
        advice="Correct or remove the option.",
        option=f"kafka.{name}",
    )
