"""What the librdkafka adapter is opened with: properties by role, and times.

Purpose: translate `ClientOptions` once, and have librdkafka itself check the result, so that no
bad setting is found in a task. Invariant: no setting's value is in a message. What it must not
know: what the settings mean (that is `client.java_names`).
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
    positive_milliseconds,
    setting_of,
)
from pyspark_kafka.client.librdkafka.errors import LOG, code_of
from pyspark_kafka.client.librdkafka.fetch import CONSUMER_DEFAULTS, CONSUMER_OWNED
from pyspark_kafka.client.librdkafka.producer import PRODUCER_DEFAULTS, PRODUCER_OWNED
from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.values import ClientOptions

_PROPERTY: Final = re.compile(r'property "([^"]+)"|`([a-z._]+)` must|: ([a-z._]+) failed')
"""Where librdkafka's messages name the property that they are about."""
_NO_GSSAPI: Final = "No provider for SASL mechanism GSSAPI"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrdkafkaSettings:
    """`admin`, `consumer` and `producer` are librdkafka properties, without our own defaults."""

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
        """Translate and check; raises `OptionError` naming the setting that is refused.

        `role` is what the options were given for, reading or writing; the other one's properties
        stay without settings of its own.
        """
        fixed = {"bootstrap.servers": options.bootstrap_servers}
        admin = {**librdkafka_properties(options.kafka, role="admin"), **fixed}
        given = {**librdkafka_properties(options.kafka, role=role), **fixed}
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


def _check(settings: LibrdkafkaSettings, role: Role, kafka: Mapping[str, str]) -> None:
    """Let librdkafka judge the settings now, without bootstrap servers, so without connecting."""
    given = settings.consumer if role == "consumer" else settings.producer
    properties: dict[str, Any] = {
        name: value for name, value in given.items() if name != "bootstrap.servers"
    }
    if role == "producer":
        # For librdkafka 0 is "for ever", and no task may wait that long.
        name = "delivery.timeout.ms"
        positive_milliseconds(name, properties.get(name, PRODUCER_DEFAULTS[name]))
        properties = {**PRODUCER_DEFAULTS, **properties, **PRODUCER_OWNED}
    else:
        properties = {**CONSUMER_DEFAULTS, **properties, **CONSUMER_OWNED}
    with opening(properties, kafka):
        (Consumer if role == "consumer" else RdProducer)(properties, logger=LOG).close()


@contextlib.contextmanager
def opening(
    properties: Mapping[str, Any], kafka: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Turn librdkafka's refusal of a property into `OptionError`, secrets struck out.

    `kafka` are the settings that the properties were made from, by the names the user gave them.
    """
    try:
        yield
    except (KafkaException, TypeError, ValueError) as error:
        said = str(code_of(error).str() if isinstance(error, KafkaException) else error).strip()
        for name, value in properties.items():
            if is_secret(name) and isinstance(value, str) and value:
                said = said.replace(value, "***")
        if _NO_GSSAPI in said:
            said = (
                "Kerberos (GSSAPI) is not in the confluent-kafka wheels: install librdkafka with "
                "libsasl2 and confluent-kafka built from source against it, or use PLAIN, "
                "SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER ('kafka.sasl.mechanism')"
            )
        raise OptionError(_refusal(said, kafka or {})) from None


def _refusal(said: str, kafka: Mapping[str, str]) -> str:
    """Names the option behind the property that librdkafka names, where one was given."""
    found = _PROPERTY.search(said)
    name = setting_of(next(filter(None, found.groups())), kafka) if found else None
    if name is None:
        return f"the 'kafka.*' options are refused: {said}"
    value = "" if is_secret(name) else f" {kafka[name]!r} and"
    return f"option 'kafka.{name}' is{value} refused by librdkafka: {said}; change or remove it"
