"""librdkafka's errors in our words.

Purpose: one table from error code to our class, and the one place that phrases a message.
Invariant: a message names what was asked of whom, and never a setting's value. What it must not
know: what the caller does about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from pyspark_kafka.errors import (
    AccessError,
    AuthenticationError,
    AuthorizationError,
    BrokerUnreachableError,
    CorruptBatchError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    sentence,
)

LOG: Final = logging.getLogger("pyspark_kafka.librdkafka")
"""Where librdkafka's own log lines go, instead of stderr."""
LOG.addHandler(logging.NullHandler())  # else warnings without a configured handler go to stderr

_CODES_BY_CLASS: Final[Mapping[type[KafkaError], Iterable[int]]] = {
    BrokerUnreachableError: (
        Code._ALL_BROKERS_DOWN,
        Code._RESOLVE,
        Code._TIMED_OUT,
        Code._TRANSPORT,
        Code.BROKER_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.REQUEST_TIMED_OUT,
    ),
    UnknownTopicOrPartitionError: (
        Code._UNKNOWN_PARTITION,
        Code._UNKNOWN_TOPIC,
        Code.UNKNOWN_TOPIC_ID,
        Code.UNKNOWN_TOPIC_OR_PART,
    ),
    OffsetOutOfRangeError: (
        Code._AUTO_OFFSET_RESET,
        Code._LOG_TRUNCATION,
        Code.OFFSET_OUT_OF_RANGE,
    ),
    AuthenticationError: (
        Code._AUTHENTICATION,
        Code._SSL,
        Code.ILLEGAL_SASL_STATE,
        Code.SASL_AUTHENTICATION_FAILED,
        Code.UNSUPPORTED_SASL_MECHANISM,
    ),
    AuthorizationError: (
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.TOPIC_AUTHORIZATION_FAILED,
    ),
    CorruptBatchError: (Code._BAD_COMPRESSION, Code._BAD_MSG, Code.INVALID_MSG),
}
ERROR_BY_CODE: Final[Mapping[int, type[KafkaError]]] = {
    code: error for error, codes in _CODES_BY_CLASS.items() for code in codes
}


def error_class(error: Code) -> type[KafkaError]:
    """The class for an error of librdkafka or of the broker."""
    return ERROR_BY_CODE.get(error.code(), KafkaError)


def translate(error: Code, *, doing: str, bootstrap_servers: str) -> KafkaError:
    """Return our error for librdkafka's; `doing` is a phrase such as `fetching t-0 at offset 5`."""
    return error_class(error)(
        f"{sentence(doing)} failed at {bootstrap_servers}: {describe(error)}."
    )


def unreachable(
    doing: str, *, bootstrap_servers: str, waited_s: float, reason: str, option: str
) -> KafkaError:
    """Return the error for a timeout that `option` sets; `reason` is librdkafka's last error."""
    return BrokerUnreachableError(
        f"{sentence(doing)} failed: {bootstrap_servers} did not answer within {waited_s:g} s "
        f"({reason}).",
        advice=f"{BrokerUnreachableError.remedy} To wait longer, raise '{option}'.",
    )


def describe(error: Code) -> str:
    """Return the text and the name of an error of librdkafka."""
    return f"{error.str()} ({error.name()})"


def code_of(exception: KafkaException) -> Code:
    """The error inside librdkafka's exception, which carries it as its only argument."""
    error = exception.args[0]
    return error if isinstance(error, Code) else Code(Code._FAIL, str(exception))


@dataclass(slots=True)
class ErrorEvents:
    """What one librdkafka handle has said about brokers and logins, outside of any answer.

    `refused` is the first refusal of our credentials or certificates since `forget`: librdkafka
    would retry it until the time is up, but mostly it does not get better. `last` is the latest
    trouble of any kind, to be told when a wait runs out. Neither outlives the question it was met
    in: one broker may refuse once, at a restart say, and a handle lives for days.
    """

    bootstrap_servers: str
    refused: Code | None = field(default=None)
    last: Code | None = field(default=None)

    def __call__(self, error: Code) -> None:
        """The `error_cb` of a handle."""
        self.last = error
        if self.refused is None and issubclass(error_class(error), AccessError):
            self.refused = error

    def forget(self) -> None:
        """Begin anew. The handle's events must have been served before, or old ones come late."""
        self.refused = self.last = None

    def raise_if_refused(self, doing: str) -> None:
        """Raises `AccessError` if the brokers refused who we are."""
        if self.refused is not None:
            raise translate(self.refused, doing=doing, bootstrap_servers=self.bootstrap_servers)

    def unreachable(self) -> str | None:
        """Why no broker answers, if that is the latest news of this handle."""
        if self.last is not None and error_class(self.last) is BrokerUnreachableError:
            return str(self.last.str())
        return None
